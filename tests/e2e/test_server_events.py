"""The APIs' events, errors and lists in the order and the words of their references, by plain HTTP."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import APIS, body_for, events, whole
from fixtures.templates import CITY, WEATHER, serve_template

pytestmark = pytest.mark.native

QUESTION = [{"role": "user", "content": "How is it?"}]
RESPONSE = {
    "input": QUESTION, "temperature": 0, "tools": [{"type": "function", "name": "weather", "parameters": CITY}],
    "metadata": {"run": "7"}, "parallel_tool_calls": False, "text": {"verbosity": "low"},
}  # fmt: skip
MESSAGE = {
    "messages": QUESTION,
    "max_tokens": 100,
    "temperature": 0,
    "tools": [{"name": "weather", "input_schema": CITY}],
}
OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("model"), "Qwen3.5-4B", WEATHER) as running:
        yield running


def test_connections_stay_open(server: Served) -> None:
    connection = server.connect()
    for path in (*APIS, *APIS):
        body = json.dumps({**body_for(path, "a", 2, []), "stream": True})
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        assert response.status == 200 and response.getheader("Keep-Alive")
        assert is_open(connection), path


def is_open(connection: http.client.HTTPConnection) -> bool:
    """Return True unless the server has closed the connection: then reading ends at once."""
    connection.sock.settimeout(0.2)
    try:
        return bool(connection.sock.recv(1))
    except TimeoutError:
        return True
    finally:
        connection.sock.settimeout(60)


def test_responses_events(server: Served) -> None:
    found = list(events(server, "/v1/responses", RESPONSE))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    kinds = [kind.removeprefix("response.") for kind, _ in groupby(event["type"] for event in found)]
    begin, end = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    assert kinds == [
        "created", "in_progress",
        *begin, "reasoning_text.delta", "reasoning_text.done", *end,
        *begin, "output_text.delta", "output_text.done", *end,
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    items = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["response"]["output"] == items
    for index, item in enumerate(items):
        own = [event for event in found if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        assert own[0]["item"]["status"] == "in_progress" and item["status"] == "completed"
        text = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        (done,) = [e for e in own if e["type"].endswith((".text.done", "_text.done", "arguments.done"))]
        assert text == done.get("text", done.get("arguments"))
        if item["type"] != "function_call":
            assert all(event["content_index"] == 0 for event in own[1:-1])


def test_a_response_is_complete(server: Served) -> None:
    """In every event that holds one, and if it is not streamed."""
    status, answer = server.post("/v1/responses", RESPONSE)
    assert status == 200
    found = [e["response"] for e in events(server, "/v1/responses", RESPONSE) if "response" in e]
    for response in (answer, *found):
        assert response["tools"] == RESPONSE["tools"] and response["tool_choice"] == "auto"
        assert response["metadata"] == {"run": "7"} and response["parallel_tool_calls"] is False
        assert response["error"] is None and response["incomplete_details"] is None
        assert response["temperature"] == 0 and 0 < response["top_p"] <= 1
        assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
        assert {"instructions", "max_output_tokens", "previous_response_id", "reasoning", "truncation"} <= set(response)
    assert [r["status"] for r in found] == ["in_progress", "in_progress", "completed"]
    for response in (answer, found[-1]):
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
        assert response["usage"]["total_tokens"] > response["usage"]["output_tokens"] > 0
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == [item["type"] for item in found[-1]["output"]] == ["reasoning", "message", "function_call"]


IDS = {  # by API: how the ids of answers and of their parts begin
    "/v1/chat/completions": {"chatcmpl-", "call_"}, "/v1/messages": {"msg_", "toolu_"}, "/v1/completions": {"cmpl-"},
    "/v1/responses": {"resp_", "rs_", "msg_", "fc_", "call_"},
}  # fmt: skip


def ids(found: Any) -> Iterator[str]:
    if isinstance(found, list):
        for part in found:
            yield from ids(part)
    elif isinstance(found, dict):
        for key, value in found.items():
            if key.endswith("id") and isinstance(value, str):
                yield value
            else:
                yield from ids(value)


@pytest.mark.parametrize("path", IDS)
def test_ids(server: Served, path: str) -> None:
    """They begin as in the API's reference, and a stream names each thing by one id."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    chat = {"messages": QUESTION, "tools": tools, "temperature": 0}
    given = {"/v1/messages": MESSAGE, "/v1/responses": RESPONSE, "/v1/chat/completions": chat}
    body = given.get(path, {"prompt": "a", "max_tokens": 2})
    status, answer = server.post(path, body)
    assert status == 200, answer
    for found in (list(ids(answer)), list(ids(list(events(server, path, body))))):
        assert len(set(found)) == len(IDS[path])
        assert {re.split(r"(?<=[-_])", name)[0] for name in found} == IDS[path]


