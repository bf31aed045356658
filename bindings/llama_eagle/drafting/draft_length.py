"""Draft-length policies: the number of tokens to draft in the next round.

Policies receive measured times and read no clock. Lengths and positions are in tokens, times in ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llama_eagle.errors import UsageError


@dataclass(frozen=True)
class RoundCost:
    """Results of one round: `draft_ms` is the time for drafting, `verify_ms` the time for the rest of the round."""

    n_draft: int
    n_accepted: int
    draft_ms: float
    verify_ms: float


class DraftLength(Protocol):
    """A draft-length policy: `choose` runs before each round, `observe` after it."""

    def choose(self, n_max: int) -> int:
        """Return the number of tokens to draft now, at most `n_max`."""

    def observe(self, round_cost: RoundCost) -> None: ...


class Fixed:
    """Policy with a fixed length, shortened if it does not fit."""

    def __init__(self, n_draft: int) -> None:
        if n_draft < 0:
            raise UsageError(f"the draft length is {n_draft} tokens. Give 0 or more.")
        self.n_draft = n_draft

    def choose(self, n_max: int) -> int:
        return min(self.n_draft, n_max)

    def observe(self, round_cost: RoundCost) -> None:
        pass
