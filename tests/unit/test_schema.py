"""Grammars of JSON schemas: bounds of numbers, and keys that are followed or refused by name."""

from __future__ import annotations

import json
import random
import re
import time
from decimal import Decimal
from typing import Any

import pytest
from fixtures.schemas import BARE, CONFLICTS, DEFINED, ENDLESS, RECURSIVE, SIBLINGS
from llama_eagle.errors import UsageError
from llama_eagle.sessions.schemas.document import MAX_LEVELS, MAX_NESTED
from llama_eagle.sessions.schemas.grammars import arguments_grammar, calls_grammar, schema_grammar
from llama_eagle.sessions.schemas.reduce import MAX_OPTIONAL

pytestmark = pytest.mark.native


def gbnf(schema: Any) -> str:
    return schema_grammar(schema)[0]


def unenforced(schema: Any) -> set[str]:
    return set(schema_grammar(schema)[1])


def rule_of(schema: Any) -> str:
    return dict(line.split(" ::= ", 1) for line in gbnf(schema).splitlines())["root"]


def integers(low: int | None, high: int | None) -> str:
    bounds = {"minimum": low, "maximum": high}
    return rule_of({"type": "integer", **{key: value for key, value in bounds.items() if value is not None}})


def matches(rule: str) -> re.Pattern[str]:
    """The same rule as a regular expression, which it is but for quotes and spaces."""
    return re.compile(rule.replace('"."', r"\.").replace('"', "").replace(" ", ""))


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
    rules = dict(line.split(" ::= ", 1) for line in gbnf(schema).splitlines())
    assert rules["a-item"] == rules["integer-"] == "([2-4])"
    assert gbnf({"type": "integer"}).startswith("integral-part")


def test_a_property_may_have_an_empty_name() -> None:
    for value in ({"const": 1}, {"type": "integer"}, {"properties": {"": {"const": 1}}}):
        schema = {"type": "object", "properties": {"": value, "root": {}}, "required": [""]}
        rules = dict(line.split(" ::= ", 1) for line in gbnf(schema).splitlines())
        assert rules["root"] == "ref-defs-root" and rules["ref-defs-root"].startswith('"{" space ref-defs-root--kv')


@pytest.mark.parametrize("name", ["n", "a/b~c%<ü"])
def test_references_by_anchor_are_places(name: str) -> None:
    """Names of properties and constants that look like references are none."""
    node = {"$anchor": "node", "type": "object", "properties": {"next": {"$ref": "#node"}, "$ref": {"const": "#node"}}}
    placed = json.loads(json.dumps(node | {"$anchor": None}))
    placed["properties"]["next"]["$ref"] = "#/$defs/n"
    schema = {"type": "array", "items": {"$ref": "#node"}, "$defs": {name: node}}
    expected = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": placed}}
    assert gbnf(schema).count("node") == gbnf(expected).count("node") == 1
    assert unenforced(schema) == unenforced(expected) == set()
    for grammar in (arguments_grammar, lambda function: calls_grammar([function])):
        with_anchor, with_place = (grammar({"name": "f", "parameters": each})[0] for each in (schema, expected))
        assert len(with_anchor.splitlines()) == len(with_place.splitlines())
    with pytest.raises(UsageError, match="#none"):
        gbnf({"$ref": "#none", "$defs": {"n": node}})


def test_required_keys_outweigh_what_another_part_excludes() -> None:
    one, other = ({"properties": {name: {}}, "required": [name], "additionalProperties": False} for name in "ab")
    assert gbnf({"allOf": [one, other]}) == gbnf({**one, "properties": {"a": {}, "b": {}}, "required": ["a", "b"]})
    assert unenforced({"allOf": [one, other]}) == {
        "additionalProperties for keys that another part of the schema requires"
    }


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(UsageError, match="no integer is from 5 to 4"):
        gbnf({"type": "integer", "minimum": 5, "exclusiveMaximum": 5})


FRACTIONS = ("", ".0", ".1", ".5", ".05", ".25", ".49", ".499", ".51", ".999", ".0000000000000001")
TEXTS = [f"{sign}{n}{part}" for sign in ("", "-") for n in [*range(15), 99, 100, 101, 999] for part in FRACTIONS]
BOUNDS = {
    "minimum": Decimal.__ge__, "maximum": Decimal.__le__,
    "exclusiveMinimum": Decimal.__gt__, "exclusiveMaximum": Decimal.__lt__,
}  # fmt: skip


