"""JSON schemas as grammars: llama-cpp-python's converter, with the bounds of integers that it leaves out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from llama_cpp.llama_grammar import RESERVED_NAMES, SchemaConverter

LONGEST = 15  # digits of an integer without a bound, as llama-cpp-python has it
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def gbnf(schema: str) -> str:
    """The grammar of a schema's values. Raises whatever the converter raises for one that it cannot express."""
    converter = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    converter.visit(converter.resolve_refs(json.loads(schema), "stdin"), "")
    return str(converter.format_grammar())


class _Converter(SchemaConverter):
    def visit(self, schema: Mapping[str, Any], name: str) -> str:
        is_bounded = schema.get("type") == "integer" and any(key in schema for key in BOUNDS)
        if not is_bounded or "enum" in schema or "const" in schema:
            return str(super().visit(schema, name))
        rule_name = f"{name}-" if name in RESERVED_NAMES else name or "root"
        return str(self._add_rule(rule_name, f"({integers(*_bounds(schema))}) space"))


def _bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    lows = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    lows += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    highs = [math.floor(schema["maximum"])] if "maximum" in schema else []
    highs += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    return max(lows, default=None), min(highs, default=None)


def integers(low: int | None, high: int | None) -> str:
    """A rule for the integers from `low` to `high`, None: any of up to LONGEST digits. Raises ValueError for none."""
    if low is not None and high is not None and low > high:
        raise ValueError(f"no integer is from {low} to {high}")
    parts = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        parts.append(f'"-" ({" | ".join(_naturals(least, None if low is None else -low))})')
    if high is None or high >= 0:
        parts += _naturals(max(low or 0, 0), high)
    return " | ".join(parts)


def _naturals(low: int, high: int | None) -> Iterator[str]:
    """Rules for the numbers of each length."""
    longest = max(LONGEST, len(str(low))) if high is None else len(str(high))
    for length in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        most = 10**length - 1
        yield _digits(str(least), str(most if high is None else min(high, most)))


def _digits(low: str, high: str) -> str:
    """The numbers between two of the same length."""
    n_left = len(low) - 1
    zeros, nines = "0" * n_left, "9" * n_left
    if not n_left:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_digits(low[1:], high[1:])})'
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:] != zeros:
        parts.append(f'"{first}" ({_digits(low[1:], nines)})')
        first += 1
    if high[1:] != nines:
        parts.append(f'"{last}" ({_digits(zeros, high[1:])})')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] [0-9]{{{n_left}}}")
    return " | ".join(parts)
