"""Types of tool arguments that a model writes between tags: the schema decides, by llama.cpp's parser."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from fixtures.upstream import source_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_eagle.drop_in.answers.values import property_of, value_of, with_properties
from llama_eagle.drop_in.replies import CALL, FormattedReply, Part
from llama_eagle.errors import UsageError
from llama_eagle.generation.options import sampler_seed
from llama_eagle.sessions.chat import Reply

pytestmark = pytest.mark.native

STRING, NULL, INTEGER, BOOLEAN = ({"type": kind} for kind in ("string", "null", "integer", "boolean"))
OPTIONAL = {"anyOf": [STRING, NULL]}
DEFS = {
    "Name": STRING, "Count": {"$ref": "#/$defs/Number"}, "Number": INTEGER, "Color": {"enum": ["1", "2"]},
    "Circle": {"$ref": "#/$defs/Circle"}, "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"$ref": "#/$defs/Tree"}]},
    "a/b~c d": STRING, "Either": {"anyOf": [INTEGER, STRING]},
}  # fmt: skip


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


CASES: list[tuple[Any, str, Any]] = [
    (STRING, "12345", "12345"), (STRING, "true", "true"), (STRING, "", ""), (STRING, " a ", " a "),
    (OPTIONAL, "12345", "12345"), (OPTIONAL, "null", None), (OPTIONAL, "None", "None"), (OPTIONAL, "{}", "{}"),
    ({"oneOf": [STRING, NULL]}, "1.5", "1.5"), ({"type": ["string", "null"]}, "7", "7"),
    ({"type": ["string", "null"]}, "null", None), ({"type": "string", "nullable": True}, "7", "7"),
    ({"type": "string", "nullable": True}, "null", "null"), ({"type": ["string", "integer"]}, "7", 7),
    ({"type": ["string", "integer"]}, "seven", "seven"), ({"type": ["string", "integer"]}, "[7]", "[7]"),
    ({"enum": ["1", "2"]}, "1", "1"), ({"enum": [1, 2]}, "1", 1), ({"enum": [True, None]}, "None", None),
    ({"const": "5"}, "5", "5"), ({"const": 5}, "5", 5), ({"const": None}, "null", None),
    ({"pattern": "^[0-9]+$"}, "12", "12"), ({"minimum": 3}, "12", 12), ({"format": "date"}, "2024", "2024"),
    (ref("Name"), "12", "12"), (ref("Count"), "12", 12), (ref("Color"), "1", "1"),
    ({"anyOf": [ref("Name"), NULL]}, "12", "12"), ({"allOf": [ref("Name")]}, "12", "12"),
    ({"allOf": [ref("Count"), {"minimum": 3}]}, "12", 12), (ref("a~1b~0c%20d"), "12", "12"),
    (ref("Either/anyOf/1"), "12", "12"), (ref("Either/anyOf/2"), "12", 12), (ref("Either/anyOf/x"), "12", 12),
    (ref("Circle"), "12", 12), (ref("Tree"), "x", "x"), (ref("nothing"), "12", 12), ({"$ref": "http://x"}, "12", 12),
    (BOOLEAN, "True", True), (BOOLEAN, "false", False), (BOOLEAN, "maybe", "maybe"), (BOOLEAN, "1", 1),
    (NULL, "None", None), (INTEGER, "12", 12), (INTEGER, "12.0", 12.0), (INTEGER, "twelve", "twelve"),
    ({"type": "number"}, "1e3", 1e3), ({"type": "number"}, "NaN", "NaN"), ({"type": "number"}, "1e999", float("inf")),
    (INTEGER, "9" * 400, int("9" * 400)),
    ({"type": "array"}, "['a', True, None, \"it's\"]", ["a", True, None, "it's"]),
    ({"type": "object"}, "{'k': 'say \"hi\"', 'True': 'it\\'s'}", {"k": 'say "hi"', "True": "it's"}),
    ({"type": "object"}, '{"a": {"b": "True"}}', {"a": {"b": "True"}}), ({"items": STRING}, "[1]", [1]),
    ({"type": "float"}, "2.5", 2.5), ({"type": "bool"}, "True", True), ({"type": ["str", "None"]}, "12", "12"),
    ({"type": "dict"}, '{"x": 1}', {"x": 1}),
    ({}, "12", 12), ({}, "text", "text"), ({}, '"quoted"', '"quoted"'), (True, "12", 12), (None, "12", 12),
    ({"type": 5, "anyOf": "x", "enum": {}}, "x", "x"), ({"anyOf": []}, "12", 12),
]  # fmt: skip


@lru_cache
def template() -> str:
    return (source_folder() / "models/templates/Qwen3-Coder.jinja").read_text()


def parts(parameters: Any, text: str) -> list[Part]:
    """Return what is read of a call with the argument x."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": with_properties(parameters)}}]
    messages = [{"role": "user", "content": "Q"}]
    reply = Reply(template=template(), bos="", eos="", messages=messages, tools=tools, chat_template_kwargs={})
    reader = FormattedReply(reply, {"f": parameters}, "<|im_start|>assistant\n")
    call = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    return [*reader.read(call), *reader.finish()]


