"""Benchmark of a streamed chat: `create_chat_completion(stream=True)`, with all Python work around it."""

from __future__ import annotations

import contextlib
import time

from llama_eagle.bench.measurement import Measurement
from llama_eagle.bench.ours import Job
from llama_eagle.sessions.options import ContextOptions

ROOM = 512  # tokens reserved for the prompt and its template


def stream_chat(job: Job, n: int, n_draft: int | str) -> Measurement:
    """Stream an answer of at most `n` tokens and measure it.

    `python_share` is the fraction of the time after the prompt that is spent outside of native code, from the template
    to the last chunk.
    """
    from llama_eagle.drop_in.llama import EagleLlama
    from llama_eagle.drop_in.options import from_options

    context = ContextOptions(n_ctx=n + ROOM, n_threads=job.threads)
    llm = EagleLlama(job.target, verbose=False, **from_options(job.drafting(n_draft), context, job.load))
    with contextlib.closing(llm):
        list(llm.create_chat_completion(_messages(job), stream=True, temperature=0, max_tokens=8))  # imports, caches
        start = time.perf_counter()
        parts = list(llm.create_chat_completion(_messages(job), stream=True, temperature=0, max_tokens=n))
        wall_ms = (time.perf_counter() - start) * 1e3
    statistics, timings = llm.speculative_stats, parts[-1]["timings"]
    return Measurement.of_rounds(statistics, timings["predicted_n"], wall_ms - timings["prompt_ms"])


def _messages(job: Job) -> list[dict[str, str]]:
    return [{"role": "user", "content": job.prompt}]
