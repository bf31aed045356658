"""Our side of a benchmark: plain decoding, and drafting at each length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llama_eagle.bench.measurement import Measurement
from llama_eagle.drafting.options import LOOKUP, DraftingOptions
from llama_eagle.errors import InputError
from llama_eagle.generation.generate import GenerationResult
from llama_eagle.generation.options import SamplingParams
from llama_eagle.generation.run import GREEDY, Run, decode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import MTP, ContextOptions, LoadOptions, PairOptions
from llama_eagle.sessions.text import Tokenizer, chat_text

N_LEAST = 8  # tokens of a text that can be measured
COMMON_SAMPLING = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1)


@dataclasses.dataclass(frozen=True)
class Job:
    """A benchmark job: at most n tokens after `prompt`. `n_draft_max` is the upper limit of `auto`.

    With `is_chat` the prompt is a question, sent through the target's chat template. `draft` None selects the target's
    MTP head, or prompt look-up alone with `looks_up`.
    """

    target: Path
    draft: Path | None
    prompt: str
    n: int
    threads: int
    n_draft_max: int
    load: LoadOptions = LoadOptions()
    draft_gpu_layers: int | None = None  # None: same as the target
    p_min: float = 0.0  # a draft ends when its cumulative probability falls below this
    draft_vocab: int | str | None = None  # rows of the head; None: all of the target's own, the default of others
    looks_up: bool = False
    is_chat: bool = False
    type_k: str = ContextOptions.type_k
    type_v: str = ContextOptions.type_v

    @property
    def context(self) -> ContextOptions:
        """Context options with the default size."""
        return ContextOptions(n_threads=self.threads, type_k=self.type_k, type_v=self.type_v)

    @property
    def pair(self) -> PairOptions:
        return PairOptions(self.target, None if self.looks_up else self.draft or MTP, self.load, self.draft_gpu_layers)

    def drafting(self, n_draft: int | str) -> DraftingOptions:
        longest = n_draft if isinstance(n_draft, int) else self.n_draft_max
        if self.looks_up:
            return DraftingOptions(LOOKUP, n_draft, longest)
        rows = self.draft_vocab or (None if self.draft else "all")
        options = DraftingOptions(self.draft or MTP, n_draft, longest, self.p_min, draft_vocab=rows)
        return dataclasses.replace(options, draft_gpu_layers=self.draft_gpu_layers, lookup=False)


class Ours:
    """A loaded pair and the prompt: `text` without its BOS token, which the tokenizers add, and the ids in `prompt`."""

    def __init__(self, job: Job, pair: ModelPair) -> None:
        self.job = job
        self.pair = pair
        tokenizer = Tokenizer(pair.target)
        text = chat_text(pair.target, [{"role": "user", "content": job.prompt}]) if job.is_chat else job.prompt
        bos = b"".join(map(functools.partial(tokenizer.piece, special=True), tokenizer.encode("")))
        self.text = text.removeprefix(bos.decode("utf-8", "replace"))
        self.prompt = tokenizer.encode(self.text)

    @property
    def draft_kind(self) -> str:
        """Architecture of the draft model; empty without one."""
        return self.pair.draft.header.architecture if self.pair.draft else ""

    def warm_up(self) -> int:
        """Page the files in; return the number of tokens of the text. Raises `InputError` for one of a few tokens."""
        n = len(decode(self.pair, self.prompt, self._run(GREEDY)).tokens)
        if n < min(N_LEAST, self.job.n):
            raise InputError(f"the text ends after {n} tokens, which is too short to measure. Give another --prompt.")
        return n

    def plain(self) -> Measurement:
        return _measurement(decode(self.pair, self.prompt, self._run(GREEDY)))

    def speculate(self, n_draft: int | str, sampling: SamplingParams = GREEDY) -> Measurement:
        """Measure drafting of `n_draft` tokens per round ("auto": chosen by the policy)."""
        return _measurement(decode(self.pair, self.prompt, self._run(sampling), self.job.drafting(n_draft)))

    def look_up(self, n_draft: int | str) -> Measurement:
        """Measure prompt look-up alone, without the draft model."""
        drafting = dataclasses.replace(self.job, looks_up=True).drafting(n_draft)
        return _measurement(decode(self.pair, self.prompt, self._run(GREEDY), drafting))

    def _run(self, sampling: SamplingParams) -> Run:
        job = self.job
        return Run(job.n, job.threads, sampling, ignore_eos=False, type_k=job.type_k, type_v=job.type_v)


@contextmanager
def loaded(job: Job) -> Iterator[Ours]:
    with ModelPair(job.pair) as pair:
        yield Ours(job, pair)


def _measurement(result: GenerationResult) -> Measurement:
    """Convert a result; each token of a plain run counts as a round."""
    statistics = result.speculative
    if statistics is None:
        each = result.decode_ms / max(1, len(result.tokens))
        return Measurement(result.tokens_per_second, 0.0, 1.0, each, each, 0.0)
    return Measurement.of_rounds(statistics, len(result.tokens), result.decode_ms)