def test_a_cut_response_is_incomplete(server: Served) -> None:
    body = {**RESPONSE, "max_output_tokens": 11}
    last = list(events(server, "/v1/responses", body))[-1]
    status, answer = server.post("/v1/responses", body)
    assert status == 200 and last["type"] == "response.incomplete"
    for response in (answer, last["response"]):
        assert (response["status"], response["output"][-1]["status"]) == ("incomplete", "incomplete")
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["max_output_tokens"] == 11


def test_messages_events(server: Served) -> None:
    found = list(events(server, "/v1/messages", MESSAGE))
    kinds = [kind for kind, _ in groupby((event["type"], event.get("index")) for event in found)]
    blocks = [(f"content_block_{part}", index) for index in range(3) for part in ("start", "delta", "stop")]
    assert kinds == [("message_start", None), *blocks, ("message_delta", None), ("message_stop", None)]
    starts = [event["content_block"] for event in found if event["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use"]
    assert starts[2]["input"] == {} and starts[0]["signature"] == ""
    status, answer = server.post("/v1/messages", MESSAGE)
    assert status == 200 and [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    assert answer["content"][2]["input"] == {"city": "Paris"}
    first, last = found[0]["message"]["usage"], found[-2]["usage"]
    keys = {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"}
    assert set(first) == set(last) == set(answer["usage"]) == keys
    assert last["output_tokens"] == answer["usage"]["output_tokens"] > first["output_tokens"] == 0


@pytest.mark.parametrize("blocks", [("result", "text"), ("text", "result"), ("result", "text", "result", "text")])
def test_results_and_texts_keep_their_order(tmp_path_factory: pytest.TempPathFactory, blocks: tuple[str, ...]) -> None:
    marks = [f"mark{index}" for index in range(len(blocks))]
    content = [
        {"type": "text", "text": mark} if kind == "text" else
        {"type": "tool_result", "tool_use_id": mark, "content": mark}
        for kind, mark in zip(blocks, marks, strict=True)
    ]  # fmt: skip
    call = {"type": "tool_use", "id": "mark0", "name": "weather", "input": {}}
    messages = [*QUESTION, {"role": "assistant", "content": [call]}, {"role": "user", "content": content}]
    folder = tmp_path_factory.mktemp("model")
    with serve_template(folder, "Qwen3.5-4B", WEATHER, environment={"LLAMA_SERVER_SLOTS_DEBUG": "1"}) as debugged:
        assert debugged.post("/v1/messages", {**MESSAGE, "messages": messages, "max_tokens": 1})[0] == 200
        prompt = debugged.get("/slots")[1][0]["prompt"]
    assert sorted(marks, key=prompt.rindex) == marks


def test_claude_codes_billing_header_is_not_in_the_prompt(server: Served) -> None:
    """A block, or the first line of a text, also where a gateway has moved it to another API."""
    header, prompt = "x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=00000;", "You are kind."

    def read(path: str, *texts: str) -> int:
        system: Any = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
        body = body_for(path, "a", 1, [])
        if path == "/v1/chat/completions":
            body["messages"] = [{"role": "system", "content": system}, *body["messages"]]
        else:
            body["system" if path == "/v1/messages" else "instructions"] = system
        status, answer = server.post(path, {**body, "cache_prompt": False})
        assert status == 200, answer
        usage = answer["usage"]
        return int(usage.get("input_tokens", usage.get("prompt_tokens")))

    for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
        expected = read(path, prompt)
        forms = [[f"{header}\n{prompt}"], [header, prompt], [f"{header}\n{prompt}", ""]]
        for form in forms[: 1 if path == "/v1/responses" else None]:
            assert read(path, *form) == expected, (path, form)
        assert read(path, f"{header.replace('anthropic', 'another')}\n{prompt}") > expected + 20


def test_overflows_in_the_words_of_clients(server: Served) -> None:
    text = "word " * 3000
    for path in OPENAI:
        for stream in (False, True):
            status, answer = server.post(path, {**body_for(path, text, 4, []), "stream": stream})
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), path
            assert answer["error"]["n_prompt_tokens"] > answer["error"]["n_ctx"]
    status, answer = server.post("/v1/messages", body_for("/v1/messages", text, 4, []))
    assert status == 400 and answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    head, _, tail = answer["error"]["message"].partition(" tokens > ")
    assert int(head.removeprefix("prompt is too long: ")) > int(tail.partition(" maximum; ")[0])


def test_errors_of_messages_have_a_type(server: Served) -> None:
    for body in ({}, {"messages": []}, {"messages": "a"}, {"messages": [{"role": "user", "content": [{"type": "x"}]}]}):
        status, answer = server.post("/v1/messages", body)
        assert status == 400 and answer["type"] == "error" and answer["error"]["message"]
        assert answer["error"]["type"] == "invalid_request_error"


def test_models(server: Served) -> None:
    status, listed = server.get("/v1/models")
    (model,) = listed["data"]
    assert status == 200 and listed["has_more"] is False and listed["first_id"] == listed["last_id"] == model["id"]
    assert model["type"] == "model" and model["display_name"] == model["id"] and model["created_at"].endswith("Z")
    status, found = server.get(f"/v1/models/{model['id']}")
    assert status == 200 and found["id"] == model["id"] and found["object"] == "model"
    status, answer = server.get("/v1/models/some/other")
    assert status == 404 and answer["error"]["code"] == "model_not_found" and "some/other" in answer["error"]["message"]
    status, answer = server.get("/v1/models/other", anthropic_version="2023-06-01")
    assert status == 404 and answer["type"] == "error" and answer["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("begun", ["Once upon", "<think>\nLet me", "<think>\nLet me.\n</think>\n\nSo"])
def test_an_answer_that_is_continued_is_not_repeated(server: Served, begun: str) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": begun}]
    prompt = server.post("/apply-template", {"messages": turns})[1]["prompt"]
    assert prompt.endswith(begun) and prompt.count("<think>") == 1
    expected = server.complete(prompt, 6, temperature=0)["content"]
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
        body = {**body_for(path, "", 6, []), "input" if path == "/v1/responses" else "messages": turns}
        found = list(events(server, path, body))
        assert text_of(path, found).strip() == whole_text(server, path, body).strip() == expected.strip(), path
    named = {"messages": turns, "max_tokens": 6, "continue_final_message": True, "add_generation_prompt": False}
    assert whole_text(server, "/v1/chat/completions", {**named, "temperature": 0}).strip() == expected.strip()


def test_a_question_is_continued(server: Served) -> None:
    body = {"messages": QUESTION, "max_tokens": 6, "temperature": 0, "add_generation_prompt": False}
    body["continue_final_message"] = True
    prompt = server.post("/apply-template", body)[1]["prompt"]
    assert prompt.endswith(QUESTION[-1]["content"])
    expected = server.complete(prompt, 6, temperature=0)["content"]
    assert whole_text(server, "/v1/chat/completions", body).strip() == expected.strip()


def text_of(path: str, found: list[dict[str, Any]]) -> str:
    """Return thoughts and text of a stream."""
    if path == "/v1/responses":
        return "".join(e["delta"] for e in found if e["type"].endswith("_text.delta"))
    if path == "/v1/messages":
        deltas = [e["delta"] for e in found if e["type"] == "content_block_delta"]
        return "".join(d.get("text", "") + d.get("thinking", "") for d in deltas)
    deltas = [choice["delta"] for event in found for choice in event["choices"]]
    return "".join((d.get("reasoning_content") or "") + (d.get("content") or "") for d in deltas)


def whole_text(server: Served, path: str, body: dict[str, Any]) -> str:
    """Return thoughts and text of an answer that is not streamed."""
    if path != "/v1/chat/completions":
        _, answer = server.post(path, body)
        if path == "/v1/messages":
            return "".join(b.get("thinking", "") + b.get("text", "") for b in answer["content"])
        return whole(server, path, body)
    message = server.post(path, body)[1]["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


@pytest.mark.parametrize("n", range(9, 15))
def test_cut_calls_can_be_sent_back(server: Served, n: int) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    body = {"messages": QUESTION, "max_tokens": n, "temperature": 0, "tools": tools}
    message = server.post("/v1/chat/completions", body)[1]["choices"][0]["message"]
    turns = [*QUESTION, message]
    turns += [{"role": "tool", "tool_call_id": call["id"], "content": "?"} for call in message.get("tool_calls") or []]
    assert server.post("/v1/chat/completions", {**body, "messages": [*turns, *QUESTION]})[0] == 200
    output = server.post("/v1/responses", {**RESPONSE, "max_output_tokens": n})[1]["output"]
    assert server.post("/v1/responses", {**RESPONSE, "input": [*QUESTION, *output, *QUESTION]})[0] == 200


@pytest.mark.parametrize("n_brackets", [0, 3_000_000])  # in quadratic time, these take minutes
def test_values_before_a_cut_key_are_kept(server: Served, n_brackets: int) -> None:
    cut = '"days": ' + n_brackets * "[" if n_brackets else '"' + 3000 * "x"
    function = {"name": "weather", "arguments": '{"city": "Paris", ' + cut}
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "?"}
    status, answer = server.post("/apply-template", {"messages": [*QUESTION, call, result]})
    is_kept = "Paris" in answer["prompt"]
    assert status == 200 and is_kept == (n_brackets == 0) and "xxx" not in answer["prompt"]  # none of what is too deep


def test_items_of_codex(server: Served) -> None:
    """Calls of custom tools are read; other items are refused by their type."""
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "weather", "input": "Paris"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "rain"}
    assert server.post("/v1/responses", {**RESPONSE, "input": [*QUESTION, call, result]})[0] == 200
    for kind in ("web_search_call", "local_shell_call"):
        status, answer = server.post("/v1/responses", {**RESPONSE, "input": [*QUESTION, {"type": kind, "id": "x"}]})
        assert status == 400 and kind in answer["error"]["message"] and "item 2" in answer["error"]["message"]


def test_items_may_be_named_by_their_id(server: Served) -> None:
    """As Vercel's AI SDK does by default."""
    items = server.post("/v1/responses", RESPONSE)[1]["output"]
    assert items[-1]["call_id"].removeprefix("call_") not in items[-1]["id"]  # models may write it again: "weather:0"
    result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "sunny"}
    references = [{"type": "item_reference", "id": item["id"]} for item in items]
    counts = []
    for answer in (items, references):
        status, found = server.post("/v1/responses", {**RESPONSE, "input": [*QUESTION, *answer, result]})
        assert status == 200, found
        counts.append(found["usage"]["input_tokens"])
    assert counts[0] == counts[1]
    lost = {"type": "item_reference", "id": "msg_0"}
    status, found = server.post("/v1/responses", {**RESPONSE, "input": [*QUESTION, lost]})
    assert status == 400 and "refers to 'msg_0'" in found["error"]["message"]
