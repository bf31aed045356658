"""The interface of what proposes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Proposes tokens that may come next. Verification decides; a bad proposal costs time, never correctness."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A generation starts; `tokens` are in the target's memory."""

    def draft(self, id_last: int, n_max: int) -> list[int]:
        """Up to `n_max` tokens to follow `id_last`, which follows everything begun with and accepted."""

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens are in the target's memory now, after the earlier ones."""


def name_of(drafter: Drafter | None) -> str:
    """What reports call it; of a class that is not ours, its name."""
    return "none" if drafter is None else str(getattr(drafter, "name", type(drafter).__name__))


def who_drafted(drafter: Drafter | None, n_draft: int) -> str:
    """The name of what proposed the `n_draft` tokens of the last round; "none" for none."""
    return str(getattr(drafter, "used", name_of(drafter))) if n_draft else "none"
