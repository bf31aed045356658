"""Calls that a limit or a stop text cuts, or that other text follows: a stream's pieces make up the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import events
from fixtures.templates import serve_template

pytestmark = pytest.mark.native

Answer = dict[str, Any]
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
REPLIES = {  # by template: what the model says, token by token
    "Qwen-Qwen2.5-7B-Instruct": (
        "Well. ", "<tool", "_call>\n", '{"name": ', '"weather", ', '"arguments": {', '"city": "Par', 'is", "days": ',
        " 3", "}}\n", "</tool_call>",
    ),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("if a", " <", "tool", "s: ", "b <", "tool_c"),
    "meta-llama-Llama-3.1-8B-Instruct": (
        '{"na', 'me": "weather", ', '"parameters": ', '{"city": "Par', 'is"', "}} ", "is my call ", "to you",
    ),
    "Qwen3.5-4B": (
        "Let me see", "</think>\n\n", "<tool_call>\n", "<function=wea", "ther>\n", "<parameter=city>\n", "Paris",
        "\n</parameter>\n", "<parameter=zone>\n", "north", "\n</parameter> ", "</function>\n", "</tool_call>",
    ),
}  # fmt: skip
STOPS = ("name", "is", "_call", "param")


@pytest.fixture(scope="module", params=REPLIES)
def speaking(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Served, tuple[str, ...]]]:
    says = REPLIES[request.param]
    with serve_template(tmp_path_factory.mktemp("model"), request.param, says) as running:
        yield running, says


def chat(server: Served, body: Answer, stream: bool) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls of OpenAI's chat API."""
    body = {"tools": [{"type": "function", "function": {"name": "weather", "parameters": CITY}}], **body}
    if not stream:
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200, answer
        message = answer["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        found = [(call["name"], call["arguments"]) for call in calls]
        return message.get("reasoning_content") or "", message.get("content") or "", found
    reasoning, content = "", ""
    pieces: list[list[str]] = []
    for event in events(server, "/v1/chat/completions", body):
        for choice in event["choices"]:
            reasoning += choice["delta"].get("reasoning_content") or ""
            content += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or []:
                while len(pieces) <= part["index"]:
                    pieces.append(["", ""])
                pieces[part["index"]][0] += part["function"].get("name", "")
                pieces[part["index"]][1] += part["function"].get("arguments", "")
    return reasoning, content, [(name, arguments) for name, arguments in pieces]


def messages(server: Served, body: Answer, stream: bool) -> list[list[Any]]:
    """Type and text of each block of Anthropic's API; of calls their input."""
    body = {"tools": [{"name": "weather", "input_schema": CITY}], **body}
    if not stream:
        status, answer = server.post("/v1/messages", body)
        assert status == 200, answer
        return [[b["type"], b.get("input") or b.get("text") or b.get("thinking") or ""] for b in answer["content"]]
    blocks: dict[int, list[Any]] = {}
    for event in events(server, "/v1/messages", body):
        if event["type"] == "content_block_start":
            blocks[event["index"]] = [event["content_block"]["type"], ""]
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]][1] += delta.get("text") or delta.get("partial_json") or delta.get("thinking") or ""
    return [blocks[index] for index in sorted(blocks)]


def responses(server: Served, body: Answer, stream: bool) -> list[tuple[str, str]]:
    """Type and text of each item of the Responses API."""
    tools = body.get("tools", [{"type": "function", "name": "weather", "parameters": CITY}])
    body = {"input": body["messages"], "max_output_tokens": body["max_tokens"], "stop": body["stop"], "tools": tools}
    body["temperature"] = 0
    if not stream:
        status, answer = server.post("/v1/responses", body)
        assert status == 200, answer
        output = answer["output"]
        return [(item["type"], item.get("arguments") or item["content"][0]["text"]) for item in output]
    items: dict[str, tuple[str, str]] = {}
    kinds = {"reasoning_text": "reasoning", "output_text": "message", "function_call_arguments": "function_call"}
    for event in events(server, "/v1/responses", body):
        _, kind, what = (*event["type"].split("."), "")[:3]
        if what == "delta":
            before = items.get(event["item_id"], (kinds[kind], ""))[1]
            items[event["item_id"]] = (kinds[kind], before + event["delta"])
    return [*items.values()]


def cuts(says: tuple[str, ...]) -> Iterator[Answer]:
    question = {"messages": [{"role": "user", "content": "How is it?"}], "temperature": 0}
    for n in range(1, len(says) + 2):
        yield {**question, "max_tokens": n, "stop": []}
    for stop in STOPS:
        yield {**question, "max_tokens": 40, "stop": [stop]}


