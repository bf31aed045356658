"""Anthropic's Messages API without a model: bodies as bodies of chats, and pieces of an answer as events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.json_places import VALUES, changed
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.messages.bodies import chat_body
from llama_eagle.serving.apis.messages.events import Message
from llama_eagle.serving.events import EVENTS, LINES, PieceStream
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.resume import Sessions

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
USE = {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {"city": "Köln", "n": [1, None]}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}
LINK_PART = {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def message(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def result(content: Any, identity: str = "toolu_a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return chat_body({"messages": list(messages), **more})


def source(kind: str, **more: Any) -> dict[str, Any]:
    return {"source": {"type": kind, **more}}


PARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**text("a"), "cache_control": {"type": "ephemeral"}}, text("a")),
    (PNG, PNG_PART),
    (LINK, LINK_PART),
    (
        {"type": "document", "title": "T", "context": "C", **source("text", media_type="text/plain", data="D")},
        text("T\nC\nD"),
    ),
    ({"type": "document", **source("content", content=[text("a"), text("b")])}, text("a\nb")),
    ({"type": "search_result", "title": "T", "source": "S", "content": [text("a"), text("b")]}, text("T\nS\na\nb")),
]


@pytest.mark.parametrize(("block", "part"), PARTS, ids=str)
def test_blocks_of_a_user(block: dict[str, Any], part: dict[str, Any]) -> None:
    assert chat(message("user", block, text("b")))["messages"] == [message("user", part, text("b"))]


def test_blocks_of_an_answer() -> None:
    """Thoughts are joined, redacted ones dropped; calls have the id that the model wrote."""
    thoughts = [{"type": "thinking", "thinking": each, "signature": "x"} for each in ("one", "", "two")]
    given = message("assistant", *thoughts, {"type": "redacted_thinking", "data": "x"}, text("Text"), USE)
    function = {"name": "f", "arguments": '{"city":"Köln","n":[1,null]}'}
    call = {"id": "a", "type": "function", "function": function}
    assert chat(given)["messages"] == [
        message("assistant", text("Text")) | {"tool_calls": [call], "reasoning_content": "one\n\ntwo"}
    ]
    assert chat(message("assistant", USE))["messages"][0]["content"] == ""


def test_what_adds_nothing_is_dropped() -> None:
    user = {"role": "user", "content": "a"}
    empty = [message("assistant"), {"role": "assistant"}, message("assistant", {"type": "redacted_thinking"})]
    assert chat(user, *empty, message("user"))["messages"] == [user]


RESULTS: list[tuple[Any, Any]] = [
    ("a", "a"), (None, ""), ([], ""), ([text("a"), text("b")], [text("a"), text("b")]),
    ([text("a"), PNG], [text("a"), PNG_PART]),
    ([{"type": "search_result", "title": "T", "content": [text("a")]}], [text("T\na")]),
    ([{"type": "document", **source("text", data="D")}], [text("D")]),
    (
        [{"type": "document", **source("base64", media_type="application/pdf")}],
        [text("[Here is a document (application/pdf) that this model cannot read.]")],
    ),
    ([{"type": "image", **source("file")}], [text("[Here is a picture that this model cannot read.]")]),
    ([{"type": "x"}], [text("[Here is a block of type 'x' that this model cannot read.]")]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), RESULTS, ids=str)
def test_contents_of_results(content: Any, expected: Any) -> None:
    found = chat(message("user", result(content, is_error=True)))["messages"]
    assert found == [{"role": "tool", "tool_call_id": "a", "content": expected}]


def test_results_and_texts_keep_their_order() -> None:
    found = chat(message("user", text("1"), result("2"), result("3", "call_b"), text("4"), PNG, result("5")))
    assert [each["role"] for each in found["messages"]] == ["user", "tool", "tool", "user", "tool"]
    assert [each.get("tool_call_id") for each in found["messages"]] == [None, "a", "b", None, "a"]
    assert found["messages"][3]["content"] == [text("4"), PNG_PART]


BILLING = "x-anthropic-billing-header: cch=1;"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, None), ("", None), ([], None), ([text("")], None), (BILLING, None), ("R", "R"),
        (f"{BILLING}\nR", "R"), ([text(BILLING), text("R")], [text("R")]),
        ([text("R"), text("S")], [text("R"), text("S")]),
    ],
)  # fmt: skip
def test_the_system_prompt(system: Any, expected: Any) -> None:
    found = chat({"role": "user", "content": "a"}, system=system)["messages"]
    assert found[:-1] == ([] if expected is None else [{"role": "system", "content": expected}])


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_tokens": 4096}),
    ({"max_tokens": 5, "max_completion_tokens": None}, {"max_tokens": 5}),
    ({"max_completion_tokens": 6, "max_tokens": 5}, {"max_tokens": 6}),
    ({"stop_sequences": ["x"], "stop": ["y"]}, {"stop": ["x"]}),
    ({"top_k": 3, "stream": True, "model": "m", "metadata": {"user_id": "u"}, "n": 2}, {"top_k": 3, "stream": True}),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, {"thinking_budget_tokens": 0}),
    ({"thinking": {"type": "enabled"}}, {"thinking_budget_tokens": 10000}),
    ({"thinking": {"type": "adaptive"}}, {}),
    ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
    (
        {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ),
    ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
    ({"output_config": {"effort": "low"}, "reasoning_effort": "medium"}, {"reasoning_effort": "medium"}),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}},
    ),
    ({"output_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    ({"tool_choice": "any"}, {"tool_choice": {"type": "any"}}),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "parallel_tool_calls": False},
    ),
]


@pytest.mark.parametrize(("given", "expected"), SETTINGS, ids=str)
def test_settings(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = chat({"role": "user", "content": "a"}, **given)
    del found["messages"]
    assert found == {"max_tokens": 4096, **{key: given[key] for key in ("model",) if key in given}, **expected}


def test_tools() -> None:
    tool = {"name": "f", "description": "d", "input_schema": CITY, "strict": True, "cache_control": {}}
    function = {"name": "f", "description": "d", "parameters": CITY, "strict": True}
    assert chat(tools=[tool])["tools"] == [{"type": "function", "function": function}]
    assert "tools" not in chat() and "tools" not in chat(tools=[])


def test_tools_that_are_deferred_added_and_removed() -> None:
    """The beginning of the prompt shows those that are offered from the beginning on."""
    tools = [{"name": "a"}, {"name": "b", "defer_loading": True}, {"name": "c", "defer_loading": True}]
    reference = {"type": "tool_reference", "tool_name": "b"}
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "a"}}
    found = chat(message("user", result([reference]), removal), tools=tools)
    shown, removed = (each["content"][0]["text"] for each in found["messages"])
    definition = json.dumps({"description": "", "name": "b", "parameters": {}}, separators=(",", ":"))
    assert shown == f"<functions>\n<function>{definition}</function>\n</functions>"
    assert removed == "The tool a is no longer available."
    assert [each["function"]["name"] for each in found["tools"]] == ["a", "b"]
    assert found["eagle_tool_places"] == {"not_at_beginning": ["b"], "not_offered": ["a"]}
    assert "eagle_tool_places" not in chat(tools=tools[:1])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "'messages' is required"), ({"messages": "a"}, "'messages' is no list"),
    ({"messages": [message("user"), message("user", {"type": "audio"})]}, "message 2 has a block of type 'audio'"),
    ({"messages": [message("user", 5)]}, "message 1 has a block of type ''"),
    ({"messages": [message("user", {"type": "image", **source("file")})]}, "image of type 'file'"),
    ({"messages": [message("user", {"type": "image"})]}, "image of type ''"),
    ({"messages": [message("user", {"type": "document", **source("base64")})]}, "document of type 'base64'"),
    ({"system": 5}, "'system'"), ({"system": [PNG]}, "type 'image'"), ({"container": "c"}, "'container'"),
    ({"mcp_servers": [{}]}, "'mcp_servers'"), ({"thinking": "on"}, "'thinking'"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1.5}}, "'thinking.budget_tokens'"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "clear_tool_uses_20250919"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "x"}}}, "format.type 'x'"),
    ({"output_format": {"type": "json_schema"}}, "no schema"), ({"tools": "a"}, "'tools'"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search_20250305"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "reason"), WRONG, ids=str)
def test_what_is_not_read_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal) as refused:
        chat_body({"messages": [], **given})
    assert refused.value.status == 400 and reason in str(refused.value)


def events(*pieces: Piece) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the events of an answer, and the whole message."""
    answer = Message("m")
    return [event for piece in pieces for event in answer.add(piece)], answer.whole


