"""Generation of a text after a prompt, in a session that the caller opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_eagle.drafting.choose import choose_drafters, combine, expected_times, save_lookups
from llama_eagle.drafting.draft_length import DraftLength
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import InputError, UsageError
from llama_eagle.generation.options import GenerationOptions
from llama_eagle.generation.rejection import rejection_sampling
from llama_eagle.generation.rounds import Plan, Rounds
from llama_eagle.generation.sampling import Sampler
from llama_eagle.generation.stats import Statistics, phases
from llama_eagle.sessions.checkpoints import CheckpointStore
from llama_eagle.sessions.session import EagleSession
from llama_eagle.sessions.text import StopText, TextStream, Tokenizer
from llama_eagle.sessions.text_memory import TextMemory
from llama_eagle.vision.in_text import FIRST_ID, PicturesInText

OnText = Callable[[str, bool], None]
OnProgress = Callable[[float], None]


@dataclass(frozen=True)
class Watch:
    """Observers of a generation.

    on_text: called with each piece of text, and with True if the token that completes it was drafted. on_prompt: called
    with the fraction of the prompt that is evaluated, 0..1. compare: at the end, measure the time of plain decoding.
    """

    on_text: OnText | None = None
    on_prompt: OnProgress | None = None
    compare: bool = False


@dataclass(frozen=True)
class GenerationResult:
    """Result of one generation. Times are in ms.

    stop_reason: "end" (end-of-generation token), "length", "context" (full) or "stop" (at a stop text). plain_ms: time
    per token of plain decoding, measured at the end by decodes of one row; None: not measured. draft_device: ggml's
    name of the device that ran the draft model; None: unknown.
    """

    text: str
    tokens: list[int]
    n_prompt: int
    prompt_ms: float
    decode_ms: float
    stop_reason: str
    speculative: Statistics | None
    plain_ms: float | None = None
    draft_device: str | None = None

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
            "draft_device": self.draft_device,
            "speculative": self.speculative.as_dict() if self.speculative else None,
        }


def generate(
    session: EagleSession,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    options: GenerationOptions = GenerationOptions(),
    *,
    drafting: DraftingOptions = DraftingOptions(),
    length: DraftLength | None = None,
    pictures: PicturesInText | None = None,
    watch: Watch = Watch(),
) -> GenerationResult:
    """Evaluate `prompt` (token ids) and generate after it.

    `drafting`: the options of the drafters, in addition to the session's own draft. `length`: a draft-length policy
    that the caller keeps across generations, in place of `drafting.n_draft`; then only the first drafter is used.
    `pictures`: images that the prompt contains as negative ids. Raises `UsageError` for an empty prompt, `InputError`
    for a prompt that leaves no room for a token or contains ids outside the vocabulary.
    """
    tokens_of_text = [token for token in prompt if pictures is None or token > FIRST_ID]
    _check_prompt(session, tokenizer, prompt, tokens_of_text)
    stream = _Stream(TextStream(tokenizer), StopText(options.stop), watch.on_text)
    with (
        Sampler(options.sampling, tokenizer.n_vocab, tokenizer.vocab) as sampler,
        rejection_sampling(session, drafting, sampler) as own,
    ):
        drafters = choose_drafters(session, drafting)  # before the prompt: they report a text that exceeds the draft
        start = time.perf_counter()
        text = TextMemory(session, tokenizer.n_vocab, CheckpointStore(0), pictures=pictures)
        text.on_progress = watch.on_prompt
        text.extend(prompt)
        sampler.prime(tokens_of_text)
        prompt_end, before = time.perf_counter(), session.timings
        drafter = drafters[0] if drafters else None
        if length is None:
            sampled = drafting.draft_sampling == "rejection"
            expected = expected_times(session)
            n_draft = drafting.n_draft if session.n_draft_max else "auto"  # without a drafter it has no effect
            drafter, length = combine(drafters, n_draft, session.n_draft_max, expected, sampled=sampled)
        plan = Plan(sampler.handle, own or drafter, length, own, options.max_tokens)
        rounds = Rounds(text, plan)
        try:
            tokens, reason = _run(rounds, tokenizer, options, stream.push)
        finally:
            rounds.finish(stopped=True)
            save_lookups(drafters)
        stream.finish()
        decode_ms = (time.perf_counter() - prompt_end) * 1e3
    rounds.statistics.ms = phases(before, session.timings, decode_ms, plan.sample_ms)
    return GenerationResult(
        text="".join(stream.parts),
        tokens=tokens,
        n_prompt=len(prompt),
        prompt_ms=(prompt_end - start) * 1e3,
        decode_ms=decode_ms,
        stop_reason=reason,
        speculative=rounds.statistics if plan.drafter is not None else None,
        plain_ms=plain_ms(session, tokens) if watch.compare and rounds.statistics.n_drafted else None,
    )


def plain_ms(session: EagleSession, tokens: Sequence[int]) -> float | None:
    """Measure the mean time of a decode of one row that is not kept, in ms; None without room in the context.

    Runs at least three decodes and at least 100 ms.
    """
    if not tokens or session.n_room < 1:
        return None
    n_decodes, start = 0, time.perf_counter()
    while n_decodes < 3 or time.perf_counter() - start < 0.1:
        session.verify(tokens[-1:])
        session.commit(0)
        n_decodes += 1
    return (time.perf_counter() - start) * 1e3 / n_decodes


def _run(
    rounds: Rounds, tokenizer: Tokenizer, options: GenerationOptions, deliver: Callable[[int, bool], bool]
) -> tuple[list[int], str]:
    """Return the generated tokens and the reason of their end."""
    tokens: list[int] = []
    while (token := rounds.next_token()) is not None:
        if not options.ignore_eos and tokenizer.is_end(token):
            return tokens, "end"
        tokens.append(token)
        if deliver(token, rounds.was_drafted):
            return tokens, "stop"
        if len(tokens) == options.max_tokens:
            return tokens, "length"
        rounds.advance(token)
    return tokens, "context"


class _Stream:
    """Turns tokens into text, up to a stop text; keeps the text and passes it on."""

    def __init__(self, stream: TextStream, stop: StopText, on_text: OnText | None) -> None:
        self._stream = stream
        self._stop = stop
        self._on_text = on_text
        self.parts: list[str] = []

    def push(self, token: int, drafted: bool) -> bool:
        """Add a token; return True if the text ends here."""
        self._deliver(self._stop.push(self._stream.push((token,))), drafted)
        return self._stop.is_met

    def finish(self) -> None:
        self._deliver(self._stop.push(self._stream.finish()))
        self._deliver(self._stop.finish())

    def _deliver(self, piece: str, drafted: bool = False) -> None:
        self.parts.append(piece)
        if self._on_text is not None and piece:
            self._on_text(piece, drafted)


def _check_prompt(session: EagleSession, tokenizer: Tokenizer, prompt: Sequence[int], of_text: Sequence[int]) -> None:
    if not prompt:
        raise UsageError("the prompt is empty. Give at least one token.")
    tokenizer.require_ids(of_text)
    if len(prompt) > session.n_room:
        raise InputError(
            f"the prompt has {len(prompt)} tokens, {session.n_room} fit into the context. {session.longer_text}"
        )
