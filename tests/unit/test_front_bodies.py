"""Bodies of OpenAI's chats become checked requests; what would be ignored is refused by its name."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.json_places import changed
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.requests.bodies import read_chat
from llama_eagle.serving.requests.chat_request import ChatRequest

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
THINKING = PLAIN + "{% if add_generation_prompt %}<assistant><think>{% endif %}"
CHANNELS = PLAIN + "{# <|channel|>analysis<|message|> #}"
MARK = "<__media__>"
USER = {"role": "user", "content": "Question"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]
PNG = "iVBORw0KGgoAAAA"
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg", "format": "wav"}}


def served(template: str = PLAIN, **more: Any) -> Any:
    chats = {
        "has_jinja": True, "reasoning_format": "auto", "thinks": None, "variables": {}, "continues_answers": True,
        "budget": -1, "budget_message": "", "media_path": "",
    }  # fmt: skip
    chats |= {key: more.pop(key) for key in list(more) if key in chats}
    model = {"has_images": False, "has_sound": False, "has_video": False, "media_marker": MARK, "n_slots": 4}
    model |= {"n_vocab": 300, "n_adapters": 0}
    return SimpleNamespace(**model | more, template_for=lambda has_tools: template, chats=SimpleNamespace(**chats))


def read(reads: Any = None, messages: Any = (USER,), **body: Any) -> ChatRequest:
    listed = list(messages) if isinstance(messages, tuple) else messages
    return read_chat({"messages": listed, **body}, reads or served())


def refused(reads: Any = None, messages: Any = (USER,), **body: Any) -> str:
    with pytest.raises(Refusal) as found:
        read(reads, messages, **body)
    assert found.value.status == 400
    return str(found.value)


def said(role: str, content: Any = "text", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}
    return said("assistant", None, tool_calls=[call])


def result(content: Any) -> dict[str, Any]:
    return said("tool", content, tool_call_id="call00001")


def test_a_plain_chat() -> None:
    request = read(temperature=0, max_tokens=5, stop="end", model="m", stream=True, seed=None, user="u")
    assert request.messages == [USER] and (request.model, request.has_stream) == ("m", True)
    assert request.settings | {"user": ""} == {
        "temperature": 0, "max_tokens": 5, "stop": ["end"], "n_cmpl": 1, "user": "",
        "reasoning_budget_tokens": -1, "reasoning_budget_message": "",
    }  # fmt: skip


@pytest.mark.parametrize("body", [None, [], 5, "text"])
def test_a_body_that_is_no_object(body: Any) -> None:
    with pytest.raises(Refusal, match="no JSON object"):
        read_chat(body, served())


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("x", ["'messages' is no list"]), ([], ["'messages' is empty"]), ([5], ["message 1"]), ([None], ["message 1"]),
        ([{"content": "a"}], ["message 1", "role"]), ([said(5)], ["message 1", "role"]),  # type: ignore[arg-type]
        ([{**USER, "name": 5}], ["message 1", "'name'"]), ([USER, {"role": "user"}], ["message 2", "content"]),
        ([said("user", ["a"])], ["message 1", "part"]), ([said("user", [{"type": "text"}])], ["message 1", "part"]),
        ([said("user", [{"type": ["text"]}])], ["message 1", "part"]), ([said("user", 5)], ["message 1", "content"]),
        ([said("user", [PICTURE])], ["images", "--mmproj"]), ([said("user", [SOUND])], ["sound", "--mmproj"]),
        ([USER, called("[]")], ["'f'", "JSON object"]), ([USER, called("{}", function={})], ["name"]),
        ([USER, called(type="custom")], ["'custom'"]), ([USER, called(id=5)], ["id"]),
        ([USER, said("assistant", "a", tool_calls={"a": 1})], ["message 2", "tool_calls"]),
        ([USER, said("assistant", None, audio={"id": "a"})], ["message 2", "'audio'"]),
    ],
)  # fmt: skip
def test_messages_that_are_wrong_are_named(messages: Any, words: list[str]) -> None:
    message = refused(messages=messages)
    assert all(word in message for word in words), message


def test_messages_are_required() -> None:
    with pytest.raises(Refusal, match="'messages' is required"):
        read_chat({"prompt": "a"}, served())


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"modalities": ["text", "audio"]}, "'modalities'"), ({"audio": {"voice": "alloy"}}, "'audio'"),
        ({"web_search_options": {}}, "'web_search_options'"), ({"function_call": "auto"}, "'function_call'"),
        ({"tools": [{"type": "custom", "custom": {"name": "code"}}]}, "'custom'"), ({"tools": {"f": 1}}, "'tools'"),
        ({"tools": ["f"]}, "type"), ({"tools": [{"type": "function"}]}, "function"),
        ({"tools": [{"type": "function", "function": {"name": None}}]}, "name"),
        ({"tools": [{"function": {"name": "f", "description": 5}}]}, "'description'"),
        ({"stream_options": "include_usage"}, "'stream_options'"), ({"reasoning_effort": 5}, "'reasoning_effort'"),
        ({"stream_options": {"include_usage": 1}}, "'stream_options.include_usage'"),
        ({"parallel_tool_calls": "no"}, "'parallel_tool_calls'"), ({"stream": "yes"}, "'stream'"),
        ({"stop": [1]}, "'stop'"), ({"stop": 5}, "'stop'"), ({"n": "2"}, "'n'"), ({"n": 1.5}, "'n'"),
        ({"n": 2**32 + 1}, "'n'"), ({"n": 0}, "'n'"), ({"n": True}, "'n'"), ({"n_cmpl": 9}, "'n_cmpl'"),
        ({"suffix": "end"}, "'suffix'"), ({"best_of": 3, "n": 2}, "'best_of'"), ({"echo": True}, "'echo'"),
        ({"grammar": 5}, "'grammar'"), ({"response_format": "json"}, "'response_format'"),
        ({"response_format": {"type": 5}}, "'response_format.type'"),
        ({"response_format": {"type": "grammar"}}, "'grammar'"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "'response_format.schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "'response_format.json_schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, "json_schema.schema'"),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "'response_format.schema' belongs"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "'grammar'"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "'grammar'"),
        ({"grammar": 'root ::= "a"', "tools": [TOOL]}, "'grammar'"),
        ({"chat_template_kwargs": 5}, "'chat_template_kwargs'"), ({"chat_parser": "{}"}, "'chat_parser'"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "enable_thinking"), ({"chat_format": 3}, "'chat_format'"),
        ({"grammar_triggers": [{"type": 2, "value": "e+"}]}, "'grammar_triggers'"),
        ({"grammar_triggers": [{"value": "e"}]}, "'grammar_triggers'"),
        ({"reasoning_format": "other"}, "'reasoning_format'"), ({"reasoning_format": ["none"]}, "'reasoning_format'"),
        ({"eagle_tool_places": 5}, "'eagle_tool_places'"),
        ({"eagle_tool_places": {"not_offered": [[]]}}, "'eagle_tool_places'"),
        ({"top_logprobs": 3}, "'top_logprobs'"), ({"logprobs": True, "top_logprobs": "3"}, "'top_logprobs'"),
    ],
)  # fmt: skip
def test_parameters_that_are_wrong_are_named(body: dict[str, Any], word: str) -> None:
    assert word in refused(**body)


def test_parameters_that_sdks_send_are_ignored() -> None:
    sent = {
        "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low", "modalities": ["text"],
        "prediction": {"type": "content", "content": "It"}, "stream_options": {"include_obfuscation": False},
        "function_call": "none", "functions": [], "audio": None, "web_search_options": None, "unknown": 5,
        "suffix": "", "best_of": 1, "n": 1.0, "response_format": {"type": "text"}, "grammar": "", "tools": [],
    }  # fmt: skip
    request, plain = read(**sent), read()
    assert request.settings.items() >= plain.settings.items()
    assert (request.tools, request.schema, request.grammar, request.has_functions) == ([], None, "", False)


@pytest.mark.parametrize("key", ["temperature", "messages_", "tools", "stop", "n", "logprobs", "chat_template_kwargs"])
def test_nulls_are_absent(key: str) -> None:
    assert read(**{key: None}) == read()


def test_limits_and_probabilities() -> None:
    assert read(logprobs=True).settings["n_probs"] == 20
    assert read(logprobs=True, top_logprobs=0).settings["n_probs"] == 1
    assert read(logprobs=True, top_logprobs=3).settings["n_probs"] == 3
    assert not {"n_probs", "logprobs"} & read(logprobs=False).settings.keys()
    assert read(n=2.0).settings["n_cmpl"] == 2
    assert read(thinking_budget_tokens=7).settings["reasoning_budget_tokens"] == 7
    model = served(budget=9, budget_message="Enough.")
    assert read(model, thinking_budget_tokens=-1).settings["reasoning_budget_tokens"] == 9
    assert read(model).settings["reasoning_budget_message"] == "Enough."


def test_schemas() -> None:
    person = {"type": "object", "properties": {"age": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": person}}
    assert read(response_format=form).schema == person == read(json_schema=person).schema
    assert read(response_format={"type": "json_object", "schema": person}).schema == person
    assert read(response_format={"type": "json_object"}, json_schema=person).schema == person
    for empty in ({"response_format": {"type": "json_object"}}, {"json_schema": {}}):
        assert read(**empty).schema == {"type": "object"}
    assert read(json_schema=True).schema is True


def test_thoughts() -> None:
    model = served(variables={"enable_thinking": False, "reasoning_effort": "low"})
    assert read(model).thinks is False and read().thinks is None
    assert read(model, chat_template_kwargs={"enable_thinking": True}).thinks is True
    assert read(model, reasoning_effort="high").variables["reasoning_effort"] == "high"
    off = read(model, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert off.thinks is False and not off.variables
    assert read(served(thinks=False)).thinks is False
    assert read(served(reasoning_format="none")).reasoning_format == "none"
    assert read(reasoning_format="deepseek").reasoning_format == "deepseek"


def names(request: ChatRequest) -> list[str]:
    return [tool["function"]["name"] for tool in request.tools]


def allowed(mode: Any, *chosen: str, is_nested: bool = True) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} if is_nested else {"name": name} for name in chosen]
    given = {"mode": mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": given} if is_nested else given)}


@pytest.mark.parametrize(
    ("choice", "mode", "chosen"),
    [
        (None, "auto", "fgh"), ("none", "none", "fgh"), ("required", "required", "fgh"), ("any", "required", "fgh"),
        ({"type": "any"}, "required", "fgh"), ({"type": "auto"}, "auto", "fgh"),
        ({"type": "function", "function": {"name": "g"}}, "required", "g"),
        ({"type": "function", "name": "h"}, "required", "h"), ({"type": "tool", "name": "f"}, "required", "f"),
        (allowed("auto", "f", "h"), "auto", "fh"), (allowed("required", "h", is_nested=False), "required", "h"),
        (allowed(None, "g"), "auto", "g"),
    ],
)  # fmt: skip
def test_choices_of_tools(choice: Any, mode: str, chosen: str) -> None:
    request = read(tools=TOOLS, tool_choice=choice)
    assert (request.tool_choice, names(request)) == (mode, list(chosen))


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ("sometimes", "'sometimes'"), (5, "neither"), ([], "neither"), ({"type": "function"}, "''"), ({}, "None"),
        ({"type": "tool", "name": "nobody"}, "'nobody'"), (allowed("auto", "k"), "'k'"), (allowed("auto"), "'tools'"),
        (allowed("always", "f"), "mode"), (allowed("always", "f", is_nested=False), "mode"),
        ({"type": ["function"]}, "tool_choice"), (allowed(["auto"], "f"), "mode"), ("allowed_tools", "allowed_tools"),
    ],
)  # fmt: skip
def test_choices_that_are_none(choice: Any, word: str) -> None:
    message = refused(tools=TOOLS, tool_choice=choice)
    assert "tool_choice" in message and word in message


def test_a_required_call_without_tools() -> None:
    assert "no tools" in refused(tool_choice="required")
    assert read(tool_choice="auto").tool_choice == "auto"


def test_tools_are_completed() -> None:
    (tool,) = read(tools=[{"function": {"name": "f", "description": None, "parameters": None}}]).tools
    assert tool == {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    with pytest.warns(UserWarning, match="no schema"):
        assert names(read(tools=[{"function": {"name": "f", "parameters": "object"}}])) == ["f"]


@pytest.mark.native
def test_a_strict_tool_has_a_grammar() -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object"}}
    assert names(read(tools=[{"function": function}])) == ["f"]
    message = refused(tools=[{"function": function | {"parameters": {"type": "strong"}}}])
    assert "'f'" in message and "strict" in message and "strong" in message


def test_functions_are_tools() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    request = read(functions=[function], function_call={"name": "f"})
    assert request.has_functions and request.parallel_calls is False
    assert (request.tool_choice, request.tools) == ("required", read(tools=[{"function": function}]).tools)
    call = {"name": "f", "arguments": '{"city": "Paris"}'}
    turns = (USER, said("assistant", None, function_call=call), said("function", "rain", name="f"))
    expected = (USER, called(call["arguments"]), result("rain") | {"name": "f"})
    assert read(messages=turns).messages == read(messages=expected).messages
    assert "exclude" in refused(functions=[function], tools=[TOOL])
    assert "'functions'" in refused(functions={"f": function})


@pytest.mark.parametrize("arguments", [None, "", "null", {}, "{", '{"a'])
def test_arguments_of_calls_are_json_of_an_object(arguments: Any) -> None:
    (_, answer, _) = read(messages=(USER, called(arguments, id=None, type=None), result("R"))).messages
    (call,) = answer["tool_calls"]
    assert call == {"type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_developers_refusals_and_reasoning() -> None:
    answer = said("assistant", None, refusal="No.")
    assert read(messages=(USER, answer, USER)).messages[1]["content"] == "No."
    parts = said("assistant", [{"type": "refusal", "refusal": "No."}])
    assert read(messages=(USER, parts, USER)).messages[1]["content"] == [{"type": "text", "text": "No."}]
    assert read(messages=(said("developer", "Rule"), USER)).messages[0]["content"] == "Rule"
    thought = said("assistant", "a", reasoning="Thought")
    assert read(messages=(USER, thought, USER)).messages[1]["reasoning_content"] == "Thought"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x-anthropic-billing-header: a=b;\nRules", "Rules"), ("x-anthropic-billing-header: a=b;", ""), ("R", "R"),
        ([{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "R"}],
         [{"type": "text", "text": "R"}]),
    ],
)  # fmt: skip
def test_a_line_about_billing_is_no_rule(content: Any, expected: Any) -> None:
    assert read(messages=(said("system", content), USER)).messages[0]["content"] == expected
    assert read(messages=(said("user", content),)).messages[0]["content"] == content


@pytest.mark.parametrize("last", [[""], [None], [[]], ["", None, []]])
def test_empty_last_answers_are_none(last: list[Any]) -> None:
    answers = [said("assistant", content) for content in last]
    assert read(messages=[USER, *answers]) == read() == read(messages=[USER, {"role": "assistant", "tool_calls": []}])


def test_last_answers_are_continued() -> None:
    messages = (USER, said("assistant", "It is"))
    request = read(messages=messages)
    assert (request.continued, request.adds_generation_prompt) == ("content", False)
    assert read(served(continues_answers=False), messages).continued == ""
    assert read(messages=messages, continue_final_message=False).adds_generation_prompt
    given = {"continue_final_message": "reasoning_content", "add_generation_prompt": False, "echo": True}
    assert (read(messages=messages, **given).continued, read(messages=messages, **given).echoes) == (
        "reasoning_content", True,
    )  # fmt: skip
    thinking = (USER, said("assistant", "", reasoning_content="Let me"))
    assert read(messages=thinking).continued == "reasoning_content"
    closed = (USER, said("assistant", "<think>a</think>b"))
    assert read(served(THINKING), closed, **given).continued == "content"
    assert "add_generation_prompt" in refused(messages=messages, continue_final_message=True)
    assert read(continue_final_message=True, add_generation_prompt=False).continued == "question"
    for more in ({"continue_final_message": "reasoning_content"}, {"continue_final_message": True, "echo": True}):
        assert "answer" in refused(add_generation_prompt=False, **more)
    assert "last two" in refused(messages=(*messages, said("assistant")))
    assert "calls" in refused(messages=(USER, called()))


THINKS, SAYS, HEADER = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|start|>assistant"


@pytest.mark.parametrize(
    ("template", "text", "thoughts", "content", "continued"),
    [
        (THINKING, "<think>\nLet me", "Let me", "", "reasoning_content"),
        (THINKING, "<think>\nLet me.\n</think>\n\nSo", "Let me.", "So", "content"),
        (THINKING, "<think></think>", "", "", "content"), (PLAIN, "<think>a", None, "<think>a", "content"),
        (CHANNELS, f"{THINKS}Let me", "Let me", "", "reasoning_content"),
        (CHANNELS, f"{THINKS}Let me.<|end|>{HEADER}{SAYS}So", "Let me.", "So", "content"),
        (CHANNELS, f"{THINKS}Let me.<|end|>", "Let me.", "", "content"),
        (CHANNELS, f"{HEADER}{SAYS}So", None, "So", "content"),
        (CHANNELS, f"{THINKS}a<|end|><|channel|>b", None, f"{THINKS}a<|end|><|channel|>b", "content"),
    ],
)  # fmt: skip
def test_thoughts_of_a_last_answer(
    template: str, text: str, thoughts: str | None, content: str, continued: str
) -> None:
    request = read(served(template), (USER, said("assistant", text)))
    last = request.messages[-1]
    assert (last.get("reasoning_content"), last["content"], request.continued) == (thoughts, content, continued)


def test_media_are_marks() -> None:
    model = served(has_images=True, has_sound=True)
    text = {"type": "text", "text": "what is"}
    request = read(model, (said("user", [text, PICTURE, text, text, SOUND]),))
    assert request.media == (PNG, "UklGRg")
    assert request.messages[0]["content"] == f"what is{MARK}what is\nwhat is{MARK}"
    assert read(model, (said("user", [{"type": "image_url", "image_url": PNG}]),)).media == (PNG,)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://127.0.0.1/a.png", "fetches no URLs"), ("https://x/a.png", "fetches no URLs"), ("", "empty"),
        ("file:///etc/passwd", "--media-path"), ("data:text/html;base64,AAAA", "data:image"),
        ("data:image/png,AAAA", "data:image"), ("data:image/png;base64", "data:image"), (5, "empty"),
        ("data:image/png;base64,", "empty"), ("data:image/png;base64,A,B", "data:image"),
    ],
)  # fmt: skip
def test_media_that_are_not_read(url: Any, word: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    assert word in refused(served(has_images=True), (said("user", [part]),))


def test_files_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder/a.png", "secret"):
        (tmp_path / name).write_bytes(b"abc")
    model = served(has_images=True, media_path=f"{tmp_path}/folder/")

    def part(name: str) -> Any:
        return (said("user", [{"type": "image_url", "image_url": {"url": f"file://{name}"}}]),)

    assert read(model, part("a.png")).media == ("YWJj",)
    for name in ("../secret", f"{tmp_path}/secret", "a\0b", "none.png"):
        assert "the file" in refused(model, part(name))


def test_results_keep_what_cannot_be_read_as_text() -> None:
    parts = [{"type": "text", "text": "R"}, PICTURE, {"type": "image_url", "image_url": {"url": "http://x"}}, 5]
    messages = (USER, called(), result(parts))
    texts = read(messages=messages).messages[-1]["content"]
    assert [part["text"][:9] for part in texts] == ["R", "[Here is ", "[Here is ", "[Here is "]
    request = read(served(has_images=True), messages)
    assert request.media == (PNG,) and request.messages[-1]["content"].count("[Here is a ") == 2


VALUES: list[Any] = [
    None, True, False, 0, -1, 2**70, 1.5, float(2**60), "", "auto", "x" * 50, [], [None], [[]], {}, {"a": 1},
    {"type": []}, {"type": "function"}, {"name": []}, {"type": "text", "text": []}, {"url": {}}, {"function": {}},
]  # fmt: skip
WHOLE: dict[str, Any] = {
    "messages": [
        said("developer", "Rules"), said("user", [{"type": "text", "text": "a"}, PICTURE, SOUND]), called('{"a": 1}'),
        result([{"type": "text", "text": "R"}, PICTURE]), said("assistant", "b", refusal=None, reasoning="c", name="d"),
        said("assistant", None, function_call={"name": "f", "arguments": "{}"}), said("function", "R", name="f"),
        said("assistant", "It is"),
    ],
    "tools": [TOOL], "tool_choice": allowed("auto", "f"), "parallel_tool_calls": True, "stop": ["a"], "n": 2,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "model": "m",
    "chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low", "reasoning_format": "auto",
    "grammar_triggers": [{"type": 1, "value": "a"}], "modalities": ["text"], "best_of": 1, "suffix": "", "audio": {},
    "eagle_tool_places": {"not_at_beginning": ["f"], "not_offered": []}, "reasoning_budget_tokens": 5, "grammar": "",
}  # fmt: skip


def test_whatever_is_sent_is_read_or_refused() -> None:
    """Each value of a body, one after the other, in place of another one."""
    model = served(has_images=True, has_sound=True)
    n_read = 0
    read_chat(WHOLE, model)
    for body in changed(WHOLE, VALUES):
        with warnings.catch_warnings(), contextlib.suppress(Refusal):
            warnings.simplefilter("ignore")
            read_chat(body, model)
            n_read += 1
    assert n_read > 500