def is_within(text: str, schema: dict[str, Any]) -> bool:
    value, places = Decimal(text), len(text.partition(".")[2])
    if text.startswith("-") and not value:
        return False
    held = all(compare(value, Decimal(repr(schema[key]))) for key, compare in BOUNDS.items() if key in schema)
    return held and ("multipleOf" not in schema or places <= len(repr(schema["multipleOf"])) - 2)


def test_a_rule_takes_the_numbers_between_its_bounds_and_no_others() -> None:
    draw = random.Random(3)
    for _ in range(150):
        schema: dict[str, Any] = {"type": "number"}
        for key in draw.sample(sorted(BOUNDS), draw.randint(1, 3)):
            value = round(draw.uniform(-15, 15), draw.randint(0, 3))
            schema[key] = draw.choice([0, 1, -1, 0.5, -0.5, 2.25, -10.05, draw.randint(-120, 120), value])
        if draw.random() < 0.2:
            schema["multipleOf"] = draw.choice([0.1, 0.01, 0.001])
        try:
            pattern = matches(rule_of(schema))
        except UsageError:
            assert not any(is_within(text, schema) for text in TEXTS), schema
            continue
        for text in TEXTS:
            assert bool(pattern.fullmatch(text)) == is_within(text, schema), (schema, text)


REFUSED = [
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "pattern with maxLength"),
    ({"pattern": "a", "minLength": 1}, "pattern with minLength"),
    ({"allOf": [{"type": "string", "pattern": "a"}, {"minLength": 2}]}, "pattern with minLength"),
    ({"type": "string", "format": "date", "minLength": 11}, "format date with minLength"),
    ({"type": "string", "format": "uuid4", "maxLength": 35}, "format uuid4 with maxLength"),
    ({"type": "integer", "multipleOf": 5}, "multipleOf 5"),
    ({"type": "number", "multipleOf": 0.25}, "multipleOf 0.25"),
    ({"type": "number", "minimum": 1e-30}, "decimal places"),
    ({"type": "number", "minimum": 2, "exclusiveMaximum": 2.0}, "no number is within its bounds"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "two values of pattern"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "exclude each other"),
    ({"type": "object", "properties": {"a": {}}, "required": None}, "required must be a list of names, not null"),
    ({"properties": []}, "properties must be an object"),
    ({"type": {}}, "type {} is not one of"),
    ({"type": ["string", "text"]}, "is not one of"),
    ({"enum": "a"}, "enum must be a list"),
    ({"anyOf": {}}, "anyOf must be a list"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=repr)
def test_what_cannot_be_followed_is_refused_by_name(schema: dict[str, Any], reason: str) -> None:
    for depth in (schema, {"type": "array", "items": schema}):
        with pytest.raises(UsageError, match=re.escape(reason)):
            gbnf(depth)


SAME = [
    ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, {"type": "string", "maxLength": 3}),
    (
        {"type": "string", "allOf": [{"minLength": 2, "maxLength": 9}, {"maxLength": 3, "title": "a"}]},
        {"type": "string", "minLength": 2, "maxLength": 3},
    ),
    (
        {"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "minimum": 3}]},
        {"type": "integer", "minimum": 3},
    ),
    ({"type": "string", "format": "date", "maxLength": 100}, {"type": "string", "format": "date"}),
    ({"minimum": 3}, {"type": "number", "minimum": 3}),
    ({"type": "number", "multipleOf": 1, "maximum": 5}, {"type": "integer", "maximum": 5}),
    ({"type": ["str", "None"]}, {"type": ["string", "null"]}),
    ({"type": "string", "enum": ["a", None, 5]}, {"enum": ["a"]}),
    ({"type": "string", "nullable": True, "enum": ["a", None, 5]}, {"enum": ["a", None]}),
    ({"type": ["integer", "null"], "enum": [1, 5.0, 9.5, None], "minimum": 4}, {"enum": [5.0, None]}),
    ({"enum": ["é", "ab", "abc"], "minLength": 2, "maxLength": 2}, {"enum": ["ab"]}),
    ({"enum": [{"a": 1}, {"b": 1}, [1]], "required": ["b"], "minItems": 2}, {"enum": [{"b": 1}]}),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}, {"minimum": 3}]}, {"enum": [3]}),
    (
        {"allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"maxLength": 5, "minimum": 3}]},
        {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string", "maxLength": 5}]},
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "null"}},
            "required": ["a"],
            "allOf": [{"properties": {"b": {"type": "string"}}, "required": ["b", "c"]}],
        },
        {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"type": "string"}, "c": {}},
            "required": ["a", "b", "c"],
        },
    ),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1}, {"prefixItems": [{"const": 1}], "maxItems": 1}),
    ({"items": False}, {"type": "array", "maxItems": 0}),
    (
        {"type": "dict", "properties": {"type": {"type": "float"}, "dict": {"type": "list", "items": {"type": "int"}}}},
        {"properties": {"type": {"type": "number"}, "dict": {"type": "array", "items": {"type": "integer"}}}},
    ),
]


