"""Tools that a chat of Anthropic's API defers, adds and removes: the beginning of its prompt stays as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.templates import CITY, WEATHER, serve_template

pytestmark = pytest.mark.native

MESSAGES = "/v1/messages"
QUESTION = {"role": "user", "content": "What is the weather?"}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"The {name}.", "input_schema": CITY, **more}


SEARCH, WEATHER_TOOL = tool("ToolSearch"), tool("weather", defer_loading=True)
TOOLS = [SEARCH, WEATHER_TOOL, tool("secret", defer_loading=True)]
LINE = json.dumps({"description": "The weather.", "name": "weather", "parameters": CITY}, separators=(",", ":"))
DEFINITION = f"<functions>\n<function>{LINE}</function>\n</functions>"
REFERENCE = {"type": "tool_reference", "tool_name": "weather"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that calls `weather`, whatever it is asked."""
    with serve_template(tmp_path_factory.mktemp("model"), "Qwen3.5-4B", WEATHER, n_ctx=8192) as running:
        yield running


def searched(*content: Any) -> list[dict[str, Any]]:
    """A conversation with the result of a search for tools."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"city": "weather"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": list(content)}
    return [QUESTION, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def changed(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [QUESTION, {"role": "assistant", "content": "Yes."}, {"role": "system", "content": list(blocks)}, QUESTION]


def change(kind: str, **tool: Any) -> dict[str, Any]:
    return {"type": f"tool_{kind}", "tool": tool}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def count(server: Served, messages: list[Any], tools: list[Any]) -> int:
    status, answer = server.post(f"{MESSAGES}/count_tokens", {"messages": messages, "tools": tools})
    assert status == 200, answer
    return int(answer["input_tokens"])


def answer_to(server: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    body = {"messages": messages, "tools": tools, "max_tokens": 40, "temperature": 0}
    status, answer = server.post(MESSAGES, body)
    assert status == 200, answer
    return dict(answer)


def calls(server: Served, messages: list[Any], tools: list[Any]) -> list[str]:
    content = answer_to(server, messages, tools)["content"]
    return [block["name"] for block in content if block["type"] == "tool_use"]


def test_deferred_tools_are_not_in_the_prompt(server: Served) -> None:
    assert count(server, [QUESTION], TOOLS) == count(server, [QUESTION], [SEARCH])
    assert calls(server, [QUESTION], TOOLS) == []


def test_a_reference_shows_a_tool_and_makes_it_callable(server: Served) -> None:
    assert count(server, searched(REFERENCE), TOOLS) == count(server, searched(text(DEFINITION)), [SEARCH])
    assert calls(server, searched(REFERENCE), TOOLS) == ["weather"]
    assert calls(server, searched(text(DEFINITION)), [SEARCH]) == []
    two = searched(REFERENCE, {"type": "tool_reference", "tool_name": "none"})
    shown = searched(text(f"There is no tool none.\n{DEFINITION}"))
    assert count(server, two, TOOLS) == count(server, shown, [SEARCH])


def test_the_beginning_of_the_prompt_is_not_read_again(server: Served) -> None:
    before = answer_to(server, searched("Nothing."), TOOLS)["usage"]
    usage = answer_to(server, searched(REFERENCE), TOOLS)["usage"]
    n_before = before["input_tokens"] + before["cache_read_input_tokens"]
    assert usage["cache_read_input_tokens"] > 0.8 * n_before
    assert usage["input_tokens"] < n_before / 2


def test_tools_are_added_by_name_and_by_value(server: Served) -> None:
    intro = "From here on, this tool is available:\n"
    for name, block in {
        "by name": change("addition", type="tool_reference", name="weather"),
        "by value": change("addition", type="tool_definition", definition=tool("weather")),
    }.items():
        tools = TOOLS if name == "by name" else [SEARCH]
        given = changed(text("News."), block)
        shown = changed(text("News."), text(f"{intro}{DEFINITION}"))
        assert count(server, given, tools) == count(server, shown, [SEARCH]), name
        assert calls(server, given, tools) == ["weather"], name


def test_a_removed_tool_stays_in_the_beginning_and_cannot_be_called(server: Served) -> None:
    tools = [SEARCH, tool("weather")]
    block = change("removal", type="tool_reference", name="weather")
    shown = changed(text("The tool weather is no longer available."))
    assert count(server, changed(block), tools) == count(server, shown, tools)
    assert calls(server, changed(), tools) == ["weather"]
    assert calls(server, changed(block), tools) == []
    assert calls(server, changed(block, change("addition", type="tool_reference", name="weather")), tools) == [
        "weather"
    ]


def test_a_search_result_is_a_text_with_its_title_and_source(server: Served) -> None:
    found = {"type": "search_result", "title": "Title", "source": "https://a.b", "content": [text("one"), text("two")]}
    shown = text("Title\nhttps://a.b\none\ntwo")
    for make in (lambda block: [{"role": "user", "content": [block]}], searched):
        assert count(server, make(found), [SEARCH]) == count(server, make(shown), [SEARCH])


PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
UNREAD = {"a picture": PNG, "a document (application/pdf)": PDF, "a block of type 'container'": {"type": "container"}}


@pytest.mark.parametrize("what", UNREAD)
def test_a_block_of_a_result_that_is_not_read_is_a_text(server: Served, what: str) -> None:
    """The same block of a user is an error."""
    shown = text(f"[Here is {what} that this model cannot read.]")
    given = searched(text("one"), UNREAD[what])
    assert count(server, given, [SEARCH]) == count(server, searched(text("one"), shown), [SEARCH])
    assert answer_to(server, given, [SEARCH])["content"]
    status, _ = server.post(MESSAGES, {"messages": [{"role": "user", "content": [UNREAD[what]]}], "max_tokens": 1})
    assert status == 400


@pytest.mark.parametrize("kind", ["picture", "part of type 'input_file'"])
def test_parts_of_results_of_openais_apis(server: Served, kind: str) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = {
        "picture": {"type": "image_url", "image_url": {"url": url}},
        "part of type 'input_file'": {"type": "input_file"},
    }
    items = {"picture": {"type": "input_image", "image_url": url}, "part of type 'input_file'": {"type": "input_file"}}
    shown = f"[Here is a {kind} that this model cannot read.]"
    call = {"id": "call00001", "type": "function", "function": {"name": "ToolSearch", "arguments": "{}"}}
    for content in ([parts[kind]], shown):
        messages = [QUESTION, {"role": "assistant", "tool_calls": [call]}]
        messages.append({"role": "tool", "tool_call_id": "call00001", "content": content})
        status, answer = server.post("/apply-template", {"messages": messages})
        assert status == 200 and shown in answer["prompt"], answer
    function = {"type": "function_call", "call_id": "call00001", "name": "ToolSearch", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call00001", "output": [items[kind]]}
    body = {"input": [QUESTION, function, output], "max_output_tokens": 1}
    assert server.post("/v1/responses", body)[0] == 200
    status, _ = server.post("/v1/responses", body | {"input": [{"role": "user", "content": [items[kind]]}]})
    assert status == 400
