"""Constants in schemas of calls whose template writes arguments as text between tags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import events
from fixtures.templates import serve_template

pytestmark = pytest.mark.native

NAMES = ("Qwen3.5-4B", "Qwen3-Coder", "GLM-4.6")
SAYS = ("warm ", "or ", "cold ")
CHATS = "/v1/chat/completions"
UNIT = ["celsius", "celsius scale", 'a "quoted" \\ one', "größe"]
ARGUMENTS: dict[str, tuple[Any, list[Any]]] = {  # schema, values
    "enum": ({"type": "string", "enum": UNIT}, UNIT),
    "enum without a type": ({"enum": UNIT[:2]}, UNIT[:2]),
    "const": ({"const": "only"}, ["only"]),
    "optional": ({"anyOf": [{"type": "string", "enum": UNIT[:2]}, {"type": "null"}]}, [*UNIT[:2], None]),
    "mixed": ({"enum": ["auto", 5, True]}, ["auto", 5, True, "5", "true"]),
    "reference": ({"$ref": "#/$defs/unit"}, UNIT),
    "all of": ({"allOf": [{"$ref": "#/$defs/unit"}]}, UNIT),
}


@pytest.fixture(scope="module", params=NAMES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    options = ("--chat-template-kwargs", '{"enable_thinking": false}')
    with serve_template(tmp_path_factory.mktemp("model"), request.param, SAYS, *options) as running:
        yield running


@pytest.mark.parametrize("name", ARGUMENTS)
def test_constants_are_obeyed(server: Served, name: str) -> None:
    schema, values = ARGUMENTS[name]
    parameters = {
        "type": "object", "properties": {"unit": schema}, "required": ["unit"],
        "$defs": {"unit": {"type": "string", "enum": UNIT}},
    }  # fmt: skip
    body = {
        "messages": [{"role": "user", "content": "Which unit?"}], "max_tokens": 120, "temperature": 1, "top_k": 0,
        "tools": [{"type": "function", "function": {"name": "set", "parameters": parameters}}],
        "tool_choice": "required", "parallel_tool_calls": False,
    }  # fmt: skip
    for seed in range(3):
        status, answer = server.post(CHATS, {**body, "seed": seed})
        assert status == 200, answer
        call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        assert json.loads(call["arguments"])["unit"] in values
        pieces = [
            part["function"].get("arguments", "")
            for event in events(server, CHATS, {**body, "seed": seed})
            for choice in event["choices"]
            for part in choice["delta"].get("tool_calls") or []
        ]
        assert "".join(pieces) == call["arguments"]
