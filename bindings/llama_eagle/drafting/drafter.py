"""The interface of what proposes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llama_eagle.sessions.text import read_ids

NONE = "none"  # the name of rounds without a draft
OWN = "drafter"  # of a drafter whose name means something else


class Drafter(Protocol):
    """Proposes tokens that may come next. Verification decides; a bad proposal costs time, never correctness."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A generation starts; `tokens` are in the target's memory."""

    def draft(self, id_last: int, n_max: int) -> list[int]:
        """Up to `n_max` tokens to follow `id_last`, which follows everything begun with and accepted."""

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens are in the target's memory now, after the earlier ones."""


def drafted(drafter: Drafter, id_last: int, n_max: int) -> list[int]:
    """At most `n_max` tokens that `drafter` proposes. Raises `UsageError` for an answer that is no list of ids."""
    return read_ids(drafter.draft(id_last, n_max), f"{name_of(drafter)}.draft()")[:n_max]


def name_of(drafter: Drafter | None) -> str:
    """What reports call it; of a class that is not ours, its name."""
    if drafter is None:
        return NONE
    name = str(getattr(drafter, "name", type(drafter).__name__))
    return OWN if name == NONE else name
