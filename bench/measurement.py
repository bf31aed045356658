"""Measurements of one run, and the median of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median

from llama_eagle.generation.stats import NATIVE_PHASES, Statistics


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Speed and mean round times (ms) of one way to decode; `python_share` is a fraction of the decoding time."""

    tps: float  # tokens per second, prompt excluded
    accept_rate: float  # accepted / drafted
    mean_emitted: float  # tokens per round
    round_ms: float
    verify_ms: float
    draft_ms: float
    python_share: float | None = None  # None: not measured (llama.cpp's tools)

    @classmethod
    def of_rounds(cls, statistics: Statistics, n_tokens: int, ms: float) -> Measurement:
        """Build a measurement from `n_tokens` in `ms`; time outside of native code counts as Python's."""
        rounds = max(1, statistics.rounds)
        return cls(
            tps=n_tokens / ms * 1e3,
            accept_rate=statistics.accept_rate,
            mean_emitted=statistics.mean_emitted,
            round_ms=ms / rounds,
            verify_ms=statistics.ms["verify"] / rounds,
            draft_ms=statistics.ms["draft"] / rounds,
            python_share=1 - sum(statistics.ms[phase] for phase in NATIVE_PHASES) / ms,
        )


def middle(runs: Sequence[Measurement]) -> Measurement:
    """Return the median of each field."""
    shares = [run.python_share for run in runs if run.python_share is not None]
    names = [field.name for field in dataclasses.fields(Measurement) if field.name != "python_share"]
    values = {name: median(getattr(run, name) for run in runs) for name in names}
    return Measurement(**values, python_share=median(shares) if shares else None)
