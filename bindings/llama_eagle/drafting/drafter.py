"""Interface of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llama_eagle.sessions.text import read_ids

NONE = "none"  # the name of rounds without a draft
OWN = "drafter"  # the name of a given drafter whose own name is in use


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


class OwnDrafter(Drafter):
    """Base of this package's drafters: what rounds use in addition to `Drafter`."""

    name = NONE
    is_model = False  # the session's own draft model
    lookup: Any = None  # handle of a native look-up; the policy of lengths calls it with the tokens accepted since
    p_min = 0.0  # a draft model's draft ends when its cumulative probability falls below this

    @property
    def source_name(self) -> str:
        """Name of the drafter that proposed the last round."""
        return self.name

    def finish(self) -> None:
        """End the generation."""

    def save(self) -> None:
        """Write what was learned to a file, if there is one."""


class GivenDrafter(OwnDrafter):
    """Adapter for a user's `Drafter`, whose proposals are checked."""

    def __init__(self, drafter: Drafter) -> None:
        name = str(getattr(drafter, "name", type(drafter).__name__))
        self.name = OWN if name == NONE else name
        self._drafter = drafter

    def begin(self, tokens: Sequence[int]) -> None:
        self._drafter.begin(tokens)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        """Return the drafter's proposal. Raises `UsageError` if that is no list of ids."""
        return read_ids(self._drafter.draft(id_last, n_max), f"{self.name}.draft()")[:n_max]

    def accept(self, tokens: Sequence[int]) -> None:
        self._drafter.accept(tokens)