def test_pieces_make_up_the_whole(speaking: tuple[Served, tuple[str, ...]]) -> None:
    server, says = speaking
    for body in cuts(says):
        whole = chat(server, body, stream=False)
        assert chat(server, body, stream=True) == whole
        assert any(whole) or not "".join(says[: body["max_tokens"]]).strip()
        assert responses(server, body, stream=True) == responses(server, body, stream=False)
        said = "".join(says[: body["max_tokens"]]).replace("</think>", "")
        if not body["stop"] and not whole[2]:
            assert "".join((whole[0] + whole[1]).split()) == "".join(said.split())  # also the beginning of a call


def assert_same_message(server: Served, body: Answer) -> None:
    """Compare whole and streamed blocks of Anthropic's API; truncated arguments are completed in the whole."""
    given = {**body, "stop_sequences": body["stop"]}
    del given["stop"]
    whole, pieces = (messages(server, given, stream) for stream in (False, True))
    assert [kind for kind, _ in whole] == [kind for kind, _ in pieces]
    for (kind, value), (_, text) in zip(whole, pieces, strict=True):
        if kind != "tool_use":
            assert value == text
        elif value:  # as far as the pieces go
            assert json.dumps(value)[1:-3].replace(" ", "").rstrip('"') in text.replace(" ", "")


def test_pieces_make_up_the_whole_message(speaking: tuple[Served, tuple[str, ...]]) -> None:
    server, says = speaking
    for body in cuts(says):
        assert_same_message(server, body)


def reasons_of(server: Served, body: Answer, stream: bool) -> tuple[str, str, str]:
    """Finish reason of OpenAI's chat API, that of its older form of tools, and the status of a response's last call."""
    function = {"name": "weather", "parameters": CITY}
    found = []
    for tools in ({"tools": [{"type": "function", "function": function}]}, {"functions": [function]}):
        path, given = "/v1/chat/completions", {**body, **tools}
        pieces = list(events(server, path, given)) if stream else [server.post(path, given)[1]]
        found += [choice["finish_reason"] for piece in pieces for choice in piece["choices"] if choice["finish_reason"]]
    given = {"input": body["messages"], "max_output_tokens": body["max_tokens"], "stop": body["stop"], "temperature": 0}
    given["tools"] = [{"type": "function", **function}]
    whole = list(events(server, "/v1/responses", given))[-1]["response"] if stream else None
    output = (whole or server.post("/v1/responses", given)[1])["output"]
    statuses = [item["status"] for item in output if item["type"] == "function_call"] or [output[-1]["status"]]
    assert len(found) == 2 and all(status == "completed" for status in statuses[:-1])
    return found[0], found[1], statuses[-1]


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def test_a_call_that_is_cut_is_none_to_run(speaking: tuple[Served, tuple[str, ...]]) -> None:
    server, says = speaking
    for stop in ([], ["Par"], ["is"], ["}"]):
        body = {
            "messages": [{"role": "user", "content": "How is it?"}],
            "temperature": 0,
            "max_tokens": 40,
            "stop": stop,
        }
        arguments = [arguments for _, arguments in chat(server, body, stream=False)[2]]
        is_whole = all(map(is_json, arguments))
        expected = ("tool_calls", "function_call") if arguments and is_whole else ("stop", "stop")
        for stream in (False, True):
            found = reasons_of(server, body, stream)
            assert found == (*expected, "completed" if is_whole else "incomplete"), (stop, stream)
        assert is_whole or stop or "zone" in "".join(says)  # an argument that the tool does not have