@pytest.mark.parametrize(("schema", "other"), SAME, ids=repr)
def test_schemas_that_mean_the_same(schema: dict[str, Any], other: dict[str, Any]) -> None:
    assert gbnf(schema) == gbnf(other)


def test_further_names_are_json_and_no_listed_ones() -> None:
    named = {key: {"type": "integer"} for key in ("ab", "a]", "^x", 'q"')}
    schema = {"type": "object", "properties": named, "additionalProperties": {"type": "null"}}
    rules = dict(line.split(" ::= ", 1) for line in gbnf(schema).splitlines())
    hexadecimal = re.sub(r"\\U(.{8})", lambda found: "\\" + chr(int(found[1], 16)), rules["additional-k"])
    char = rules["char"].replace(" ", "").replace('"u"', "u")
    pattern = re.compile(hexadecimal.replace(" ", "").replace("char", f"(?:{char})"))
    for name in ("", "a", "abc", "b", "é", "x^", "q", "]"):
        assert pattern.fullmatch(json.dumps(name, ensure_ascii=False)), name
    for text in ('"ab"', '"a]"', '"^x"', '"\\"', '"a\\"', '"\n"', '"a\t"', '"a\\u0062"'):
        assert not pattern.fullmatch(text), text


def test_keys_without_a_grammar_are_named() -> None:
    values: list[dict[str, Any]] = [
        {"pattern": "b", "enum": ["a"]}, {"type": "string", "const": 1}, {"minimum": 4, "enum": [3]}
    ]  # fmt: skip
    for each in values:
        assert unenforced(each) == {next(iter(each))}
    listed = {"type": "array", "items": {"type": "string", "format": "email"}, "uniqueItems": True}
    schema = {"type": "object", "properties": {"a": listed, "contains": {"type": "string", "format": "date"}}}
    assert unenforced(schema) == {"format email", "uniqueItems"}
    assert unenforced({"type": "object", "minProperties": 0, "enum": [{"if": 1}], "title": "format"}) == set()
    assert unenforced({"anyOf": [{"type": "array", "contains": {}}, {"not": {"if": {}}}]}) == {"contains", "not"}
    assert unenforced({"properties": {"not": {"patternProperties": {"^a": {}}}}}) == {"patternProperties"}
    assert unenforced({"dependencies": {"a": ["b"]}}) == {"dependencies"}


KIND_A, KIND_B = ({"properties": {"kind": {"const": kind}, "x": {}}, "required": ["kind"]} for kind in "ab")
ONE_ONLY: list[dict[str, Any]] = [
    {"oneOf": [{"type": "integer"}, {"type": ["string", "null"]}, {"enum": [True]}]},
    {"oneOf": [{"const": 1}, {"enum": [2, 3]}]},
    {"oneOf": [KIND_A, KIND_B]},
    {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": KIND_A, "b": KIND_B}},
    {"oneOf": [{"properties": {"e": {}}, "required": ["e"]}, {"properties": {"p": {}}, "required": ["p"]}]},
]
OVERLAPPING: list[dict[str, Any]] = [
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}]},
    {"properties": {"e": {}, "p": {}}, "oneOf": [{"required": ["e"]}, {"required": ["p"]}]},
    {"oneOf": [KIND_A, KIND_A | {"required": []}]},
    {"oneOf": [KIND_A | {"additionalProperties": True}, {"properties": {"z": {}}, "required": ["z"]}]},
]


