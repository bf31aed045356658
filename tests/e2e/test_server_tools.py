"""`tool_choice` is enforced for every template with calls: at once and streamed, in OpenAI's and Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import events
from fixtures.templates import serve_template

pytestmark = pytest.mark.native

NAMES = (
    "Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "mistralai-Mistral-Nemo-Instruct-2407", "ibm-granite-granite-4.0",
)  # fmt: skip
PROSE = ("I would ", "rather ", "talk: ", '{"name": "clock", "arguments": {}} ', "and ", "talk.")
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {"kind": {"const": 1}}, "required": ["kind"]}
QUESTION = [{"role": "user", "content": "What is it?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": NO_ARGUMENTS}}
    for name in ("clock", "weather")
]
ANTHROPIC_TOOLS = [{"name": name, "description": "d", "input_schema": NO_ARGUMENTS} for name in ("clock", "weather")]


@pytest.fixture(scope="module", params=NAMES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A model that answers with prose, and with a call as plain JSON."""
    options = ("--chat-template-kwargs", '{"enable_thinking": false}')  # its thoughts would never end
    with serve_template(tmp_path_factory.mktemp("model"), request.param, PROSE, *options) as running:
        yield running


def ask(server: Served, choice: Any, stream: bool = False, **more: Any) -> list[tuple[str, Any]]:
    """Names and arguments of the calls in an answer of OpenAI's chat API."""
    body = {"messages": QUESTION, "max_tokens": 200, "temperature": 0, "tools": TOOLS, "tool_choice": choice, **more}
    if not stream:
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200, answer
        assert not (answer["choices"][0]["message"].get("content") or "").strip()
        calls = answer["choices"][0]["message"].get("tool_calls") or []
    else:
        calls = []
        for event in events(server, "/v1/chat/completions", body):
            for choice_ in event["choices"]:
                assert not (choice_["delta"].get("content") or "").strip()
                for part in choice_["delta"].get("tool_calls") or []:
                    while len(calls) <= part["index"]:
                        calls.append({"function": {"name": "", "arguments": ""}})
                    for key, text in part["function"].items():
                        calls[part["index"]]["function"][key] += text
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def ask_anthropic(server: Served, choice: Any, stream: bool = False) -> list[tuple[str, Any]]:
    body = {
        "messages": QUESTION, "max_tokens": 200, "temperature": 0, "tools": ANTHROPIC_TOOLS, "tool_choice": choice,
    }  # fmt: skip
    if not stream:
        status, answer = server.post("/v1/messages", body)
        assert status == 200, answer
        return [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
    calls: list[list[str]] = []
    for event in events(server, "/v1/messages", body):
        if event.get("content_block", {}).get("type") == "tool_use":
            calls.append([event["content_block"]["name"], ""])
        elif event.get("delta", {}).get("type") == "input_json_delta":
            calls[-1][1] += event["delta"]["partial_json"]
    return [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "any", {"type": "any"}])
def test_a_call_is_required(server: Served, choice: Any, stream: bool) -> None:
    calls = ask(server, choice, stream, parallel_tool_calls=False)
    assert len(calls) == 1
    assert calls[0] in [("clock", {"kind": 1}), ("weather", {"kind": 1})]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["clock", "weather"])
def test_a_named_call_is_required(server: Served, name: str, stream: bool) -> None:
    for choice in ({"type": "function", "function": {"name": name}}, {"type": "function", "name": name}):
        assert ask(server, choice, stream, parallel_tool_calls=False) == [(name, {"kind": 1})]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_choices(server: Served, stream: bool) -> None:
    one = {"disable_parallel_tool_use": True}
    assert len(ask_anthropic(server, {"type": "any", **one}, stream)) == 1
    assert ask_anthropic(server, {"type": "tool", "name": "weather", **one}, stream) == [("weather", {"kind": 1})]
    assert ask_anthropic(server, {"type": "none"}, stream) == []


def test_a_form_of_the_answer_does_not_replace_the_call(server: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    assert len(ask(server, "required", response_format=form, parallel_tool_calls=False)) == 1


@pytest.mark.parametrize("choice", ["sometimes", 5, [], {"type": "function"}, {"type": "tool", "name": "nobody"}])
def test_choices_that_are_none(server: Served, choice: Any) -> None:
    body = {"messages": QUESTION, "max_tokens": 4, "tools": TOOLS, "tool_choice": choice}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 400 and "tool_choice" in str(answer)


def test_a_required_call_without_tools(server: Served) -> None:
    status, answer = server.post(
        "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4, "tool_choice": "required"}
    )
    assert status == 400 and "no tools" in str(answer)
