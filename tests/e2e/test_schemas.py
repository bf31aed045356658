"""Schemas as clients send them: any value that a grammar allows is JSON, and within the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from llama_eagle import EagleLlama

    path: Path = tmp_path_factory.mktemp("model") / "target.gguf"
    write_target(path)
    with EagleLlama(path, n_ctx=4096, draft="none", seed=1) as model:
        yield model


def answers(llm: Any, schema: Any, n: int = 6) -> Iterator[Any]:
    """Values of finished answers at a high temperature: each is JSON."""
    from llama_eagle.drop_in.chat import grammar_of_schema

    grammar = grammar_of_schema(schema)
    for seed in range(n):
        done = llm.create_completion("a", max_tokens=400, temperature=2.0, seed=seed, grammar=grammar)["choices"][0]
        if done["finish_reason"] == "stop":
            yield json.loads(done["text"])


@pytest.mark.parametrize(
    "value",
    ['say "hi"', "C:\\new", "a\\b", "line\nbreak", "\\d", "\\u0041", "😀", "tab\there", "", 1.5, None, [1, "x"]],
)
def test_constants_are_kept(llm: Any, value: Any) -> None:
    assert list(answers(llm, {"const": value}, 1)) == [value]
    assert list(answers(llm, {"enum": [value]}, 1)) == [value]


@pytest.mark.parametrize("key", ['a"b', "a\\b", "new\nline", "é"])
def test_names_of_properties_are_kept(llm: Any, key: str) -> None:
    schema = {"type": "object", "properties": {key: {"const": 1}}, "required": [key]}
    assert list(answers(llm, schema, 1)) == [{key: 1}]


def test_strings_hold_no_raw_control_characters(llm: Any) -> None:
    for schema in ({"type": "string"}, {"type": "string", "minLength": 30}, {"properties": {"a": {"type": "string"}}}):
        list(answers(llm, schema, 8))


NODE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"v": {"const": 1}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }
    },
}


def test_a_recursive_model(llm: Any) -> None:
    for value in answers(llm, NODE):
        while value is not None:
            assert value["v"] == 1
            value = value["next"]


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {}, "type": "array"},
        {"type": "object", "properties": {"a": {"title": "Any"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": True}, "required": ["a"]},
        {"type": "array", "items": {"const": 1}, "minItems": 2.0, "maxItems": 3},
        {"items": {"type": "integer"}, "maxItems": 10**9},
        {"format": "uri", "maxLength": 2083, "minLength": 1, "type": "string"},
        {"format": "email", "type": "string", "maxLength": 10**9},
        {"type": ["string", "null"], "format": "email", "maxLength": 10**7},
    ],
)
def test_sound_schemas_are_taken(llm: Any, schema: dict[str, Any]) -> None:
    list(answers(llm, schema, 2))


def test_definitions_do_not_take_names_from_each_other(llm: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/integer"}, "b": {"$ref": "#/$defs/A b"}, "c": {"$ref": "#/$defs/A_b"}},
        "required": ["a", "b", "c"],
        "$defs": {"integer": {"type": "boolean"}, "A b": {"const": 1}, "A_b": {"const": 2}},
    }
    for value in answers(llm, schema):
        assert isinstance(value["a"], bool)
        assert (value["b"], value["c"]) == (1, 2)


def test_required_calls_of_tools_with_definitions(llm: Any) -> None:
    def tool(name: str, values: list[str]) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": {"color": {"$ref": "#/$defs/Color"}},
            "required": ["color"],
            "$defs": {"Color": {"enum": values}},
        }
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    tools = [tool("paint", ["red"]), tool("print", ["blue"])]
    for seed in range(4):
        answer = llm.create_chat_completion(
            [{"role": "user", "content": "a"}], tools=tools, tool_choice="required", max_tokens=200, seed=seed
        )
        for call in answer["choices"][0]["message"].get("tool_calls") or []:
            color = {"paint": "red", "print": "blue"}[call["function"]["name"]]
            assert json.loads(call["function"]["arguments"]) == {"color": color}