@pytest.mark.parametrize("schema", [*ONE_ONLY, *OVERLAPPING], ids=repr)
def test_one_of_is_named_where_a_value_may_fit_two_parts(schema: dict[str, Any]) -> None:
    assert unenforced(schema) == (set() if schema in ONE_ONLY else {"oneOf"})


REQUIRED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
        {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a", "b"]},
    ),
    (
        {"type": "object", "required": ["b"]},
        {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": True},
    ),
    (
        {"additionalProperties": {"type": "string"}, "required": ["b"]},
        {
            "properties": {"b": {"type": "string"}},
            "required": ["b"],
            "additionalProperties": {"type": "string"},
        },
    ),
    ({"properties": {"a": {}, "b": False}}, {"properties": {"a": {}}}),
]


@pytest.mark.parametrize(("schema", "other"), REQUIRED, ids=repr)
def test_required_keys_without_a_property_are_written(schema: dict[str, Any], other: dict[str, Any]) -> None:
    assert gbnf(schema) == gbnf(other)
    assert gbnf({"items": schema, "type": "array"}) == gbnf({"items": other, "type": "array"})


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "required key 'b' is not allowed": {"properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
    "required key 'a' is not allowed": {"properties": {"a": False}, "required": ["a"]},
    "prefixItems with items": {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    "minimum must be a number within 20 digits": {"type": "integer", "minimum": 10**20},
    "exclusiveMaximum must be a number within 20 digits": {"type": "number", "exclusiveMaximum": -(10**20)},
}


@pytest.mark.parametrize("reason", IMPOSSIBLE)
def test_schemas_that_a_grammar_would_get_wrong(reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        gbnf(IMPOSSIBLE[reason])


def test_bounds_of_64_bits_hold_and_greater_ones_are_never_reached() -> None:
    for low, high in ((-(2**63), 2**63 - 1), (0, 2**64 - 1), (2**63, None), (None, 2**64)):
        pattern = matches(integers(low, high))
        for value in (-(2**63) - 1, -(2**63), -1, 0, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1):
            longest = 19 if low == 2**63 else 15  # without a bound
            within = (low is None or value >= low) and (high is None or value <= high)
            allowed = within and (None not in (low, high) or len(str(abs(value))) <= longest or value * (high or 0) > 0)
            assert bool(pattern.fullmatch(str(value))) == allowed, (low, high, value)
    for wide in ({"maximum": 10**25, "minimum": -1.5e300}, {"exclusiveMaximum": 1.7e308}):
        assert gbnf({"type": "integer", **wide}) == gbnf({"type": "integer", "minimum": -1e30})


def test_a_strict_tool_that_has_no_grammar_is_named() -> None:
    """Also among many: 30 tools with eight bounded arrays each are within the limits."""
    arrays = {
        f"a{i}": {"type": "array", "maxItems": 50 + i, "items": {"type": "string", "maxLength": 90 + i}}
        for i in range(8)
    }
    tools = [{"name": f"t{i}", "parameters": {"type": "object", "properties": arrays}} for i in range(30)]
    assert calls_grammar(tools)[0]
    bad = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}}
    tools[17] |= {"parameters": bad, "strict": True}
    with pytest.raises(UsageError, match=r"^the tool 't17' is strict, .*minLength 5000 is above 2000"):
        calls_grammar(tools)
    tools[17] |= {"strict": False}
    assert calls_grammar(tools)[1] == ["minLength"]


