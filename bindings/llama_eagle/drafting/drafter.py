"""Interface of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llama_eagle.sessions.text import read_ids

NONE = "none"  # the name of rounds without a draft
OWN = "drafter"  # the name of a drafter whose own name is reserved


class Drafter(Protocol):
    """Proposes tokens that may follow.

    A wrong proposal costs time but never changes the text, because it is verified.
    """

    def begin(self, tokens: Sequence[int]) -> None:
        """Start a generation; `tokens` are in the target's memory."""

    def draft(self, id_last: int, n_max: int) -> list[int]:
        """Return up to `n_max` tokens to follow `id_last`, which follows all tokens begun with and accepted."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append tokens that are now in the target's memory, after the earlier ones."""


def drafted(drafter: Drafter, id_last: int, n_max: int) -> list[int]:
    """Return at most `n_max` tokens proposed by `drafter`. Raises `UsageError` if it returns no list of ids."""
    return read_ids(drafter.draft(id_last, n_max), f"{name_of(drafter)}.draft()")[:n_max]


def name_of(drafter: Drafter | None) -> str:
    """Return the drafter's name in reports; for a class that is not ours, the class name."""
    if drafter is None:
        return NONE
    name = str(getattr(drafter, "name", type(drafter).__name__))
    return OWN if name == NONE else name
