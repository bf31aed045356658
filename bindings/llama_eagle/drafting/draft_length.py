"""How many tokens to draft in the next round.

Pure decisions: measured times are passed in, no clock is read here. Lengths and positions are in tokens, times in ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llama_eagle.errors import UsageError


@dataclass(frozen=True)
class RoundCost:
    """What one round did and took: `draft_ms` for drafting, `verify_ms` for everything that follows it."""

    n_draft: int
    n_accepted: int
    draft_ms: float
    verify_ms: float


class DraftLength(Protocol):
    """A policy. `choose` is asked before each round, `observe` is told after it."""

    def choose(self, n_max: int) -> int:
        """Tokens to draft now, at most `n_max`."""

    def observe(self, round_cost: RoundCost) -> None: ...


class Fixed:
    """Always the same length, where it fits."""

    def __init__(self, n_draft: int) -> None:
        if n_draft < 0:
            raise UsageError(f"a draft of {n_draft} tokens: give 0 or more.")
        self.n_draft = n_draft

    def choose(self, n_max: int) -> int:
        return min(self.n_draft, n_max)

    def observe(self, round_cost: RoundCost) -> None:
        pass
