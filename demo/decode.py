"""One measured generation with the models in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from llama_eagle.drafting.draft_length import DraftLength
from llama_eagle.generation.generate import GenerationOptions, GenerationResult, generate
from llama_eagle.generation.sampling import SamplingParams
from llama_eagle.sessions.models import Context, ContextOptions, ModelPair
from llama_eagle.sessions.plain import open_session
from llama_eagle.sessions.session import SessionOptions
from llama_eagle.sessions.text import Tokenizer

GREEDY = SamplingParams(temperature=0.0)


@dataclasses.dataclass(frozen=True)
class Run:
    """n tokens with `threads` CPU threads (0: all cores); `n_draft_max` sets how far the memory can be taken back.

    `p_min`: a draft ends where its cumulative probability falls below this.
    `n_vocab_draft`: rows of an MTP head, 0 for all.
    """

    n: int
    threads: int = 0
    n_draft_max: int = 16
    sampling: SamplingParams = GREEDY
    ignore_eos: bool = True
    p_min: float = 0.0
    n_vocab_draft: int = 0


def decode(pair: ModelPair, prompt: Sequence[int], run: Run, length: DraftLength | None) -> GenerationResult:
    """Generates after `prompt` in a fresh context; `length` None: without the draft."""
    draft = pair.draft if length is not None else None
    context_options = ContextOptions(
        n_ctx=len(prompt) + run.n + run.n_draft_max + 1,
        n_threads=run.threads,
        n_rs_seq=run.n_draft_max if draft is not None else 0,
    )
    options = GenerationOptions(run.n, run.sampling, run.p_min, run.ignore_eos)
    with (
        Context(pair.target, context_options) as context,
        open_session(context, draft, SessionOptions(run.n_draft_max, n_vocab_draft=run.n_vocab_draft)) as session,
    ):
        return generate(session, Tokenizer(pair.target), prompt, options, length=length)
