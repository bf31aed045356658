"""Prompts for the text of a gap, from the tokens before and behind it and the infill tokens of a vocabulary."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tokens = Sequence[int]
PREFIX_SHARE = 0.75  # of the room, if prefix and suffix do not fit


@dataclass(frozen=True)
class InfillTokens:
    """Control tokens of a vocabulary. repository, file: before the names of both; -1: it has none."""

    prefix: int
    suffix: int
    middle: int
    repository: int = -1
    file: int = -1

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> InfillTokens | None:
        """Return the tokens {"pre", "suf", "mid", "rep", "sep"}; None if one of the first three is missing."""
        names = ("pre", "suf", "mid", "rep", "sep")
        found = cls(*(int(given.get(name, -1)) for name in names))
        return found if min(found.prefix, found.suffix, found.middle) >= 0 else None


@dataclass(frozen=True)
class Gap:
    """Tokens of the texts around a gap.

    begun: the beginning of the text in the gap. files: other files. opening, head: before the files, and behind them.
    """

    prefix: Tokens
    suffix: Tokens
    begun: Tokens = ()
    files: Sequence[Tokens] = ()
    opening: Tokens = ()
    head: Tokens = ()


def infill_prompt(
    infill: InfillTokens, gap: Gap, *, bos: Tokens = (), n_max: int | None = None, suffix_first: bool = False
) -> list[int]:
    """Return the prompt that the model continues with the text of the gap.

    bos: the tokens that begin every prompt. n_max: tokens of the prompt. What does not fit is left out: whole files,
    the first ones first, then the outer ends of prefix and suffix.
    """
    n_fixed = len(bos) + 3 + len(gap.begun)
    n_room = sys.maxsize if n_max is None else max(0, n_max - n_fixed)
    n_prefix, n_suffix = _shares(len(gap.prefix), len(gap.suffix), n_room)
    prefix = [infill.prefix, *gap.prefix[len(gap.prefix) - n_prefix :]]
    suffix = [infill.suffix, *gap.suffix[:n_suffix]]
    around = [*suffix, *prefix] if suffix_first else [*prefix, *suffix]
    return [*bos, *_before(gap, n_room - n_prefix - n_suffix), *around, infill.middle, *gap.begun]


def _shares(n_prefix: int, n_suffix: int, n_room: int) -> tuple[int, int]:
    """Return the numbers of tokens of prefix and suffix that are kept."""
    if n_prefix + n_suffix <= n_room:
        return n_prefix, n_suffix
    n_kept = min(n_prefix, max(int(n_room * PREFIX_SHARE), n_room - n_suffix))
    return n_kept, n_room - n_kept


def _before(gap: Gap, n_room: int) -> list[int]:
    """Return the tokens before the gap's own: those of other files that fit, with what encloses them."""
    n_left = n_room - len(gap.opening) - len(gap.head)
    if n_left < 0:
        return []
    kept: list[Tokens] = []
    for file in reversed(gap.files):
        if len(file) <= n_left:
            kept.append(file)
            n_left -= len(file)
    return [*gap.opening, *(token for file in reversed(kept) for token in file), *gap.head]