def test_schemas_of_tools_are_left_open_where_they_have_no_grammar() -> None:
    """Each key with a fault, and no other one."""
    city = {"type": "string", "enum": ["Paris"]}
    for schema, _ in REFUSED:
        open_schema = {"type": "object", "properties": {"city": city, "other": schema}, "required": ["city"]}
        grammar, left = arguments_grammar({"name": "f", "parameters": open_schema})
        assert "Paris" in grammar and left, schema
    two = {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$", "maxLength": 5}]}
    kept, left = arguments_grammar({"name": "f", "parameters": {"properties": {"a": two}}})
    assert (kept, left) == (gbnf({"properties": {"a": {"type": "string", "pattern": "^a"}}}), ["maxLength", "pattern"])


def nested(n: int) -> dict[str, Any]:
    return {"type": "array", "items": nested(n - 1)} if n > 1 else {"type": "null"}


def chained(n: int) -> dict[str, Any]:
    """A chain of references with `n` levels."""
    links = {str(i): {"type": "array", "items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(1, n // 2)}
    return {"$ref": "#/$defs/1", "$defs": {**links, str(n // 2): {"type": "null"}}}


def optional(n: int) -> dict[str, Any]:
    return {"properties": {str(i): {"type": "null"} for i in range(n)}}


def doubled(n: int) -> dict[str, Any]:
    """A definition with 2**n alternatives."""
    pairs = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(n)}
    return {"$ref": "#/$defs/0", "$defs": {**pairs, str(n): {"type": "null"}}}


LIMITS: list[tuple[dict[str, Any], dict[str, Any], str]] = [  # within and beyond
    (nested(MAX_NESTED), nested(MAX_NESTED + 1), "nested deeper than 300 levels"),
    (chained(MAX_LEVELS), chained(MAX_LEVELS + 2), "nested deeper than 1000 levels"),
    (optional(MAX_OPTIONAL), optional(MAX_OPTIONAL + 1), "too many optional properties"),
    ({"properties": {"a" * 4096: {}}}, {"properties": {"é" * 2049: {}}}, "longer than 4096 bytes"),
    ({"type": "string", "minLength": 2000}, {"type": "string", "minLength": 2001}, "minLength 2001 is above 2000"),
    (doubled(10), doubled(60), "alternative of itself, or has too many"),
    (nested(2), {"anyOf": [{"$ref": "#"}]}, "alternative of itself, or has too many"),
    (nested(2), {"$ref": "#", "$defs": {"a": [None]}}, "alternative of itself"),
]


@pytest.mark.parametrize(("within", "beyond", "reason"), LIMITS, ids=[limit[2] for limit in LIMITS])
def test_limits(within: dict[str, Any], beyond: dict[str, Any], reason: str) -> None:
    """A tool with such a schema is left open."""
    assert gbnf(within)
    with pytest.raises(UsageError, match=reason):
        gbnf(beyond)
    grammar, left = arguments_grammar({"name": "f", "parameters": beyond})
    assert grammar and left


def test_a_schema_that_grows_without_end_takes_little_time() -> None:
    """Its levels are counted, and so is the time."""
    grows = {"properties": {name: {"$ref": "#/$defs/n", "required": [name]} for name in "ab"}}
    started = time.process_time()
    with pytest.raises(UsageError, match=r"nested deeper|takes more than|too large"):
        gbnf({"$ref": "#/$defs/n", "$defs": {"n": grows}})
    tool = {"name": "f", "parameters": {"properties": {"city": {"$ref": "#/$defs/n"}}, "$defs": {"n": grows}}}
    assert "city" in calls_grammar([tool])[0]
    assert time.process_time() - started < 60


LOOP = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}}  # a rule that begins with itself


@pytest.mark.parametrize("wide", [{"$ref": "#/$defs/a"}, {"properties": {str(i): {} for i in range(1001)}}])
def test_schemas_of_tools_beyond_the_limits_of_grammars_keep_their_names(wide: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "wide": wide}, **LOOP}
    for grammar, left in (
        arguments_grammar({"name": "f", "parameters": schema}),
        calls_grammar([{"name": "g"}, {"name": "f", "parameters": schema}]),
    ):
        assert "city" in grammar and "wide" in grammar
        assert "all limits of these tools' schemas" in left


@pytest.mark.parametrize(("schema", "merged"), SIBLINGS, ids=repr)
def test_keys_next_to_alternatives_and_references_hold(schema: dict[str, Any], merged: dict[str, Any]) -> None:
    assert gbnf(schema | DEFINED) == gbnf(merged | DEFINED)


def test_a_reference_that_implies_its_siblings_may_be_recursive() -> None:
    assert gbnf(RECURSIVE) == gbnf(BARE)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        *CONFLICTS,
        (ENDLESS, "nested deeper"),
        ({"$ref": "https://example.com/schema"}, "only references into the same document"),
        ({"$ref": "#/$defs/none"}, "cannot resolve"),
    ],
)
def test_siblings_that_cannot_be_merged(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        gbnf(schema)
