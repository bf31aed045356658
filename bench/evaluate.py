"""Evaluation of a drafter on prompts: acceptance by position, tokens per round, speed over plain decoding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llama_eagle.bench.prompts import Message, Prompt, read_prompts, take
from llama_eagle.drafting.options import LOOKUP, DraftingOptions
from llama_eagle.errors import InputError
from llama_eagle.generation.generate import GenerationResult
from llama_eagle.generation.options import SamplingParams
from llama_eagle.generation.run import GREEDY, Run, decode
from llama_eagle.generation.stats import Statistics
from llama_eagle.gguf.architectures import copies_state
from llama_eagle.gguf.header import read_header
from llama_eagle.native.processor.threads import n_threads
from llama_eagle.sessions.exact import require, set_mode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import LoadOptions, PairOptions
from llama_eagle.sessions.text import Tokenizer, chat_text
from llama_eagle.vision.encoder import MARKER, VisionEncoder, require_encoder
from llama_eagle.vision.in_text import PicturesInText

GAIN_TOKENS = 96  # per answer
LEAST_GAIN = 1.03  # of the speed without the draft: less is within the error of the measurement


@dataclass(frozen=True)
class Evaluation:
    """An evaluation job: at most n tokens per turn of `prompts`, with and without the drafter of `drafting`."""

    target: Path
    prompts: Sequence[Prompt]
    n: int
    drafting: DraftingOptions
    sampling: SamplingParams = GREEDY
    threads: int = 0
    load: LoadOptions = LoadOptions()
    ignore_eos: bool = False
    mmproj: Path | None = None


@dataclass
class Score:
    """Sums over the turns of a category.

    `ms` is decoding time without prompts. `n_same` counts turns whose tokens equal those of plain decoding.
    """

    n_turns: int = 0
    n_same: int = 0
    n_plain: int = 0
    plain_ms: float = 0.0
    ms: float = 0.0
    n_tokens: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def add(self, plain: GenerationResult, drafted: GenerationResult) -> None:
        assert drafted.speculative is not None
        self.n_turns += 1
        self.n_same += plain.tokens == drafted.tokens
        self.n_plain += len(plain.tokens)
        self.plain_ms += plain.decode_ms
        self.n_tokens += len(drafted.tokens)
        self.ms += drafted.decode_ms
        self.statistics.add(drafted.speculative)

    @property
    def plain_tps(self) -> float:
        return self.n_plain / self.plain_ms * 1e3 if self.plain_ms else 0.0

    @property
    def tps(self) -> float:
        return self.n_tokens / self.ms * 1e3 if self.ms else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "n_turns": self.n_turns,
            "n_same": self.n_same,
            "n_tokens": self.n_tokens,
            "mean_emitted": self.statistics.mean_emitted,
            "accept_rate": self.statistics.accept_rate,
            "accepted_per_position": self.statistics.accepted_per_position,
            "tried_per_position": self.statistics.positions.tried,
            "plain_tps": self.plain_tps,
            "tps": self.tps,
            "over_plain": self.tps / self.plain_tps if self.plain_tps else 0.0,
        }


Scores = dict[str, Score]  # by category


def evaluate(job: Evaluation, on_progress: Callable[[float], None] = lambda fraction: None) -> Scores:
    """Return the scores of the job's own drafter (see `evaluate_all`)."""
    return evaluate_all(job, [job.drafting], on_progress)[0]


def evaluate_all(
    job: Evaluation, draftings: Sequence[DraftingOptions], on_progress: Callable[[float], None] = lambda fraction: None
) -> list[Scores]:
    """Return the scores of each drafter in `draftings`, all with the job's pair.

    Each turn is generated without drafts and with each drafter; the plain answer continues the chat. Raises InputError
    with the prompt's name if a prompt exceeds the target's context.
    """
    found: list[Scores] = [{} for _ in draftings]
    drafting = job.drafting
    if drafting.exact:
        set_mode("strict")
    pairing = PairOptions(job.target, drafting.model, job.load, drafting.draft_gpu_layers)
    with ModelPair(pairing) as pair, contextlib.ExitStack() as stack:
        if drafting.exact:
            require(pair.target)
        pictures = None
        if job.mmproj is not None:
            require_encoder(job.mmproj, pair.target.header, pair.draft.header if pair.draft else None)
            threads, use_gpu = n_threads(job.threads), job.load.n_gpu_layers != 0
            encoder = VisionEncoder(job.mmproj, pair.target.handle, n_threads=threads, use_gpu=use_gpu)
            pictures = PicturesInText(stack.enter_context(encoder))
        n_turns = 1 + sum(1 if prompt.text is not None else len(prompt.turns) for prompt in job.prompts)
        answerer = _Answerer(job, pair, pictures, draftings, lambda n: on_progress(n / n_turns / (1 + len(draftings))))
        for prompt in job.prompts:
            answerer.encode(prompt, prompt.given)  # reports a prompt that does not fit before minutes of measuring
        next(answerer.turns(job.prompts[0]))  # pages the files in
        for prompt in job.prompts:
            for plain, *drafted in answerer.turns(prompt):
                for scores, answer in zip(found, drafted, strict=True):
                    scores.setdefault(prompt.category, Score()).add(plain, answer)
    return found