def counted(**more: Any) -> Piece:
    return Piece(n_prompt=9, n_cached=4, **more)


def usage(n: int) -> dict[str, int]:
    return {
        "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": n,
    }  # fmt: skip


def test_events_in_their_order() -> None:
    """Each block ends before the next begins, also two calls in a row; the message is what the events say."""
    found, whole = events(
        counted(reasoning="I "), counted(reasoning="look.", content="Now"), counted(), counted(content="."),
        counted(calls=(CallPiece(0, id="call_x", name="f"),)), counted(calls=(CallPiece(0, '{"city": '),)),
        counted(calls=(CallPiece(0, '"P"}'), CallPiece(1, "{}", id="y", name="g"))),
        counted(end=End("tool_calls", n_tokens=7)),
    )  # fmt: skip
    assert [(event["type"].removeprefix("content_block_"), event.get("index")) for event in found] == [
        ("message_start", None), ("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("stop", 2), ("start", 3), ("delta", 3), ("stop", 3),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    assert [event["content_block"] for event in found if event["type"] == "content_block_start"] == [
        {"type": "thinking", "thinking": "", "signature": ""}, text(""),
        {"type": "tool_use", "id": "toolu_x", "name": "f", "input": {}},
        {"type": "tool_use", "id": "toolu_y", "name": "g", "input": {}},
    ]  # fmt: skip
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert deltas[2:5] == [
        {"type": "signature_delta", "signature": ""}, {"type": "text_delta", "text": "Now"},
        {"type": "text_delta", "text": "."},
    ]  # fmt: skip
    assert deltas[5] == {"type": "input_json_delta", "partial_json": '{"city": '}
    start, end = found[0]["message"], found[-2]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"] == usage(0)
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and end["usage"] == usage(7)
    assert whole == start | end["delta"] | {"usage": usage(7)} | {
        "content": [
            {"type": "thinking", "thinking": "I look.", "signature": ""}, text("Now."),
            {"type": "tool_use", "id": "toolu_x", "name": "f", "input": {"city": "P"}},
            {"type": "tool_use", "id": "toolu_y", "name": "g", "input": {}},
        ]
    }  # fmt: skip
    assert whole["id"].startswith("msg_") and whole["model"] == "m" and whole["role"] == "assistant"


@pytest.mark.parametrize(
    ("end", "reason", "word"),
    [
        (End("stop"), "end_turn", None), (End("length"), "max_tokens", None),
        (End("stop", stop_text="x"), "stop_sequence", "x"), (End("tool_calls", stop_text="x"), "tool_use", "x"),
    ],
)  # fmt: skip
def test_reasons(end: End, reason: str, word: str | None) -> None:
    found, whole = events(counted(end=end))
    assert [event["type"] for event in found] == ["message_start", "message_delta", "message_stop"]
    assert (whole["stop_reason"], whole["stop_sequence"], whole["content"]) == (reason, word, [])


def test_arguments_of_a_cut_call_are_completed() -> None:
    call = CallPiece(0, '{"city": "Par', id="x", name="f")
    _, whole = events(counted(calls=(call,)), counted(end=End("length")))
    assert whole["content"][0]["input"] == {"city": "Par"}


class Answered:
    """An answer in parts. A part that is an exception ends it."""

    def __init__(self, *parts: list[Piece] | Exception) -> None:
        self._parts = [*parts]
        self.is_closed = False

    async def read(self) -> list[Piece] | None:
        part = self._parts.pop(0) if self._parts else None
        if isinstance(part, Exception):
            raise part
        return part

    async def aclose(self) -> None:
        self.is_closed = True


def sent_of(answer: Answered, kind: bytes = EVENTS) -> list[bytes]:
    """Return the writes of a stream whose pieces are written as their content."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a response reads nothing")

    def written(piece: Piece) -> bytes:
        return piece.content.encode()

    stream = PieceStream(answer, written, lambda error: str(error).encode(), lambda: b"!", kind)
    scope = {"headers": [], "app": SimpleNamespace(sessions=Sessions())}
    asyncio.run(stream(scope, receive, send))
    assert answer.is_closed and [each.get("more_body") for each in sent] == [None, *[True] * (len(sent) - 2), None]
    assert sent[-1]["body"] == b""
    return [each["body"] for each in sent[1:-1]]


def test_pieces_that_arrive_together_share_a_write() -> None:
    """A sign of life is a comment; nothing is written for pieces whose text is held back."""
    a, b, empty = Piece(content="a"), Piece(content="b"), Piece()
    assert sent_of(Answered([a, b], [], [empty], [b])) == [b"ab", b":\n\n", b"b", b"!"]
    assert sent_of(Answered([a], Refusal(500, "failed"))) == [b"a", b"failed"]
    assert b"llama-server has ended" in sent_of(Answered([a], ConnectionError()))[1]


def test_each_line_is_a_write() -> None:
    lines = [Piece(content="a\nb\n"), Piece(content="c\n")]
    assert sent_of(Answered(lines, []), LINES) == [b"a\n", b"b\n", b"c\n", b"!"]


WHOLE: dict[str, Any] = {
    "system": [text(f"{BILLING}\nR")], "max_tokens": 5, "stop_sequences": ["a"], "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 5}, "tool_choice": {"type": "tool", "name": "f"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": CITY}}, "output_format": None,
    "tools": [{"name": "f", "description": "d", "input_schema": CITY, "defer_loading": False, "strict": True}],
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]}, "chat_template_kwargs": {"a": 1},
    "messages": [
        message("user", *(block for block, _ in PARTS)),
        message("system", {"type": "tool_addition", "tool": {"definition": {"name": "g"}}}),
        message("assistant", {"type": "thinking", "thinking": "a"}, text("b"), USE),
        message("user", *(result(content) for content, _ in RESULTS)),
        message("user", result([{"type": "tool_reference", "tool_name": "f"}])),
    ],
}  # fmt: skip


def test_any_value_in_any_place_is_read_or_refused() -> None:
    n_read = 0
    for body in changed(WHOLE, VALUES):
        with contextlib.suppress(Refusal):
            json.dumps(chat_body(body))
            n_read += 1
    assert n_read > 1000
