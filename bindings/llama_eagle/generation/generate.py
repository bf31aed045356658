"""The round loop: draft, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from llama_eagle.drafting.draft_length import Auto, DraftLength, Fixed, RoundCost
from llama_eagle.errors import InputError, UsageError
from llama_eagle.generation.sampling import Sampler, SamplingParams
from llama_eagle.generation.stats import Statistics, phases
from llama_eagle.sessions import exact
from llama_eagle.sessions.session import Session
from llama_eagle.sessions.text import TextStream, Tokenizer

OnText = Callable[[str], None]


@dataclass(frozen=True)
class GenerationOptions:
    """`max_tokens` None: to the end of the context. `ignore_eos` goes on past end-of-generation tokens.

    `p_min`: a draft ends after the token at which its cumulative probability falls below this (0: never).
    """

    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    p_min: float = 0.0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"{self.max_tokens} tokens to generate: give 1 or more (-n).")
        if not 0 <= self.p_min < 1:
            raise UsageError(f"p_min {self.p_min} is not in [0, 1). Correct it.")


@dataclass(frozen=True)
class GenerationResult:
    """One generation. `stop_reason`: "end" (of generation token), "length", "context" or "callback"."""

    text: str
    tokens: list[int]
    n_prompt: int
    prompt_ms: float
    decode_ms: float
    stop_reason: str
    speculative: Statistics | None

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.decode_ms * 1e3 if self.decode_ms > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "n_prompt": self.n_prompt,
            "n_generated": len(self.tokens),
            "prompt_ms": round(self.prompt_ms, 3),
            "decode_ms": round(self.decode_ms, 3),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "stop_reason": self.stop_reason,
            "speculative": self.speculative.as_dict() if self.speculative else None,
        }


class Rounds:
    """The rounds of one generation: draft, verify, accept, commit."""

    def __init__(self, session: Session, sampler: Sampler, length: DraftLength, p_min: float = 0.0) -> None:
        self.session = session
        self.sampler = sampler
        self.length = length
        self.p_min = p_min
        self.statistics = Statistics()

    def step(self, id_last: int, n_left: int, wanted: Callable[[int], bool]) -> list[int]:
        """One round: the tokens that follow `id_last`, at most `n_left`, up to the first that is not `wanted`.

        That token is the last of the list; it and all before it but the last are in memory when this returns.
        """
        session = self.session
        start = time.perf_counter()
        n_draft = self.length.choose(min(session.n_draft_room, session.n_draft_max, n_left - 1))
        drafted = session.draft(id_last, n_draft, self.p_min) if n_draft > 0 else []
        drafted_at = time.perf_counter()
        session.verify([id_last, *drafted])
        sampled = session.accept(self.sampler.handle)
        emitted = _through_first(sampled, wanted)
        session.commit(len(emitted))
        end = time.perf_counter()
        cost = RoundCost(len(drafted), len(sampled) - 1, (drafted_at - start) * 1e3, (end - drafted_at) * 1e3)
        self.length.observe(cost)
        self.statistics.add_round(cost.n_draft, cost.n_accepted, len(emitted))
        return emitted


def choose_length(n_draft: int | str, longest: int, *, exact_only: bool = False) -> DraftLength:
    """The policy of a number of tokens up to `longest`, or of "auto".

    Raises `UsageError` for anything else, and with `exact_only` for what is not verified exactly.
    """
    if n_draft == "auto":
        return Auto(exact.longest_draft(longest))
    if not isinstance(n_draft, int) or not 0 <= n_draft <= longest:
        raise UsageError(f"n_draft={n_draft!r} is neither 'auto' nor a number from 0 to {longest}. Correct it.")
    if exact_only:
        exact.require_length(n_draft)
    return Fixed(n_draft)


def generate(
    session: Session,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    options: GenerationOptions = GenerationOptions(),
    *,
    length: DraftLength | None = None,
    on_text: OnText | None = None,
) -> GenerationResult:
    """Evaluate `prompt` (token ids) and generate after it; `on_text` gets the text piece by piece.

    Raises `UsageError` for an empty prompt, `InputError` for one that leaves no room for a token or holds ids outside
    the vocabulary.
    """
    _check_prompt(session, tokenizer, prompt)
    length = length or choose_length("auto", session.n_draft_max)
    stream = TextStream(tokenizer)
    parts: list[str] = []

    def deliver(tokens: Sequence[int]) -> None:
        piece = stream.push(tokens) if tokens else stream.finish()
        parts.append(piece)
        if on_text is not None and piece:
            on_text(piece)

    with Sampler(options.sampling, tokenizer.n_vocab) as sampler:
        start = time.perf_counter()
        _evaluate(session, prompt)
        for token in prompt[-options.sampling.penalty_last_n :] if options.sampling.has_penalties else ():
            sampler.accept(token)
        prompt_end, before = time.perf_counter(), session.timings
        rounds = Rounds(session, sampler, length, options.p_min)
        tokens, reason = _run(rounds, tokenizer, options, deliver)
        deliver(())
        decode_ms = (time.perf_counter() - prompt_end) * 1e3
    speculative = rounds.statistics if session.n_draft_max else None
    rounds.statistics.ms = phases(before, session.timings, decode_ms)
    return GenerationResult(
        "".join(parts), tokens, len(prompt), (prompt_end - start) * 1e3, decode_ms, reason, speculative
    )


def _run(
    rounds: Rounds, tokenizer: Tokenizer, options: GenerationOptions, deliver: Callable[[Sequence[int]], None]
) -> tuple[list[int], str]:
    """The loop: returns the generated tokens and why it ended."""
    session = rounds.session
    limit = options.max_tokens if options.max_tokens is not None else session.n_room + 1

    def wanted(token: int) -> bool:
        return options.ignore_eos or not tokenizer.is_end(token)

    tokens: list[int] = []
    emitted = [rounds.sampler.sample(session.ctx)]
    while True:
        kept = list(takewhile(wanted, emitted))
        tokens += kept
        if kept:
            deliver(kept)
        if len(kept) < len(emitted):
            return tokens, "end"
        if len(tokens) >= limit:
            return tokens, "length" if options.max_tokens is not None else "context"
        if session.n_room < 1:
            return tokens, "context"
        emitted = rounds.step(tokens[-1], limit - len(tokens), wanted)


def _through_first(tokens: Sequence[int], wanted: Callable[[int], bool]) -> list[int]:
    """The tokens up to and with the first that is not wanted."""
    for i, token in enumerate(tokens):
        if not wanted(token):
            return list(tokens[: i + 1])
    return list(tokens)


def _check_prompt(session: Session, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
    if not prompt:
        raise UsageError("the prompt is empty: there is nothing to continue. Give at least one token.")
    tokenizer.require_ids(prompt)
    if len(prompt) > session.n_room:
        raise InputError(
            f"the prompt has {len(prompt)} tokens, {session.n_room} fit into the context. "
            "Shorten it or use a larger --ctx-size."
        )


def _evaluate(session: Session, prompt: Sequence[int]) -> None:
    """In pieces, so that Ctrl-C is heard between them."""
    for piece in _pieces(prompt, session.n_batch):
        session.eval(piece)


def _pieces(tokens: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (tokens[i : i + size] for i in range(0, len(tokens), size))
