"""Grammar rules for numbers within the bounds of a JSON schema, digit by digit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

PLACES = 16  # decimal places of a number with a bound
LONGEST = 15  # digits of an integer without a bound, as in llama-cpp-python
WIDEST = 10**20 - 1  # largest bound; 64-bit integers have fewer digits
LOWER = ("minimum", "exclusiveMinimum")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def is_whole(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema allows integers only. Raises ValueError for a multipleOf that is not supported."""
    unit = schema.get("multipleOf", 1)
    is_whole = schema.get("type") == "integer" or (unit == 1 and "multipleOf" in schema)
    if (is_whole and unit != 1) or not is_number(unit) or unit not in [10**-n for n in range(PLACES)]:
        raise ValueError(f"multipleOf {unit!r} is not supported: use 1, or 0.1, 0.01, ... for numbers")
    return is_whole


def numbers(schema: Mapping[str, Any]) -> str:
    """Return a rule for the numbers within the bounds of a schema, without exponents.

    Raises ValueError if there is none.
    """
    schema = _within_reach(schema)
    places = round(-math.log10(schema["multipleOf"])) if "multipleOf" in schema else PLACES
    lows = [(_decimal(schema[key]), key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [(_decimal(schema[key]), key != "maximum") for key in ("maximum", "exclusiveMaximum") if key in schema]
    low, high = max(lows, default=None), min(highs, key=lambda bound: (bound[0], not bound[1]), default=None)
    parts = []
    if low is None or low[0] < 0:
        least = (Decimal(0), True) if high is None or high[0] >= 0 else (-high[0], high[1])
        negative = _magnitudes(least, None if low is None else (-low[0], low[1]), places)
        parts += [f'"-" ({negative})'] if negative else []
    if high is None or high[0] >= 0:
        least = (Decimal(0), False) if low is None or low[0] < 0 else low
        parts += filter(None, [_magnitudes(least, high, places)])
    if not parts:
        raise ValueError("no number is within its bounds")
    return " | ".join(parts)


Bound = tuple[Decimal, bool]  # value, True if excluded


def _decimal(value: float) -> Decimal:
    found = Decimal(repr(value))
    if int(found.normalize().as_tuple().exponent) < -PLACES:
        raise ValueError(f"the bound {value} has more than {PLACES} decimal places")
    return found


def _magnitudes(low: Bound, high: Bound | None, places: int) -> str:
    """Return a rule for the numbers between two non-negative bounds; "" if there is none."""
    first, last = int(low[0]), None if high is None else int(high[0])
    if last is not None and first > last:
        return ""
    parts = [_with_fraction(first, _digits_of(low), _digits_of(high) if last == first and high else None, places)]
    if last is None or last - first > 1:
        between = " | ".join(_naturals(first + 1, None if last is None else last - 1))
        parts.append(f"({between}){_written(True, _fractions(ANY, None, places)[1])}")
    if last is not None and high is not None and last > first:
        parts.append(_with_fraction(last, ANY, _digits_of(high), places))
    return " | ".join(filter(None, parts))


Fraction = tuple[str, bool]  # decimal digits, True if excluded
ANY: Fraction = ("", False)


def _digits_of(bound: Bound) -> Fraction:
    digits = format(bound[0] % 1, "f").partition(".")[2].rstrip("0")
    return digits, bound[1]


def _with_fraction(whole: int, low: Fraction, high: Fraction | None, places: int) -> str:
    may_end, more = _fractions(low, high, places)
    return f'"{whole}"{_written(may_end, more)}' if may_end or more else ""


def _written(may_end: bool, more: str) -> str:
    return "" if not more else f' ("." ({more}))?' if may_end else f' "." ({more})'


def _fractions(low: Fraction, high: Fraction | None, left: int) -> tuple[bool, str]:
    """Return True if the fraction may have no digits at all, and a rule for its digits ("" if there is none)."""
    may_end = low == ANY and high != ("", True)
    if not left:
        return may_end, ""
    first, last = int(low[0][:1] or 0), 9 if high is None else int(high[0][:1] or 0)
    free, parts = [], []
    for digit in range(first, last + 1):
        rest_low = (low[0][1:], low[1]) if digit == first else ANY
        rest_high = None if high is None or digit < last else (high[0][1:], high[1])
        if rest_low == ANY and rest_high is None:
            free.append(digit)
            continue
        ends, more = _fractions(rest_low, rest_high, left - 1)
        if ends or more:
            parts.append(f'"{digit}"' + ("" if not more else f" ({more})?" if ends else f" ({more})"))
    if free:
        parts.append(f"[{free[0]}-{free[-1]}]" + (f" [0-9]{{0,{left - 1}}}" if left > 1 else ""))
    return may_end, " | ".join(parts)


def _within_reach(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop bounds that no number of a grammar reaches, which has at most as many digits as `WIDEST`.

    Raises ValueError for bounds that are no numbers, and for those that exclude all numbers of a grammar.
    """
    found = dict(schema)
    for key in BOUNDS:
        if key not in schema:
            continue
        if not is_number(schema[key]) or not math.isfinite(schema[key]):
            raise ValueError(f"{key} must be a number")
        if (schema[key] > WIDEST and key in LOWER) or (schema[key] < -WIDEST and key not in LOWER):
            raise ValueError(f"{key} must be a number within 20 digits")
        if abs(schema[key]) > WIDEST:
            del found[key]
    return found


def bounds(schema: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the least and the greatest integer within the bounds of a schema; None without a bound."""
    schema = _within_reach(schema)
    lows = [math.ceil(schema["minimum"])] if "minimum" in schema else []
    lows += [math.floor(schema["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in schema else []
    highs = [math.floor(schema["maximum"])] if "maximum" in schema else []
    highs += [math.ceil(schema["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in schema else []
    return max(lows, default=None), min(highs, default=None)


def integers(low: int | None, high: int | None) -> str:
    """Return a rule for the integers from `low` to `high`.

    None as a bound allows any integer of up to LONGEST digits. Raises ValueError if there is no such integer.
    """
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
    """Yield a rule for the numbers of each length."""
    longest = max(LONGEST, len(str(low))) if high is None else len(str(high))
    for length in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        most = 10**length - 1
        yield _digits(str(least), str(most if high is None else min(high, most)))


def _digits(low: str, high: str) -> str:
    """Return a rule for the numbers between two of the same length."""
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


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
