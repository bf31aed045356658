"""JSON schemas of requests: keys next to $ref, oneOf and anyOf hold; what cannot be combined is refused by name.

In a tool's schema it is left open: a tool refuses no request unless it is strict.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.schemas import BARE, CONFLICTS, DEFINED, ENDLESS, RECURSIVE, SIBLINGS
from fixtures.serving import Served, serve
from fixtures.templates import serve_template
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = write_target(tmp_path_factory.mktemp("model") / "target.gguf")
    with serve("-m", target, "-d", "none", "-c", 256, "-t", 1) as running:
        yield running


def grammar(server: Served, schema: dict[str, Any]) -> str:
    status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 1, "json_schema": schema})
    assert status == 200, answer
    return str(answer["generation_settings"]["grammar"])


@pytest.mark.parametrize(("schema", "merged"), SIBLINGS, ids=repr)
def test_keys_next_to_alternatives_and_references_hold(
    server: Served, schema: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert grammar(server, schema | DEFINED) == grammar(server, merged | DEFINED)


def test_a_reference_that_implies_its_siblings_may_be_recursive(server: Served) -> None:
    assert grammar(server, RECURSIVE) == grammar(server, BARE)


def test_references_may_be_anchors_and_percent_encoded(server: Served) -> None:
    schema = {"$ref": "#n", "$defs": {"a b": {"$anchor": "n", "enum": [1, 2]}}}
    assert grammar(server, schema) == grammar(server, schema | {"$ref": "#/$defs/a%20b"})


def test_bounds_hold_that_are_no_integers(server: Served) -> None:
    """Those that no number of a grammar reaches are left out."""
    assert '"."' in grammar(server, {"type": "number", "minimum": 0.5, "maximum": 1.25})
    wide = grammar(server, {"type": "integer", "minimum": 5, "maximum": 1e300})
    assert wide == grammar(server, {"type": "integer", "minimum": 5})


def test_required_names_without_a_property_are_written(server: Served) -> None:
    own = {"a": {"type": "integer"}}
    schema = {"type": "object", "properties": own, "required": ["a", "b"]}
    assert grammar(server, schema) == grammar(server, schema | {"properties": {**own, "b": {}}})
    typed = {**schema, "additionalProperties": {"type": "null"}}
    assert grammar(server, typed) == grammar(server, typed | {"properties": {**own, "b": {"type": "null"}}})
    status, answer = server.post(
        "/completion", {"prompt": "abc", "n_predict": 1, "json_schema": schema | {"additionalProperties": False}}
    )
    assert status == 400 and "'b'" in answer["error"]["message"]


@pytest.mark.parametrize(("schema", "reason"), [*CONFLICTS, (ENDLESS, "nested deeper")])
def test_siblings_that_cannot_be_merged(server: Served, schema: dict[str, Any], reason: str) -> None:
    status, answer = server.post("/completion", {"prompt": "abc", "n_predict": 1, "json_schema": schema})
    assert status == 400 and reason in answer["error"]["message"]


TEXT = {"type": "string"}
ODD: dict[str, Any] = {
    "two patterns": {"allOf": [TEXT | {"pattern": "^a"}, {"pattern": "b$"}]},
    "a length next to a pattern": TEXT | {"pattern": "^a+$", "minLength": 2},
    "no pattern": TEXT | {"pattern": "("},
    "a pattern that looks ahead": TEXT | {"pattern": "^(?!a).*$"},
    "multiples": {"type": "integer", "multipleOf": 5, "minimum": 0},
    "no integer": {"type": "integer", "minimum": 5, "maximum": 4},
    "a text as a bound": {"type": "integer", "minimum": "1"},
    "a count below zero": {"type": "array", "minItems": -1},
    "a count above the most": TEXT | {"minLength": 5000},
    "another document": {"$ref": "https://example.com/schema"},
    "no definition": {"$ref": "#/$defs/none"},
    "itself": {"$ref": "#/properties/other"},
    "no type of JSON": {"type": "any"},
    "several types": {"type": ["string", "null", "array"], "items": TEXT},
    "no list of types": {"type": {}},
    "types that exclude each other": {"type": "string", "anyOf": [{"type": "integer"}]},
    "no schema": None,
    "a list": [TEXT],
    "no values": {"enum": []},
    "no alternatives": {"anyOf": []},
    "names as alternatives": {"anyOf": ["string", "null"]},
    "required by itself": TEXT | {"required": True},
    "a required key that is not allowed": {"required": ["a"], "properties": {}, "additionalProperties": False},
    "properties of null": {"type": "object", "properties": None},
    "a list of properties": {"type": "object", "properties": ["a"]},
    "items by name": {"type": "array", "items": "string"},
    "a list without items": {"type": "array"},
    "first items and others": {"type": "array", "prefixItems": [TEXT], "items": TEXT},
    "a name beyond the limit": {"properties": {"x" * 4097: TEXT}},
    "more optional properties than a grammar has": {"properties": {f"p{i}": TEXT for i in range(1001)}},
}
ODD_WHOLE: dict[str, Any] = {
    "a reference": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"city": TEXT}}}},
    "no object": TEXT, "properties of null": {"type": "object", "properties": None}, "a text": "object",
    "true": True, "null": None, "empty": {},
}  # fmt: skip
TEMPLATES = ["Qwen3.5-4B", "openai-gpt-oss-120b", "CohereForAI-c4ai-command-r-plus-tool_use"]


def requests_with(schema: Any, **more: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths and bodies of all APIs for a question with one tool."""
    asked, function = (
        [{"role": "user", "content": "a"}],
        {"name": "f", "description": "d", "parameters": schema, **more},
    )
    tool = {"type": "function", "function": function}
    yield "/apply-template", {"messages": asked, "tools": [tool]}
    yield "/apply-template", {"messages": asked, "tools": [tool], "tool_choice": "required"}
    tools = [{"name": "f", "description": "d", "input_schema": schema, **more}]
    yield "/v1/messages/count_tokens", {"messages": asked, "tools": tools}
    yield "/v1/responses", {"input": "a", "max_output_tokens": 1, "tools": [{"type": "function", **function}]}


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_schema_of_a_tool_refuses_a_request(tmp_path: Path, template: str) -> None:
    with serve_template(tmp_path, template, n_ctx=65536) as served:
        parameters = {name: {"type": "object", "properties": {"city": TEXT, "other": odd}} for name, odd in ODD.items()}
        for name, schema in [*parameters.items(), *ODD_WHOLE.items()]:
            for path, body in requests_with(schema):
                status, answer = served.post(path, body)
                is_long = status == 400 and answer["error"]["code"] == "context_length_exceeded"
                assert status == 200 or is_long, (name, path, answer)
        assert served.log().count("does not enforce pattern.") == 1


def test_a_strict_tool_with_a_fault_is_refused_by_name(server: Served) -> None:
    faulty = {"type": "object", "properties": {"a": ODD["no integer"]}}
    for path, body in requests_with(faulty, strict=True):
        status, answer = server.post(path, body)
        assert status == 400, path
        assert "the tool 'f' is strict" in answer["error"]["message"] and "no integer" in answer["error"]["message"]
