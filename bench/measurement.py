"""What one run measured, and the median of several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import median

from llama_eagle.generation.stats import NATIVE_PHASES, Statistics


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One way of decoding. Times are ms of a mean round; python_share is of the decoding time, None for peers."""

    tps: float  # tokens per second, prompt excluded
    accept_rate: float  # accepted / drafted
    mean_emitted: float  # tokens a round
    round_ms: float
    verify_ms: float
    draft_ms: float
    python_share: float | None = None

    @classmethod
    def of_rounds(cls, statistics: Statistics, n_tokens: int, ms: float) -> Measurement:
        """`n_tokens` took `ms` in all, of which Python's is what native code did not take."""
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
    """Field by field the median."""
    shares = [run.python_share for run in runs if run.python_share is not None]
    names = [field.name for field in dataclasses.fields(Measurement) if field.name != "python_share"]
    values = {name: median(getattr(run, name) for run in runs) for name in names}
    return Measurement(**values, python_share=median(shares) if shares else None)
