"""How well a draft does on prompts: acceptance by position, tokens a round, speed over plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_eagle.bench.prompts import Message, Prompt
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import InputError
from llama_eagle.generation.generate import GenerationResult
from llama_eagle.generation.options import SamplingParams
from llama_eagle.generation.run import GREEDY, Run, decode
from llama_eagle.generation.stats import Statistics
from llama_eagle.sessions.exact import require, set_mode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import LoadOptions, PairOptions
from llama_eagle.sessions.text import Tokenizer, chat_text


@dataclass(frozen=True)
class Evaluation:
    """What is measured: at most n tokens after each turn of `prompts`, with and without what `drafting` names."""

    target: Path
    prompts: Sequence[Prompt]
    n: int
    drafting: DraftingOptions
    sampling: SamplingParams = GREEDY
    threads: int = 0
    gpu_layers: int = 0
    ignore_eos: bool = False


@dataclass
class Score:
    """Sums over the turns of a category. ms: decoding time, prompts excluded. `n_same`: turns of the same tokens."""

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
            "tried_per_position": self.statistics.tried_at,
            "plain_tps": self.plain_tps,
            "tps": self.tps,
            "over_plain": self.tps / self.plain_tps if self.plain_tps else 0.0,
        }


def evaluate(job: Evaluation, on_progress: Callable[[float], None] = lambda fraction: None) -> dict[str, Score]:
    """Category -> score. Each turn is generated without the draft and with it; the plain answer goes into the chat.

    Raises InputError that names the prompt which does not fit the target's context.
    """
    scores: dict[str, Score] = {}
    drafting = job.drafting
    if drafting.exact:
        set_mode("strict")
    load = LoadOptions(job.gpu_layers)
    with ModelPair(PairOptions(job.target, drafting.model, load, drafting.draft_gpu_layers)) as pair:
        if drafting.exact:
            require(pair.target)
        answerer = _Answerer(job, pair)
        for prompt in job.prompts:
            answerer.encode(prompt, prompt.opening)  # one that does not fit is known before minutes of measuring
        next(answerer.turns(job.prompts[0]))  # pages the files in
        for i, prompt in enumerate(job.prompts):
            score = scores.setdefault(prompt.category, Score())
            for plain, drafted in answerer.turns(prompt):
                score.add(plain, drafted)
            on_progress((i + 1) / len(job.prompts))
    return scores


def total(scores: Iterable[Score]) -> Score:
    """All categories as one: each turn counts by its rounds and tokens."""
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
    """A loaded pair that answers prompts in both ways."""

    def __init__(self, job: Evaluation, pair: ModelPair) -> None:
        self.job, self.pair = job, pair
        self.tokenizer = Tokenizer(pair.target)
        self.run = Run(job.n, job.threads, job.sampling, job.ignore_eos)

    def turns(self, prompt: Prompt) -> Iterator[tuple[GenerationResult, GenerationResult]]:
        if prompt.text is not None:
            yield self.both(self.encode(prompt, prompt.text))
            return
        messages = list(prompt.messages)
        for turn in prompt.turns:
            messages.append({"role": "user", "content": turn})
            plain, drafted = self.both(self.encode(prompt, messages))
            yield plain, drafted
            messages.append({"role": "assistant", "content": plain.text})

    def both(self, ids: list[int]) -> tuple[GenerationResult, GenerationResult]:
        return decode(self.pair, ids, self.run), decode(self.pair, ids, self.run, self.job.drafting)

    def encode(self, prompt: Prompt, content: str | list[Message]) -> list[int]:
        text = content if isinstance(content, str) else chat_text(self.pair.target, content)
        ids = self.tokenizer.encode(text, add_bos=text is content)
        limit = self.pair.target.n_ctx_train
        if len(ids) + self.job.n > limit:
            raise InputError(
                f"{prompt.source}: {len(ids)} tokens and {self.job.n} to generate are more than the target's context "
                f"of {limit}. Shorten the prompt or generate fewer tokens (-n)."
            )
        return ids