def total(scores: Iterable[Score]) -> Score:
    """Merge all categories into one score, weighted by rounds and tokens."""
    out = Score()
    for score in scores:
        out.n_turns += score.n_turns
        out.n_same += score.n_same
        out.n_plain += score.n_plain
        out.plain_ms += score.plain_ms
        out.n_tokens += score.n_tokens
        out.ms += score.ms
        out.statistics.add(score.statistics)
    return out


class _Answerer:
    """A loaded pair that answers prompts without drafts and with each drafter.

    on_answer: receives the number of answers after each one.
    """

    def __init__(
        self,
        job: Evaluation,
        pair: ModelPair,
        pictures: PicturesInText | None,
        draftings: Sequence[DraftingOptions],
        on_answer: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.job, self.pair, self.pictures, self.draftings = job, pair, pictures, draftings
        self.n_answers, self.on_answer = 0, on_answer
        self.tokenizer = Tokenizer(pair.target)
        self.run = Run(job.n, job.threads, job.sampling, job.ignore_eos)

    def turns(self, prompt: Prompt) -> Iterator[list[GenerationResult]]:
        """Generate the answers of each turn, plain decoding first."""
        if prompt.text is not None:
            yield self.answers(self.encode(prompt, prompt.text))
            return
        messages = list(prompt.messages)
        for turn in prompt.turns:
            messages.append({"role": "user", "content": turn})
            answers = self.answers(self.encode(prompt, messages))
            yield answers
            messages.append({"role": "assistant", "content": answers[0].text})

    def answers(self, ids: list[int]) -> list[GenerationResult]:
        return [self._answer(ids, drafting) for drafting in (DraftingOptions(), *self.draftings)]

    def _answer(self, ids: list[int], drafting: DraftingOptions) -> GenerationResult:
        answer = decode(self.pair, ids, self.run, drafting, self.pictures)
        self.n_answers += 1
        self.on_answer(self.n_answers)
        return answer

    def encode(self, prompt: Prompt, content: str | list[Message]) -> list[int]:
        text = content if isinstance(content, str) else chat_text(self.pair.target, content)
        ids = self._tokens(prompt, text, add_bos=text is content)
        limit = self.pair.target.n_ctx_train
        if len(ids) + self.job.n > limit:
            raise InputError(
                f"{prompt.source}: {len(ids)} tokens plus {self.job.n} generated ones exceed the target's context of "
                f"{limit}. Shorten the prompt or generate fewer tokens (-n)."
            )
        return ids

    def _tokens(self, prompt: Prompt, text: str, *, add_bos: bool) -> list[int]:
        """Tokenize the text, with the images whose markers it contains. Images of later turns are excluded."""
        if not prompt.images:
            return self.tokenizer.encode(text, add_bos=add_bos)
        if self.pictures is None:
            raise InputError(f"{prompt.source}: contains images. Give the target's vision encoder (--mmproj).")
        shown = prompt.images[: text.count(MARKER)]
        found = [self.pictures.open(path, f"{prompt.source}: {path}") for path in shown]
        encode = self.tokenizer.encode
        return self.pictures.insert(text, found, lambda part, first: encode(part, add_bos=add_bos and first))


@dataclass(frozen=True)
class Gain:
    """Tokens/s with plain decoding, prompt look-up alone, and the draft as commands run it, with look-up.

    lookup: None if commands do not use look-up with the target by default.
    """

    plain: float
    lookup: float | None
    draft: float

    @property
    def speedup(self) -> float:
        """Speed relative to the faster way without the draft."""
        return self.draft / max(self.plain, self.lookup or 0.0)

    @property
    def pays(self) -> bool:
        return self.speedup >= LEAST_GAIN

    def __str__(self) -> str:
        lookup = "" if self.lookup is None else f"{self.lookup:.1f} with prompt look-up alone, "
        speeds = f"{self.draft:.1f} tokens/s with it, {lookup}{self.plain:.1f} with plain decoding"
        return f"{self.speedup:.2f} times the speed without it: {speeds}"


def measure_gain(target: Path, draft: Path, on_progress: Callable[[float], None] = lambda fraction: None) -> Gain:
    """Answer a chat of each category of the built-in set in each way, alternating.

    A target without a chat template continues the first questions. Raises `InputError` if a chat exceeds the target's
    context or nothing is answered, `EnvironmentFailure` if there is too little memory.
    """
    header, prompts = read_header(target), take(read_prompts(["chat"]), 1)
    if not header.keys.get("tokenizer.chat_template"):
        prompts = [replace(prompt, text=prompt.turns[0]) for prompt in prompts]
    drafting = DraftingOptions(draft)
    others = [] if copies_state(header) else [DraftingOptions(LOOKUP)]
    job = Evaluation(target, prompts, GAIN_TOKENS, drafting)
    own, *by_lookup = (total(scores.values()) for scores in evaluate_all(job, [drafting, *others], on_progress))
    if not own.plain_tps:
        raise InputError(f"{target}: every answer is empty. Measure the draft with other prompts.")
    return Gain(own.plain_tps, by_lookup[0].tps if by_lookup else None, own.tps)
