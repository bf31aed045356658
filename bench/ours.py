"""Our side of a benchmark: plain decoding, the draft at each length, and one verification against one decode."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from llama_eagle.bench.measurement import Measurement
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.generation.generate import GenerationResult
from llama_eagle.generation.options import SamplingParams
from llama_eagle.generation.run import GREEDY, Run, decode
from llama_eagle.generation.sampling import Sampler
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import MTP, ContextOptions, LoadOptions, PairOptions, SessionOptions
from llama_eagle.sessions.plain import PlainSession
from llama_eagle.sessions.session import EagleSession
from llama_eagle.sessions.text import Tokenizer

VERIFY_ROWS = 5
COMMON_SAMPLING = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)


@dataclasses.dataclass(frozen=True)
class Job:
    """What is measured: n tokens after `prompt`; `n_draft_max` bounds `auto`. `draft` None: the target's MTP head."""

    target: Path
    draft: Path | None
    prompt: str
    n: int
    threads: int
    n_draft_max: int
    gpu_layers: int = 0
    draft_gpu_layers: int | None = None  # None: as the target
    p_min: float = 0.0  # a draft ends where its cumulative probability falls below this
    draft_vocab: int = 0  # rows of an MTP head; 0: all

    @property
    def pair(self) -> PairOptions:
        return PairOptions(self.target, self.draft or MTP, LoadOptions(self.gpu_layers), self.draft_gpu_layers)

    def drafting(self, n_draft: int | str) -> DraftingOptions:
        longest = n_draft if isinstance(n_draft, int) else self.n_draft_max
        rows = None if self.draft else self.draft_vocab or "all"
        options = DraftingOptions(self.draft or MTP, n_draft, longest, self.p_min, draft_vocab=rows)
        return dataclasses.replace(options, draft_gpu_layers=self.draft_gpu_layers, lookup=False)


class Ours:
    """A loaded pair."""

    def __init__(self, job: Job, pair: ModelPair) -> None:
        self.job = job
        self.pair = pair
        self.prompt = Tokenizer(pair.target).encode(job.prompt)

    def plain(self) -> Measurement:
        return _measurement(decode(self.pair, self.prompt, self._run(GREEDY)))

    def speculate(self, n_draft: int | str, sampling: SamplingParams = GREEDY) -> Measurement:
        """`n_draft` tokens a round, or "auto"."""
        return _measurement(decode(self.pair, self.prompt, self._run(sampling), self.job.drafting(n_draft)))

    def verify_over_decode(self, n_times: int = 24) -> float:
        """Median time to verify VERIFY_ROWS rows over the median time of a plain decode, at the same depths."""
        assert self.pair.draft is not None
        n_ctx = len(self.prompt) + n_times * (VERIFY_ROWS + 1) + 64
        options = ContextOptions(n_ctx=n_ctx, n_threads=self.job.threads)
        rounds = dataclasses.replace(options, n_rs_seq=VERIFY_ROWS)
        with (
            Context(self.pair.target, options) as plain_context,
            Context(self.pair.target, rounds) as context,
            PlainSession(plain_context) as plain,
            EagleSession(context, self.pair.draft, SessionOptions(VERIFY_ROWS)) as session,
            Sampler(GREEDY, self.pair.target.n_vocab) as sampler,
        ):
            plain.eval(self.prompt)
            session.eval(self.prompt)
            ids = [sampler.sample(plain.ctx)] * VERIFY_ROWS  # what the rows say has no influence on their cost
            one, many = [], []
            for _ in range(n_times):
                one.append(_timed(lambda: plain.verify(ids[:1])))
                plain.commit(1)
            for _ in range(n_times):
                session.draft(ids[0], 1)
                many.append(_timed(lambda: session.verify(ids)))
                sampler.sample(session.ctx, 0)
                session.commit(1)
        return median(many) / median(one)

    def _run(self, sampling: SamplingParams) -> Run:
        return Run(self.job.n, self.job.threads, sampling)


@contextmanager
def loaded(job: Job) -> Iterator[Ours]:
    with ModelPair(job.pair) as pair:
        yield Ours(job, pair)


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def _measurement(result: GenerationResult) -> Measurement:
    """A plain run's rounds are its tokens."""
    statistics = result.speculative
    if statistics is None:
        each = result.decode_ms / max(1, len(result.tokens))
        return Measurement(result.tokens_per_second, 0.0, 1.0, each, each, 0.0)
    return Measurement.of_rounds(statistics, len(result.tokens), result.decode_ms)
