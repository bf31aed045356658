"""Odd chat requests: merged, normalized or refused with 400 and a reason, never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import joined, whole
from fixtures.templates import serve_template

pytestmark = pytest.mark.native

Message = dict[str, Any]
NAMES = ("Qwen3.5-4B", "meta-llama-Llama-3.1-8B-Instruct", "google-gemma-2-2b-it", "Qwen-Qwen2.5-7B-Instruct")
CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module", params=NAMES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("model"), request.param, n_ctx=2048) as running:
        yield running


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("qwen"), "Qwen3.5-4B", n_ctx=2048) as running:
        yield running


def said(role: str, content: Any = "text", **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def called(arguments: Any) -> Message:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return said("assistant", None, tool_calls=[call])


USER = said("user", "Question")
CONVERSATIONS: dict[str, list[Any]] = {
    "nothing": [],
    "system alone": [said("system")],
    "developer alone": [said("developer")],
    "two systems": [said("system", "one"), said("system", "two"), USER],
    "later system": [USER, said("assistant"), said("system", "later"), USER],
    "system at the end": [USER, said("system", "later")],
    "developer later": [said("system"), USER, said("assistant"), said("developer", "later"), USER],
    "system of parts": [said("system", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), USER],
    "no content": [said("user", None)],
    "answer at the beginning": [said("assistant"), USER],
    "two questions": [USER, USER],
    "unknown role": [said("wizard"), USER],
    "tool without a call": [USER, said("tool", "result", tool_call_id="x")],
    "arguments []": [USER, called("[]"), said("tool", "r", tool_call_id="call00001")],
    "arguments 5": [USER, called("5"), said("tool", "r", tool_call_id="call00001")],
    "arguments list": [USER, called([]), said("tool", "r", tool_call_id="call00001")],
    "arguments null": [USER, called(None), said("tool", "r", tool_call_id="call00001")],
    "arguments empty": [USER, called(""), said("tool", "r", tool_call_id="call00001")],
    "arguments no JSON": [USER, called("{"), said("tool", "r", tool_call_id="call00001")],
    "call without a function": [USER, said("assistant", None, tool_calls=[{"id": "1", "type": "function"}])],
    "calls no list": [USER, said("assistant", "a", tool_calls={"a": 1})],
    "nulls": [said("user", "a", name=None, tool_call_id=None, tool_calls=None, reasoning_content=None)],
    "message is a text": ["hello"],
    "message is a number": [5],
    "message is null": [None],
    "no role": [{"content": "a"}],
    "role a number": [said(5)],  # type: ignore[arg-type]
    "part without a type": [said("user", [{"text": "a"}])],
    "part is a text": [said("user", ["a"])],
    "part of nothing": [said("user", [{"type": "text"}])],
    "empty last answer": [USER, said("assistant", "")],
    "last answer null": [USER, said("assistant", None)],
}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TOOLS: dict[str, Any] = {
    "description null": [{"type": "function", "function": {**FUNCTION, "description": None}}],
    "parameters null": [{"type": "function", "function": {**FUNCTION, "parameters": None}}],
    "bare": [{"function": {"name": "f"}}],
    "no name": [{"type": "function", "function": {}}],
    "name null": [{"type": "function", "function": {"name": None}}],
    "no function": [{"type": "function"}],
    "a text": ["f"],
    "null": None,
    "an object": {"f": FUNCTION},
    "parameters of a text": [{"type": "function", "function": {**FUNCTION, "parameters": "object"}}],
    "parameters of a list": [{"type": "function", "function": {**FUNCTION, "parameters": []}}],
}


def answered(server: Served, path: str, body: Message) -> tuple[int, Any]:
    """Status and answer, which is neither a 500 nor the end."""
    status, answer = server.post(path, body)
    assert status in (200, 400), answer
    assert status == 200 or len(answer["error"]["message"]) > 10
    assert server.process.poll() is None
    return status, answer


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations(server: Served, name: str) -> None:
    messages = CONVERSATIONS[name]
    for tools in ({}, {"tools": [{"type": "function", "function": FUNCTION}]}):
        answered(server, CHATS, {"messages": messages, "max_tokens": 2, **tools})
    answered(server, "/v1/messages", {"messages": messages, "max_tokens": 2, "system": "rules"})
    answered(server, "/v1/responses", {"input": messages, "max_output_tokens": 2, "instructions": "rules"})
    answered(server, "/apply-template", {"messages": messages})


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "g"}}])
def test_tools(server: Served, name: str, choice: Any) -> None:
    body = {"messages": [USER], "max_tokens": 2, "tools": TOOLS[name], "tool_choice": choice}
    status, _ = answered(server, CHATS, body)
    assert status == 200 or choice != "auto" or name not in ("description null", "parameters null", "null", "bare")


MERGED = ("two systems", "later system", "system at the end", "developer later", "system of parts")


@pytest.mark.parametrize("name", MERGED)
def test_system_messages_reach_the_prompt(server: Served, name: str) -> None:
    status, answer = answered(server, "/apply-template", {"messages": CONVERSATIONS[name]})
    assert status == 200
    for word in ("one", "two", "later"):
        if word in json.dumps(CONVERSATIONS[name]):
            assert word in answer["prompt"]


def test_instructions_and_a_developer(qwen: Served) -> None:
    items = [{"role": "developer", "content": "more rules"}, {"role": "user", "content": "Question"}]
    status, answer = qwen.post("/v1/responses", {"input": items, "instructions": "rules", "max_output_tokens": 2})
    assert status == 200, answer


def test_reasons_of_a_template_are_told(qwen: Served) -> None:
    status, answer = qwen.post(CHATS, {"messages": [said("system")], "max_tokens": 2})
    assert status == 400 and "No user query found" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("POST", "/api/blobs/x", "has no POST /api/blobs/x: it is not Ollama"),
        ("POST", "/v1/nothing", "OpenAI's APIs are below /v1"),
        ("POST", "/%ff%00", "OpenAI's APIs are below /v1"),
        ("GET", "/v1/chat/completions", "has no GET /v1/chat/completions: "),
        ("GET", "/v1/responses/resp_1", "it keeps no responses"),
        ("POST", "/v1/responses/compact", "another name than OpenAI"),
        ("POST", "/v1/messages/batches", "OpenAI's APIs are below /v1"),
    ],
)
def test_other_paths_are_named(qwen: Served, method: str, path: str, reason: str) -> None:
    status, answer = qwen.send(method, path, b"{}" if method == "POST" else None)
    error = answer["error"]
    assert status == 404 and reason in (error if path.startswith("/api/") else error["message"])
    assert (answer.get("type") == "error") == path.startswith("/v1/messages")


def test_compaction_by_openai(qwen: Served) -> None:
    """Codex sends this item to providers with OpenAI's name."""
    items = [{"role": "user", "content": "Question"}, {"type": "compaction_trigger"}]
    status, answer = qwen.post("/v1/responses", {"input": items})
    assert status == 400 and "another name than OpenAI" in answer["error"]["message"]


@pytest.mark.parametrize("content", ["", None])
def test_an_empty_last_answer_keeps_its_header(server: Served, content: Any) -> None:
    prompts = []
    for messages in ([USER], [USER, said("assistant", content)]):
        prompts.append(server.post("/apply-template", {"messages": messages})[1]["prompt"])
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (("int main ", "() {", " return 0; ", " }"), "int main () { return 0;  }"),
        (("A ", '{"name": "f", ', '"parameters": 5}', " end"), "A end"),  # a call is no text, what follows it is
    ],
)
def test_replies_that_are_no_call_are_text(tmp_path: Any, says: tuple[str, ...], expected: str) -> None:
    """Llama 3.1's calls begin with a brace, and so does much else."""
    with serve_template(tmp_path, NAMES[1], says, n_ctx=2048) as server:
        body = {
            "messages": [USER], "max_tokens": 20, "temperature": 0,
            "tools": [{"type": "function", "function": FUNCTION}],
        }  # fmt: skip
        text = whole(server, CHATS, body)
        assert text.strip() == expected
        assert joined(server, CHATS, body) == text
