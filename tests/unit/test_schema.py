"""Grammars of JSON schemas: the bounds of integers."""

from __future__ import annotations

import json
import random
import re

import pytest
from llama_eagle.drop_in.chat import grammar_of_schema
from llama_eagle.errors import UsageError
from llama_eagle.generation.schema import gbnf, integers


def matches(rule: str) -> re.Pattern[str]:
    """The same rule as a regular expression, which it is but for quotes and spaces."""
    return re.compile(rule.replace('"', "").replace(" ", ""))


def test_a_rule_takes_the_integers_between_its_bounds_and_no_others() -> None:
    draw = random.Random(1)
    bounds = [(0, 9), (10, 99), (-5, 5), (0, 0), (-7, -3), (99, 101), (None, -1), (None, 0), (1, None), (0, None)]
    bounds += [tuple(sorted((draw.randint(-1500, 1500), draw.randint(-1500, 1500)))) for _ in range(40)]
    for low, high in bounds:
        pattern = matches(integers(low, high))
        for value in range(-1600, 1601):
            allowed = (low is None or value >= low) and (high is None or value <= high)
            assert bool(pattern.fullmatch(str(value))) == allowed, (low, high, value)
        assert not pattern.fullmatch("007") and not pattern.fullmatch("-0") and not pattern.fullmatch("")


def test_an_open_range_ends_at_fifteen_digits() -> None:
    pattern = matches(integers(3, None))
    assert pattern.fullmatch("9" * 15) and not pattern.fullmatch("9" * 16)


def test_a_schema_has_the_bounds_at_any_depth() -> None:
    bounded = {"type": "integer", "exclusiveMinimum": 1.5, "maximum": 4}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": bounded}, "integer": bounded}}
    rules = dict(line.split(" ::= ", 1) for line in gbnf(json.dumps(schema)).splitlines())
    assert rules["a-item"] == rules["integer-"] == "([2-4]) space"
    assert gbnf(json.dumps({"type": "integer"})).startswith("integral-part")


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(UsageError, match="no integer is from 5 to 4"):
        grammar_of_schema('{"type": "integer", "minimum": 5, "exclusiveMaximum": 5}')
