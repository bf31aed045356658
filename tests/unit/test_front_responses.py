"""The Responses API without a model: items in both directions, tools, and the order and the forms of events."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis import responses
from llama_eagle.serving.apis.responses import bodies as response_bodies
from llama_eagle.serving.apis.responses import endpoints
from llama_eagle.serving.apis.responses import items as response_items
from llama_eagle.serving.apis.responses import tools as response_tools
from llama_eagle.serving.apis.responses.events import ResponseEvents
from llama_eagle.serving.apis.responses.items import RecentItems
from llama_eagle.serving.apis.responses.tools import Tool
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.resume import Sessions
from openai.types.responses import Response, ResponseStreamEvent
from starlette.routing import Router

Body = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA, "strict": None}
TOOLS = [
    FUNCTION,
    {"type": "custom", "name": "patch", "description": "c", "format": {"type": "text"}},
    {"type": "namespace", "name": "mcp", "description": "n",
     "tools": [{"type": "function", "name": "find", "parameters": {}}]},
    {"type": "web_search"}, {"type": "image_generation"},
]  # fmt: skip
USER = {"role": "user", "content": "Question"}


def read(**body: Any) -> Body:
    return response_bodies.read({"input": [USER], **body}, RecentItems())


def messages(*items: Any, recent: RecentItems | None = None) -> list[Body]:
    return response_items.messages(list(items), recent or RecentItems())


def text(value: str) -> Body:
    return {"type": "text", "text": value}


def refusal(*items: Any) -> str:
    with pytest.raises(Refusal) as raised:
        messages(*items)
    assert raised.value.status == 400
    return str(raised.value)


def test_a_text_and_instructions() -> None:
    found = read(
        input="Hi", instructions="Rules", max_output_tokens=5, reasoning={"effort": "low"}, n=2, stop=["x"], prompt={}
    )
    said = [{"role": "system", "content": "Rules"}, {"role": "user", "content": "Hi"}]
    assert found == {"messages": said, "max_tokens": 5, "reasoning_effort": "low", "stop": ["x"]}
    assert read(input="Hi", instructions="", tools=None, text=None)["messages"] == said[1:]


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text", "refusal"])
@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_messages_of_each_role(role: str, kind: str) -> None:
    part = {"type": kind, "refusal" if kind == "refusal" else "text": "T", "annotations": []}
    for more in ({}, {"type": "message", "status": "completed"}):
        (found,) = messages({"role": role, "content": [part], **more})
        assert found == {"role": role, "content": [text("T")]}
        assert messages({"role": role, "content": "T", **more}) == [found]


def test_pictures() -> None:
    picture = {"type": "input_image", "image_url": "data:x", "detail": "auto"}
    shown = {"type": "image_url", "image_url": {"url": "data:x"}}
    assert messages({"role": "user", "content": [picture]})[0]["content"] == [shown]
    output = {"type": "function_call_output", "call_id": "c", "output": [picture, {"type": "input_file"}]}
    assert messages(output)[0]["content"] == [shown, {"type": "input_file"}]  # which a chat replaces by a text
    assert "'input_image'" in refusal({"role": "assistant", "content": [picture]})
    assert "'image_url'" in refusal({"role": "user", "content": [{"type": "input_image"}]})


def test_items_of_an_answer_are_one_message() -> None:
    def thought(value: str, **more: Any) -> Body:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": value}], **more}

    said = {"role": "assistant", "content": "Said"}
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "2", "name": "patch", "namespace": "mcp", "input": "é"}
    results = [{"type": "function_call_output", "call_id": "call_1", "output": "A"}]
    results.append({"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "B"}]})  # type: ignore[dict-item]
    empty = {"type": "reasoning", "id": "rs", "summary": []}
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "three"}]}
    found = messages(USER, thought("one"), said, call, empty, thought("two"), custom, *results, summary, said, said)
    functions = [{"name": "weather", "arguments": "{}"}, {"name": "mcp__patch", "arguments": '{"input": "é"}'}]
    calls = [{"id": name, "type": "function", "function": each} for name, each in zip("12", functions, strict=True)]
    answer = {"role": "assistant", "content": [text("Said")], "reasoning_content": "one\n\ntwo", "tool_calls": calls}
    shown = [{"role": "tool", "tool_call_id": "1", "content": "A"}]
    shown.append({"role": "tool", "tool_call_id": "2", "content": [text("B")]})  # type: ignore[dict-item]
    last = {"role": "assistant", "content": [text("Said"), text("Said")], "reasoning_content": "three"}
    assert found[1:] == [answer, *shown, last]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (5, "item 2 is no object"), ({"type": "web_search_call"}, "'web_search_call'"),
        ({"type": "local_shell_call", "call_id": "c"}, "'local_shell_call'"), ({"type": "apply_patch_call"}, "apply"),
        ({"type": "compaction_trigger"}, "another name than OpenAI"), ({"role": "tool", "content": "a"}, "'tool'"),
        ({"role": "user"}, "no 'content'"), ({"role": "user", "content": [{"type": "input_file"}]}, "'input_file'"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "without 'text'"),
        ({"role": "user", "content": [5]}, "''"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "'call_id'"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "'name'"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "'arguments'"),
        ({"type": "function_call_output", "call_id": "c"}, "'output'"), ({"type": "item_reference", "id": "x"}, "'x'"),
        ({"id": "y"}, "'y'"),
    ],
)  # fmt: skip
def test_items_that_are_refused(item: Any, words: str) -> None:
    found = refusal(USER, item)
    assert words in found and "input item 2" in found


def test_references() -> None:
    recent = RecentItems()
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
    recent.keep(item)
    for reference in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}):
        assert messages(USER, reference, recent=recent) == messages(USER, item)
    for number in range(response_items.MAX_ITEMS):
        recent.keep({"id": str(number)})
    with pytest.raises(Refusal, match="refers to 'msg_1'"):
        messages({"id": "msg_1"}, recent=recent)


def test_kept_items_have_a_limit_of_bytes() -> None:
    recent, large = RecentItems(), "x" * (response_items.MAX_ITEM_BYTES // 2)
    for name in ("1", "2"):
        recent.keep({"id": name, "text": large})
    assert recent.resolved({"id": "2"}, "")["text"] == large
    with pytest.raises(Refusal):
        recent.resolved({"id": "1"}, "")


def test_tools_are_functions() -> None:
    found = [tool["function"] for tool in read(tools=TOOLS)["tools"]]
    assert found == [
        {"name": "weather", "description": "d", "parameters": SCHEMA, "strict": None},
        {"name": "patch", "description": "c", "parameters": response_tools.INPUT, "strict": False},
        {"name": "mcp__find", "parameters": {}, "strict": False},
    ]
    assert response_tools.functions([{**FUNCTION, "strict": True}])[0]["function"]["strict"] is True
    assert response_tools.named(TOOLS)["mcp__find"] == Tool("find", "mcp")
    assert response_tools.named(TOOLS)["patch"].is_custom
    assert response_tools.name_in("mcp__a__", "b") == "mcp__a__b"
    assert "tools" not in read(tools=TOOLS[3:])


@pytest.mark.parametrize("tools", [[{"type": "file_search"}], [{"name": "a"}], ["f"], {"f": FUNCTION}])
def test_tools_that_are_refused(tools: Any) -> None:
    with pytest.raises(Refusal):
        read(tools=tools)


def test_choices() -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    for given, expected in (
        ("required", "required"),
        ({"type": "function", "name": "weather"}, {"type": "function", "name": "weather"}),
        ({"type": "custom", "name": "patch"}, {"type": "custom", "name": "patch"}),
        ({"type": "function", "name": "find", "namespace": "mcp"},
         {"type": "function", "name": "mcp__find", "namespace": "mcp"}),
        (allowed, "none"),
        ({**allowed, "mode": "required", "tools": [*TOOLS[3:], {"type": "function", "name": "a", "namespace": "b"}]},
         {**allowed, "mode": "required", "tools": [{"type": "function", "name": "b__a", "namespace": "b"}]}),
    ):  # fmt: skip
        assert read(tool_choice=given)["tool_choice"] == expected
    with pytest.raises(Refusal, match="ignores"):
        read(tool_choice={**allowed, "mode": "required"})


def test_formats() -> None:
    assert "response_format" not in read(text={"format": {"type": "text"}, "verbosity": "low"})
    assert read(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    named = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    expected = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    assert read(text={"format": named})["response_format"] == expected
    for wrong in ({"type": "xml"}, {}, 5, {"type": "json_schema"}):
        with pytest.raises(Refusal, match="format"):
            read(text={"format": wrong})


@pytest.mark.parametrize(
    "more",
    [
        {"background": True}, {"conversation": {"id": "c"}}, {"previous_response_id": "r"}, {"prompt": {"id": "p"}},
        {"context_management": [{}]}, {"truncation": "middle"}, {"include": [response_bodies.LOGPROBS]},
        {"include": "x"}, {"top_logprobs": 2}, {"instructions": []}, {"reasoning": "high"}, {"text": "low"},
        {"reasoning": {"effort": 5}}, {"input": []}, {"input": 5}, {"input": None},
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_are_refused(more: Body) -> None:
    with pytest.raises(Refusal, match=r"'\w"):
        read(**more)


# --- Events ----------------------------------------------------------------------------------------------------------

GIVEN = {"tools": TOOLS, "metadata": {"run": "7"}, "store": True, "temperature": 0.5, "text": {"verbosity": "low"}}
EVENTS = {
    kind: each
    for each in get_args(get_args(ResponseStreamEvent)[0])
    for kind in get_args(each.model_fields["type"].annotation)
}
ARGUMENTS = '{"city":"Paris"}'
PIECES = [
    Piece(reasoning="I ", n_prompt=7),
    Piece(reasoning="look.", content="It "),
    Piece(),
    Piece(content="is", calls=(CallPiece(0, id="call_a", name="weather"),)),
    Piece(calls=(CallPiece(0, ARGUMENTS[:4]),)),
    Piece(calls=(CallPiece(0, ARGUMENTS[4:]), CallPiece(1, '{"input": "a\\n', "b", "patch"))),
    Piece(calls=(CallPiece(1, 'c"}'), CallPiece(2, "{}", "c", "mcp__find"))),
    Piece(n_prompt=7, n_cached=3, end=End("tool_calls", n_tokens=9, n_reasoning=2, timings={"n": 1})),
]
BEGIN, END = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]


def events(pieces: list[Piece]) -> tuple[ResponseEvents, list[Body]]:
    """Return the maker of the events, and the events as a client reads them."""
    made = ResponseEvents(response_bodies.repeated(GIVEN), response_tools.named(TOOLS), "tiny")
    found = [json.loads(json.dumps(event)) for piece in pieces for event in made.take(piece)]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return made, found


def test_the_order_of_events() -> None:
    _, found = events(PIECES)
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created", "in_progress",
        *BEGIN, "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", *END,
        *BEGIN, "output_text.delta", "output_text.delta", "output_text.done", *END,
        *BEGIN[:1], *["function_call_arguments.delta"] * 2, "function_call_arguments.done", *END[1:],
        *BEGIN[:1], "custom_tool_call_input.delta", "custom_tool_call_input.done", *END[1:],
        *BEGIN[:1], "function_call_arguments.delta", "function_call_arguments.done", *END[1:],
        "completed",
    ]  # fmt: skip
    of_items = [(event["output_index"], event.get("item_id")) for event in found if "output_index" in event]
    assert [index for index, _ in of_items] == sorted(index for index, _ in of_items)
    assert len({name for _, name in of_items if name}) == 5


def test_the_response_is_made_of_its_events() -> None:
    made, found = events(PIECES)
    items = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    first, last = found[0]["response"], found[-1]["response"]
    assert first["output"] == [] and first["status"] == "in_progress" and first["usage"] is None
    assert last == made.response and last["output"] == items and last["status"] == "completed"
    (created, *_), _ = events([Piece(content="a", end=End("stop"))])[::-1]
    assert created["response"]["output"] == []  # also if one piece is all of the answer
    assert [item["type"] for item in items] == [
        "reasoning", "message", "function_call", "custom_tool_call", "function_call"
    ]  # fmt: skip
    assert [item.get("call_id") for item in items] == [None, None, "call_a", "call_b", "call_c"]
    assert (items[2]["arguments"], items[3]["input"]) == (ARGUMENTS, "a\nc")
    assert (items[4]["name"], items[4]["namespace"]) == ("find", "mcp")
    assert {item["status"] for item in items} == {"completed"} and found[-1]["timings"] == {"n": 1}
    usage = last["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 9, 16)
    assert usage["input_tokens_details"]["cached_tokens"] == 3
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2
    assert (last["metadata"], last["store"], last["temperature"]) == ({"run": "7"}, False, 0.5)
    assert last["text"] == {"format": {"type": "text"}, "verbosity": "low"} and last["tools"] == TOOLS


def test_shapes_are_those_of_openais_package() -> None:
    made, found = events(PIECES)
    for event in found:
        EVENTS[event["type"]].model_validate(event)
    Response.model_validate(made.response)
    for event in [*events(PIECES[:2])[0].fail(Refusal(500, "broken")), *events([])[0].fail(Refusal(400, "x"))]:
        EVENTS[event["type"]].model_validate(event)


@pytest.mark.parametrize("n", range(len(PIECES)))
def test_a_limit_makes_the_last_item_incomplete(n: int) -> None:
    made, found = events([*PIECES[:n], Piece(end=End("length", n_tokens=4))])
    assert found[-1]["type"] == "response.incomplete" and made.response["status"] == "incomplete"
    assert made.response["incomplete_details"] == {"reason": "max_output_tokens"}
    statuses = [item["status"] for item in made.response["output"]]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"] * bool(statuses)
    assert "completed_at" not in made.response


def test_a_stop_text_makes_a_call_incomplete() -> None:
    for pieces, status in ((PIECES[:5], "incomplete"), (PIECES[:2], "completed")):
        made, _ = events([*pieces, Piece(end=End("stop", stop_text="P"))])
        assert made.response["status"] == "completed" and made.response["output"][-1]["status"] == status


def test_a_failure() -> None:
    made, found = events(PIECES[:2])
    last = made.fail(Refusal(500, "broken"))
    assert [event["type"] for event in last] == ["error", "response.failed"]
    assert [event["sequence_number"] for event in last] == [len(found), len(found) + 1]
    assert (last[0]["code"], last[0]["message"], last[0]["param"]) == ("server_error", "broken", None)
    failed = last[1]["response"]
    assert (failed["status"], failed["usage"]) == ("failed", None)
    assert failed["error"] == {"code": "server_error", "message": "broken"}
    assert [event["type"] for event in events([])[0].fail(Refusal(500, "b"))][:2] == [
        "response.created", "response.in_progress"
    ]  # fmt: skip


def test_the_progress_of_a_prompt() -> None:
    steps = [{"processed": n, "total": 9} for n in (3, 6)]
    _, found = events([*(Piece(progress=step) for step in steps), Piece(content="a", timings={"t": 1})])
    assert [event.get("prompt_progress") for event in found[:3]] == [None, *steps]
    assert [event["type"] for event in found[1:3]] == ["response.in_progress"] * 2
    assert [event.get("timings") for event in found[3:]] == [None, None, {"t": 1}]


# --- Routes ----------------------------------------------------------------------------------------------------------


class Answered:
    """An answer to a chat without a model."""

    model = SimpleNamespace(name="tiny", defaults={"temperature": 0.800000011920929, "top_p": 1.0})

    def __init__(self, body: Body, *parts: list[Piece] | Refusal) -> None:
        self.request = SimpleNamespace(has_stream=body.get("stream", False))
        self._parts = [*parts]

    async def read(self) -> list[Piece] | None:
        part = self._parts.pop(0) if self._parts else None
        if isinstance(part, Refusal):
            raise part
        return part

    async def aclose(self) -> None:
        self._parts = []


def post(router: Router, path: str, body: Body) -> bytes:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    app = SimpleNamespace(sessions=Sessions())
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "app": app}
    asyncio.run(router(scope, receive, send))
    return b"".join(message.get("body", b"") for message in sent)


def without_ids(items: list[Body]) -> list[Body]:
    return [{**item, "id": None} for item in items]


@pytest.mark.parametrize("path", ["/p/v1/responses", "/p/responses"])
def test_routes(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Whole and streamed answers are the same, and their items may be named afterwards."""
    chats_asked: list[Body] = []

    async def open_chat(_front: Any, body: Body) -> Answered:
        chats_asked.append(body)
        return Answered(body, PIECES[:2], [], PIECES[2:])

    async def count_tokens(_front: Any, body: Body) -> int:
        return len(body["messages"])

    monkeypatch.setattr(endpoints.chats, "open_chat", open_chat)
    monkeypatch.setattr(endpoints.chats, "count_tokens", count_tokens)
    router = Router(responses.routes("/p"))
    given = {"input": [USER], "tools": TOOLS}
    whole = json.loads(post(router, path, given))
    assert whole["timings"] == {"n": 1} and whole["model"] == "tiny"
    assert (whole["temperature"], whole["top_p"]) == (0.8, 1)
    stream = post(router, path, {**given, "stream": True})
    lines = stream.decode().split("\n")
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [line[7:] for line in lines if line.startswith("event: ")] == [event["type"] for event in found]
    streamed = found[-1]["response"]
    assert without_ids(streamed["output"]) == without_ids(whole["output"])
    post(router, path, {"input": [USER, *({"id": item["id"]} for item in whole["output"]), USER]})
    post(router, path, {"input": [USER, *streamed["output"], USER]})
    assert chats_asked[-1] == chats_asked[-2] and len(chats_asked[-1]["messages"]) == 3
    counted = json.loads(post(router, f"{path}/input_tokens", {"input": [USER, USER]}))
    assert counted == {"object": "response.input_tokens", "input_tokens": 2}


def test_a_stream_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_chat(_front: Any, body: Body) -> Answered:
        return Answered(body, PIECES[:1], Refusal(500, "broken"))

    monkeypatch.setattr(endpoints.chats, "open_chat", open_chat)
    stream = post(Router(responses.routes()), "/v1/responses", {"input": "a", "stream": True})
    last = json.loads(stream.split(b"data: ")[-1])
    assert last["type"] == "response.failed" and last["response"]["error"]["message"] == "broken"
