"""Grammar rules for numbers within the bounds of a schema, digit by digit. All raise `Fault`.

For bounds that are no numbers, that exclude each other, or that no number of a grammar reaches.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, NamedTuple

from llama_eagle.sessions.schemas.document import Fault, Schema
from llama_eagle.sessions.schemas.values import is_number, text_of

PLACES = 16  # decimal places of a number with a bound
LONGEST = 15  # digits of an integer without a bound
WIDEST = 10**20  # above the largest bound
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class Bound(NamedTuple):
    value: Decimal
    is_excluded: bool


class Fraction(NamedTuple):
    """The decimal digits of a bound, without zeros at their end."""

    digits: str = ""
    is_excluded: bool = False

    def rest(self) -> Fraction:
        return Fraction(self.digits[1:], self.is_excluded)


ANY = Fraction()


def number_rule(schema: Schema) -> str:
    """Return the rule of a schema of type integer or number, without exponents; "" if it has no bounds."""
    if not any(key in schema for key in BOUNDS):
        return ""
    n_places = _places_of(schema)
    is_integer = schema["type"] == "integer"
    if is_integer and "multipleOf" in schema and n_places:
        raise Fault(f"multipleOf {text_of(schema['multipleOf'])} is not supported for integers: use 1")
    low = _bound(schema, "minimum", "exclusiveMinimum", is_lower=True)
    high = _bound(schema, "maximum", "exclusiveMaximum", is_lower=False)
    if not is_integer and n_places:
        return f"({_numbers(low, high, n_places)})"
    least = None if low is None else math.floor(low.value) + 1 if low.is_excluded else math.ceil(low.value)
    most = None if high is None else math.ceil(high.value) - 1 if high.is_excluded else math.floor(high.value)
    return f"({_integers(least, most)})"


def _places_of(schema: Schema) -> int:
    """Return the decimal places that multipleOf allows: 0 for 1, 1 for 0.1."""
    unit: Any = schema.get("multipleOf")
    if "multipleOf" not in schema:
        return PLACES
    if is_number(unit):
        whole, fraction = _digits(_exact(unit))
        if unit > 0 and (whole == 1 if not fraction else (whole == 0 and int(fraction) == 1)):
            return len(fraction)
    raise Fault(f"multipleOf {text_of(unit)} is not supported: use 1, or 0.1, 0.01, ... for numbers")


def _exact(number: float) -> Decimal:
    """Return a number as JSON writes it, with all digits if it is a large integer."""
    return Decimal(number) if isinstance(number, int) or abs(number) >= 2**53 else Decimal(repr(number))


def _digits(value: Decimal) -> tuple[int, str]:
    """Return the integer part and the decimal digits of a number without its sign."""
    whole, _, fraction = f"{abs(value):f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _bound(schema: Schema, included: str, excluded: str, *, is_lower: bool) -> Bound | None:
    """Return the stricter one of two bounds. Those that every number of a grammar meets are left out."""
    found: Bound | None = None
    for key in (included, excluded):
        given: Any = schema.get(key)
        if key not in schema:
            continue
        if not is_number(given):
            raise Fault(f"{key} must be a number")
        bound = Bound(_exact(given), key == excluded)
        if abs(bound.value) >= WIDEST:
            if (bound.value < 0) != is_lower:
                raise Fault(f"{key} must be a number within 20 digits")
        elif found is None or (bound.value >= found.value if is_lower else bound.value <= found.value):
            found = bound
    return found


def _integers(low: int | None, high: int | None) -> str:
    if low is not None and high is not None and low > high:
        raise Fault(f"no integer is from {low} to {high}")
    rules = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        rules.append(f'"-" ({_naturals(least, None if low is None else -low)})')
    if high is None or high >= 0:
        rules.append(_naturals(max(low or 0, 0), high))
    return " | ".join(rules)


def _naturals(low: int, high: int | None) -> str:
    """Return a rule for the numbers of each length from `low`, at least 0, to `high`."""
    shortest = len(str(low))
    longest = max(LONGEST, shortest) if high is None else len(str(high))
    rules = []
    for length in range(shortest, longest + 1):
        least, most = 10 ** (length - 1) if length > 1 else 0, 10**length - 1
        rules.append(_between(str(max(low, least)), str(most if high is None else min(high, most))))
    return " | ".join(rules)


def _between(low: str, high: str) -> str:
    """Return a rule for the numbers between two of the same length."""
    n_left = len(low) - 1
    if not n_left:
        return f"[{low}-{high}]"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_between(low[1:], high[1:])})'
    first, last = int(low[0]), int(high[0])
    rules = []
    if low[1:].strip("0"):
        rules.append(f'"{first}" ({_between(low[1:], "9" * n_left)})')
        first += 1
    if high[1:].strip("9"):
        rules.append(f'"{last}" ({_between("0" * n_left, high[1:])})')
        last -= 1
    if first <= last:
        rules.append(f"[{first}-{last}] [0-9]{{{n_left}}}")
    return " | ".join(rules)


def _numbers(low: Bound | None, high: Bound | None, n_places: int) -> str:
    for bound in (low, high):
        if bound and len(_digits(bound.value)[1]) > PLACES:
            raise Fault(f"a bound has more than {PLACES} decimal places")
    rules = []
    if low is None or low.value < 0:
        least = high if high and high.value < 0 else Bound(Decimal(0), is_excluded=True)
        negative = _magnitudes(least, low, n_places)
        rules += [f'"-" ({negative})'] if negative else []
    if high is None or high.value >= 0:
        least = low if low and low.value >= 0 else Bound(Decimal(0), is_excluded=False)
        rules.append(_magnitudes(least, high, n_places))
    if not any(rules):
        raise Fault("no number is within its bounds")
    return " | ".join(filter(None, rules))


def _magnitudes(low: Bound, high: Bound | None, n_places: int) -> str:
    """Return a rule for the numbers between the sizes of two bounds; "" if there is none."""
    first, digits = _digits(low.value)
    last, last_digits = _digits(high.value) if high else (first + 1, "")
    if first > last:
        return ""
    begin, end = Fraction(digits, low.is_excluded), Fraction(last_digits, high.is_excluded) if high else None
    rules = [_with_fraction(f'"{first}"', begin, end if first == last else None, n_places)]
    if high is None or last - first > 1:
        rules.append(_with_fraction(f"({_naturals(first + 1, last - 1 if high else None)})", ANY, None, n_places))
    if high and last > first:
        rules.append(_with_fraction(f'"{last}"', ANY, end, n_places))
    return " | ".join(filter(None, rules))


def _with_fraction(whole: str, low: Fraction, high: Fraction | None, n_places: int) -> str:
    """Return the rule of an integer part and the fractions between two; "" if there is none."""
    may_end, more = _fractions(low, high, n_places)
    if not more:
        return whole if may_end else ""
    return f'{whole} ("." ({more}))?' if may_end else f'{whole} "." ({more})'


def _fractions(low: Fraction, high: Fraction | None, n_left: int) -> tuple[bool, str]:
    """Return whether a number may end without more digits, and the rule of those between two fractions."""
    may_end = low == ANY and high != Fraction("", is_excluded=True)
    if not n_left:
        return may_end, ""
    first, last = int(low.digits[:1] or 0), 9 if high is None else int(high.digits[:1] or 0)
    rules, free = [], []
    for digit in range(first, last + 1):
        rest_low = low.rest() if digit == first else ANY
        rest_high = high.rest() if high and digit == last else None
        if rest_low == ANY and rest_high is None:
            free.append(digit)
            continue
        ends, more = _fractions(rest_low, rest_high, n_left - 1)
        if ends or more:
            rules.append(f'"{digit}"' + (f" ({more}){'?' if ends else ''}" if more else ""))
    if free:
        rules.append(f"[{free[0]}-{free[-1]}]" + (f" [0-9]{{0,{n_left - 1}}}" if n_left > 1 else ""))
    return may_end, " | ".join(rules)