BEGUN = {  # by template: the beginning of an answer, and what the model adds to it
    "Qwen-Qwen2.5-7B-Instruct": (
        "Well. <tool_call>\n",
        ('{"name": ', '"weather", ', '"arguments": {', '"city": "Par', 'is"', "}}\n", "</tool_call>"),
    ),
    "Qwen3.5-4B": (
        "<think>\nHm.\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\n",
        ("Par", "is", "\n</parameter>", "\n</function>\n", "</tool_call>"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEGUN)
def test_calls_that_a_request_has_begun_are_whole(tmp_path: Path, name: str) -> None:
    """An answer is the continuation of a text, but a call is sent from its beginning."""
    begun, says = BEGUN[name]
    with serve_template(tmp_path, name, says) as server:
        for body in cuts(says):
            body["messages"] = [*body["messages"], {"role": "assistant", "content": begun}]
            whole = chat(server, body, False)
            assert chat(server, body, True) == whole, body
            assert begun not in whole[1]
            assert responses(server, body, True) == responses(server, body, False)
            assert_same_message(server, body)
        body["stop"] = []
        ((function, arguments),) = chat(server, body, True)[2]
        assert (function, json.loads(arguments)) == ("weather", {"city": "Paris"})


def test_probabilities_of_a_stream_with_tools(speaking: tuple[Served, tuple[str, ...]]) -> None:
    """A stream has those of every token, also while the parser holds its text back."""
    server, _ = speaking
    body = {"messages": [{"role": "user", "content": "How is it?"}], "temperature": 0, "max_tokens": 40}
    body |= {"tools": [{"type": "function", "function": {"name": "weather", "parameters": CITY}}], "logprobs": True}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    choices = [choice for event in events(server, "/v1/chat/completions", body) for choice in event["choices"]]
    streamed = [token for choice in choices if choice.get("logprobs") for token in choice["logprobs"]["content"]]
    whole = answer["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in streamed] == [token["token"] for token in whole]


THOUGHTS = {  # by template: what the model says, and the tags of its thoughts
    "Qwen-Qwen3-0.6B": (("<think>", "I ", "look.", "\n</think>", "\n\n", "Yes."), ("<think>", "</think>")),
    "Qwen3.5-4B": (("I ", "look.", "\n</think>", "\n\n", "Yes."), ("</think>",)),
    "google-gemma-4-31B-it": (
        ("<|channel>thought\n", "I ", "look.", "<channel|>", "Yes."), ("<|channel>thought", "<channel|>"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", THOUGHTS)
def test_no_tag_of_thoughts_is_shown_where_an_answer_is_cut(tmp_path: Path, name: str) -> None:
    says, tags = THOUGHTS[name]
    begin = len(tags) - 1
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY}}
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    with serve_template(tmp_path, name, says) as server:
        for n in range(1, len(says) + 1):
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": n, "temperature": 0, **kwargs}
            for form in ({}, {"tools": []}, {"tools": [], "response_format": schema}):
                found = chat(server, body | form, stream=False)
                assert found == chat(server, body | form, stream=True)
                assert found[0].strip() == "".join(says[begin : begin + 2][: max(0, n - begin)]).strip()
                assert not any(tag in found[1] for tag in tags), found


PROSE = ("Use ", "<tool_call>", " tags ", "for it.")
UNKNOWN = ("Hm ", "<tool_call>", "\n<function=", "clock", ">\n</function>", "\n</tool_call>", " no.")
END = ("\n</think>", "\n\n")


GOES_ON = ("Use ", "<tool_call>\n<function=clock", "> ", "for it.")  # a token has the opening and an unknown name


@pytest.mark.parametrize("tools", [{}, {"tools": []}], ids=["with tools", "without tools"])
@pytest.mark.parametrize(
    ("thoughts", "text"), [(PROSE, ("Done.",)), (UNKNOWN, ("Done.",)), (("Hm.",), PROSE), (("Hm.",), GOES_ON)]
)
def test_a_tag_that_begins_no_call_is_text(
    tmp_path: Path, thoughts: tuple[str, ...], text: tuple[str, ...], tools: Answer
) -> None:
    """Neither the text behind a tag in prose or a call of an unknown tool is lost, nor the answer, on any API."""
    body = {"messages": [{"role": "user", "content": "Q"}], "max_tokens": 60, "temperature": 0, **tools}
    with serve_template(tmp_path, "Qwen3.5-4B", (*thoughts, *END, *text)) as server:
        for stream in (False, True):
            reasoning, content, calls = chat(server, body, stream)
            assert (reasoning.strip(), content, calls) == ("".join(thoughts), "".join(text), [])
            assert [text for _, text in messages(server, body, stream)] == [reasoning, content]
            items = responses(server, {**body, "stop": []}, stream)
            assert items == [("reasoning", reasoning), ("message", content)]


def test_a_call_counts_behind_an_opening_that_begins_none(tmp_path: Path) -> None:
    """A token goes on with an unknown name. The next opening has the grammar of calls: the model says another city."""
    says = (*GOES_ON, "<tool_call>", "\n<function=weather>\n", "<parameter=city>\n", "Par", "is")
    city = {**CITY, "properties": {"city": {"const": "Ulm"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": city}}]
    body = {"messages": [{"role": "user", "content": "Q"}], "max_tokens": 99, "temperature": 0, "tools": tools}
    body["parallel_tool_calls"] = False
    with serve_template(tmp_path, "Qwen3-Coder", says) as server:
        for stream in (False, True):
            _, content, calls = chat(server, body, stream)
            assert content.strip() == "".join(GOES_ON)
            assert [(name, json.loads(arguments)) for name, arguments in calls] == [("weather", {"city": "Ulm"})]


def test_text_behind_a_call_in_thoughts_follows_it(tmp_path: Path) -> None:
    call = ("<tool_call>", "\n<function=weather>", "\n</function>", "\n</tool_call>")
    says = ("Hm. ", *call, " No.", *END, "Done.")
    body = {"messages": [{"role": "user", "content": "Q"}], "max_tokens": 60, "temperature": 0}
    with serve_template(tmp_path, "Qwen3.5-4B", says) as server:
        for stream in (False, True):
            reasoning, content, calls = chat(server, body, stream)
            assert (reasoning.split(), content, calls) == (["Hm.", "No."], "Done.", [("weather", "{}")])
            kinds = [kind for kind, _ in messages(server, body, stream)]
            assert kinds == ["thinking", "tool_use", "thinking", "text"]
            kinds = [kind for kind, _ in responses(server, {**body, "stop": []}, stream)]
            assert kinds == ["reasoning", "function_call", "reasoning", "message"]