def value(parameters: Any, text: str) -> Any:
    (part,) = parts(parameters, text)
    assert (part.kind, part.name, part.is_whole) == (CALL, "f", True)
    return json.loads(part.text)["x"]


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "$defs": DEFS}


@pytest.mark.parametrize(("schema", "text", "expected"), CASES)
def test_the_schema_decides(schema: Any, text: str, expected: Any) -> None:
    found = value(of(schema), text)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("integer", "7", 7), ("integer", "2.0", 2.0), ("integer", "2.5", "2.5"), ("number", "2.5", 2.5),
        ("number", "7", 7), ("number", "true", "true"), ("boolean", "True", True), ("null", "None", None),
        ("string", "7", "7"), ("array", "['a']", ["a"]), ("object", "[1]", "[1]"), ("object", "{'a': 1}", {"a": 1}),
    ],
)  # fmt: skip
def test_the_type_of_an_argument_that_arrives_as_text(kind: str, text: str, expected: Any) -> None:
    root = of({"type": kind})
    found = value_of(text, property_of(root, "x"), root)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("place", "expected"),
    [("anyOf/0", 7), ("anyOf/1", "7"), ("anyOf/2", 7), ("anyOf/-1", 7), ("anyOf/x", 7), ("anyOf/0/x", 7), ("x", 7)],
)
def test_references_into_lists(place: str, expected: Any) -> None:
    """One that leads nowhere says nothing about the type, as in llama.cpp's parser."""
    root = of(ref(f"Either/{place}"))
    found = value_of("7", property_of(root, "x"), root)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Arguments", "$defs": {"Arguments": {"properties": {"x": STRING}}}},
        {"allOf": [{"properties": {"y": INTEGER}}, {"properties": {"x": STRING}}]},
        {"anyOf": [{"properties": {"x": STRING}}, {"properties": {"y": STRING}}]},
    ],
)
def test_where_a_property_may_be_described(schema: Any) -> None:
    assert value(schema, "12") == "12"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=40)
@given(given_value=JSON)
def test_what_is_written_comes_back(given_value: Any) -> None:
    kind = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}.get(
        type(given_value), "array" if isinstance(given_value, list) else "object"
    )
    text = given_value if kind == "string" else json.dumps(given_value)
    assert value(of({"type": kind}), text) == given_value
    if kind != "string":
        assert value(of({"type": [kind, "string"]}), text) == given_value


SCHEMAS = st.recursive(
    st.sampled_from([{}, True, None, 5, "x", [], STRING, NULL, ref("Tree"), {"$ref": "#"}, {"type": ["null", 3]}]),
    lambda inner: st.fixed_dictionaries(
        {}, optional={key: st.lists(inner, max_size=2) | inner for key in ("anyOf", "allOf", "oneOf", "enum", "type")}
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=40)
@given(schema=SCHEMAS, text=st.text(alphabet="12'\"\\TrueNone[]{}:, ", max_size=12))
def test_odd_schemas_and_texts_give_some_parts(schema: Any, text: str) -> None:
    """A call, or its text as content."""
    found = parts(of(schema), text)
    assert found
    assert all(part.kind != CALL or json.loads(part.text) is not None for part in found if part.is_whole)


@pytest.mark.parametrize("seed", [0, 5, 2**32 - 2, 2**32, 2**40 + 5, 2**63 - 1, 2**63, 2**64 - 2, -2, -(2**63)])
def test_seeds_are_mixed_as_by_the_server(seed: int) -> None:
    """eagle_seed of native/src/llama-common/eagle_requests.h, in the arithmetic of its types."""
    with np.errstate(over="ignore"):
        product = np.array([seed % 2**64], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = seed if 0 <= seed < 2**32 else int((product >> np.uint64(32)).astype(np.uint32)[0])
    assert sampler_seed(seed) == expected
    assert sampler_seed(-1) == sampler_seed(2**64 - 1) == 2**32 - 1
    for refused in (2**64, -(2**63) - 1):
        with pytest.raises(UsageError, match="at most 64 bits"):
            sampler_seed(refused)
