"""One generation in a fresh context, with the models already in memory, for measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_eagle.drafting.draft_length import DraftLength
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drafting.resolve import session_options
from llama_eagle.generation.generate import GenerationResult, Watch, generate
from llama_eagle.generation.options import GenerationOptions, SamplingParams
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import ContextOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.sessions.text import Tokenizer
from llama_eagle.vision.in_text import PicturesInText

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Run:
    """Length, threads and sampling of a generation. threads 0: the default number."""

    n: int
    threads: int = 0
    sampling: SamplingParams = GREEDY
    ignore_eos: bool = True
    type_k: str = ContextOptions.type_k
    type_v: str = ContextOptions.type_v


def decode(
    pair: ModelPair,
    prompt: Sequence[int],
    run: Run,
    drafting: DraftingOptions = DraftingOptions(),
    pictures: PicturesInText | None = None,
    length: DraftLength | None = None,
    watch: Watch = Watch(),
) -> GenerationResult:
    """Generate after `prompt` in a fresh context. Uses the pair's draft if `drafting` names a model.

    `length`: a draft-length policy in place of `drafting.n_draft`.
    """
    options = ContextOptions(
        n_ctx=len(prompt) + run.n + drafting.longest + 1,
        n_threads=run.threads,
        type_k=run.type_k,
        type_v=run.type_v,
        n_rs_seq=drafting.longest,
    )
    draft = pair.draft if drafting.model is not None else None
    with (
        Context(pair.target, options) as context,
        EagleSession(context, draft, session_options(draft.header if draft else None, drafting)) as session,
    ):
        generation = GenerationOptions(run.n, run.sampling, run.ignore_eos)
        return generate(
            session,
            Tokenizer(pair.target),
            prompt,
            generation,
            drafting=drafting,
            length=length,
            pictures=pictures,
            watch=watch,
        )
