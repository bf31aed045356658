"""Measures of a call of `EagleLlama`: its statistics, and `timings` in the format of llama.cpp's server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llama_eagle.generation.rounds import Rounds
from llama_eagle.generation.stats import Statistics, phases
from llama_eagle.sessions.session import Timings


@dataclass
class _Clock:
    """Times of one generation. An abandoned stream may still add to its own."""

    in_completion: bool = False
    before: Timings = field(default_factory=Timings)
    started: float = 0.0
    caller_ms: float = 0.0
    reader_ms: float = 0.0


class Measures:
    """Measures of the last call and of all calls. Times in ms. Time spent in the consumer of a stream is excluded."""

    def __init__(self) -> None:
        self.last, self.total = Statistics(), Statistics()
        self._n_prompt = self._n_evaluated = self._n_generated = 0
        self._prompt_ms = self._generation_ms = 0.0
        self._in_completion = False
        self._clock = _Clock()

    def begin(self, n_prompt: int, n_evaluated: int, prompt_ms: float, before: Timings) -> None:
        """Record the evaluated prompt: `n_evaluated` of its `n_prompt` tokens, the others were in memory."""
        self._n_prompt, self._n_evaluated, self._prompt_ms = n_prompt, n_evaluated, prompt_ms
        self._clock = _Clock(self._in_completion, before, time.perf_counter())

    def finish(self, rounds: Rounds, after: Timings) -> None:
        """Record the end of the generation."""
        clock = self._clock
        outside_ms = clock.reader_ms if clock.in_completion else clock.caller_ms
        self._generation_ms = _ms_since(clock.started) - outside_ms
        self._n_generated = rounds.n_delivered
        self.last = rounds.statistics
        self.last.ms = phases(clock.before, after, self._generation_ms, rounds.plan.sample_ms)
        self.total.add(self.last)

    @contextmanager
    def completion(self) -> Iterator[None]:
        """Mark that a completion calls `generate`.

        Time spent by that caller counts, time spent by the completion's reader does not.
        """
        self._in_completion = True
        try:
            yield
        finally:
            self._in_completion = False

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Measure the time that `generate` waits for its caller."""
        clock, start = self._clock, time.perf_counter()
        try:
            yield
        finally:
            clock.caller_ms += _ms_since(start)

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Measure the time that a completion waits for its reader."""
        clock, start = self._clock, time.perf_counter()
        try:
            yield
        finally:
            clock.reader_ms += _ms_since(start)

    def timings(self) -> dict[str, Any]:
        """Return the timings in the format of llama.cpp's server (tools/server/server-common.cpp, `server_slot_stats`).

        `cache_n` tokens of the prompt were in memory, `prompt_n` were evaluated. Rates count `predicted_n` - 1 tokens,
        because the first one results from the prompt. The draft's counts are omitted if nothing was drafted.
        """
        timings = {
            "cache_n": self._n_prompt - self._n_evaluated,
            **_rates("prompt", self._n_evaluated, self._n_evaluated, self._prompt_ms),
            **_rates("predicted", self._n_generated, max(self._n_generated - 1, 0), self._generation_ms),
        }
        if self.last.n_drafted:
            timings |= {"draft_n": self.last.n_drafted, "draft_n_accepted": self.last.n_accepted}
        return timings


def _rates(name: str, n: int, n_steps: int, ms: float) -> dict[str, float]:
    return {
        f"{name}_n": n,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / n_steps if n_steps else 0.0,
        f"{name}_per_second": n_steps / ms * 1e3 if ms else 0.0,
    }


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3
