"""Grammar rules of patterns, by the library (eagle_pattern_rule)."""

from __future__ import annotations

from ctypes import create_string_buffer
from functools import lru_cache
from typing import Any

from llama_eagle.native.calls import OK, last_error, library
from llama_eagle.sessions.schemas.document import Fault

MAX_RULE = 1 << 20  # bytes


def pattern_rule(pattern: Any) -> str:
    """Return the rule of the texts that match a pattern; "" for an empty one. Raises `Fault`."""
    if not isinstance(pattern, str):
        raise Fault("pattern must be a string")
    if "\0" in pattern:
        raise Fault("a pattern holds a null character: write \\x00")
    return _rule(pattern) if pattern else ""


@lru_cache(maxsize=256)
def _rule(pattern: str) -> str:
    rule = create_string_buffer(MAX_RULE)
    if library().eagle_pattern_rule(pattern.encode("utf-8", "replace"), rule, MAX_RULE) != OK:
        raise Fault(last_error())
    return rule.value.decode()
