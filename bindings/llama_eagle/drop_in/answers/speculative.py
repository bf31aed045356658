"""Limits on the drafts of one call: `speculative=` of `create_completion` and `create_chat_completion`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from llama_eagle.errors import ConfigError


@dataclass(frozen=True)
class Speculative:
    """Limits of a call. None: the value given when loading.

    n_max: maximum draft length, 0 for no drafts. n_min: shorter drafts are dropped. p_min: a draft ends when its
    cumulative probability falls below this.
    """

    n_max: int | None = None
    n_min: int = 0
    p_min: float | None = None


def read_speculative(given: Any, longest: int) -> Speculative:
    """Return the limits of a call.

    longest: the session's maximum draft length. Raises `ConfigError` for wrong values.
    """
    if given is None:
        return Speculative()
    if given == "none":
        return Speculative(n_max=0)
    names = [field.name for field in fields(Speculative)]
    if not isinstance(given, Mapping) or not set(given) <= set(names):
        raise ConfigError(f"speculative={given!r} is neither 'none' nor a dict of {', '.join(names)}. Correct it.")
    values = {name: value for name, value in given.items() if value is not None}
    n_max, n_min, p_min = values.get("n_max", longest), values.get("n_min", 0), values.get("p_min", 0.0)
    wrong = {
        f"n_max={n_max!r} is not from 0 to {longest}": not _is_count(n_max, longest),
        f"n_min={n_min!r} is not from 0 to n_max": not _is_count(n_min, n_max),
        f"p_min={p_min!r} is not in [0, 1)": not _is_share(p_min),
    }
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(f"speculative: {what}. Correct it.")
    return Speculative(**values)


def _is_count(value: Any, most: Any) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and (not isinstance(most, int) or 0 <= value <= most)


def _is_share(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value < 1
