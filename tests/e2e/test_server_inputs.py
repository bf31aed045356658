"""Parts of conversations reach the prompt, whatever the template; what cannot is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.templates import serve_template
from llama_eagle.sessions.chats.calls import read_call

pytestmark = pytest.mark.native

NAMES = ("GLM-4.6", "moonshotai-Kimi-K2", "openai-gpt-oss-120b", "google-gemma-4-31B-it", "Qwen3.5-4B")
CHATS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Question"}
CALL: dict[str, Any] = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("model"), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("qwen"), "Qwen3.5-4B") as running:
        yield running


def prompt(server: Served, messages: list[Any]) -> str:
    status, answer = server.post("/apply-template", {"messages": messages, "tools": [TOOL]})
    assert status == 200, answer
    return str(answer["prompt"])


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call00001", "content": content}


def test_parts_of_results(server: Served) -> None:
    parts = [{"type": "text", "text": "EARLY"}, {"type": "text", "text": "LATE"}]
    text = prompt(server, [USER, CALL, result(parts)])
    assert "EARLY" in text and "LATE" in text


def test_rules_of_system_and_developer(server: Served) -> None:
    rules = [{"role": "system", "content": "RULE_A"}, {"role": "developer", "content": "RULE_B"}]
    for messages in ([*rules, USER], [rules[1], USER], [rules[0], USER, {**USER, "role": "assistant"}, rules[1], USER]):
        text = prompt(server, messages)
        assert all(message["content"] in text for message in messages)


@pytest.mark.parametrize("rules", ["", [], [{"type": "text", "text": ""}], "x-anthropic-billing-header: a=b;"])
def test_rules_without_text_are_none(qwen: Served, rules: Any) -> None:
    """The template's default applies, and no empty message is in the prompt."""

    def n_tokens(path: str, **more: Any) -> int:
        status, answer = qwen.post(path, {"max_tokens": 1, "max_output_tokens": 1, **more})
        assert status == 200, answer
        usage = answer["usage"]
        return int(usage["input_tokens"]) + int(usage.get("cache_read_input_tokens", 0))

    assert n_tokens(MESSAGES, messages=[USER], system=rules) == n_tokens(MESSAGES, messages=[USER])
    if rules == "":
        assert n_tokens(RESPONSES, input=[USER], instructions=rules) == n_tokens(RESPONSES, input=[USER])


def test_an_input_without_items_is_refused_by_its_name(qwen: Served) -> None:
    status, answer = qwen.post(RESPONSES, {"input": [], "instructions": "Rules"})
    assert status == 400 and "'input' is empty" in answer["error"]["message"]


def test_texts_of_messages_are_joined_as_in_chats(server: Served) -> None:
    """Those of rules, thoughts and results: `/v1/messages` and `/v1/chat/completions` build one prompt."""
    one, two = ({"type": "text", "text": text} for text in ("one", "two"))
    used = {"type": "tool_use", "id": "call00001", "name": "f", "input": {}}
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]

    def n_tokens(path: str, body: dict[str, Any]) -> int:
        status, answer = server.post(path, {"max_tokens": 1, "cache_prompt": False, **body})
        assert status == 200, answer
        return int(answer["usage"].get("input_tokens") or answer["usage"]["prompt_tokens"])

    for parts in ([one], [one, two], [one, two, one]):
        thoughts = [{"type": "thinking", "thinking": part["text"], "signature": ""} for part in parts]
        given = [USER, {"role": "assistant", "content": [*thoughts, used]}]
        given.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call00001", "content": parts}]}
        )
        found = n_tokens(MESSAGES, {"messages": given, "system": parts, "tools": tools})
        answer = CALL | {"reasoning_content": "\n\n".join(part["text"] for part in parts)}
        chat = [{"role": "system", "content": parts}, USER, answer, result(parts)]
        assert found == n_tokens(CHATS, {"messages": chat, "tools": [TOOL]}), parts


def test_a_message_that_is_wrong_is_named_by_its_number(qwen: Served) -> None:
    results = [{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": "text", "text": "a"}]
    messages = [USER, {"role": "user", "content": results}, {"role": "user", "content": [{"type": "audio"}]}]
    status, answer = qwen.post(
        MESSAGES, {"messages": messages, "max_tokens": 1, "system": [{"type": "text", "text": "a"}]}
    )
    assert status == 400 and "message 3 has a block of type 'audio'" in answer["error"]["message"]


def test_rules_between_call_and_result(server: Served) -> None:
    text = prompt(server, [USER, CALL, {"role": "system", "content": "RULE"}, result("RESULT"), USER])
    assert "RULE" in text and "RESULT" in text


EMPTIES: tuple[Any, ...] = ("", None, [])
EMPTY: list[dict[str, Any]] = [{"role": "assistant", "content": content} for content in EMPTIES]
NO_CALLS: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": []}, {**EMPTY[0], "tool_calls": []}]


@pytest.mark.parametrize("last", [[EMPTY[2]], [EMPTY[0], EMPTY[1]], EMPTY, NO_CALLS])
def test_empty_last_answers(server: Served, last: list[Any]) -> None:
    assert prompt(server, [USER, *last]) == prompt(server, [USER])


def test_an_empty_list_of_calls_is_none(server: Served) -> None:
    for content in ("", "ANSWER"):
        answer = {"role": "assistant", "content": content}
        assert prompt(server, [USER, {**answer, "tool_calls": []}, USER]) == prompt(server, [USER, answer, USER])


def n_prompt(server: Served, items: list[Any]) -> int:
    status, answer = server.post(RESPONSES, {"input": items, "max_output_tokens": 1})
    assert status == 200, answer
    return int(answer["usage"]["input_tokens"])


@pytest.mark.parametrize("name", ["output_text", "input_text", "text", "refusal"])
def test_earlier_answers_of_responses(qwen: Served, name: str) -> None:
    part = {"type": name, "refusal" if name == "refusal" else "text": "EARLIER"}
    for more in ({"type": "message", "status": "completed", "id": None}, {}):
        answer = {"role": "assistant", "content": [part], **more}
        assert n_prompt(qwen, [USER, answer, USER]) == n_prompt(
            qwen, [USER, {"role": "assistant", "content": "EARLIER"}, USER]
        )
    if name != "refusal":
        assert n_prompt(qwen, [{"role": "user", "content": [part]}]) == n_prompt(
            qwen, [{"role": "user", "content": "EARLIER"}]
        )


@pytest.mark.parametrize(
    "more",
    [
        {}, {"content": None}, {"content": []}, {"summary": [{"type": "summary_text", "text": "Thought"}]},
        {"content": [{"type": "reasoning_text", "text": "Thought"}], "encrypted_content": "x"},
    ],
)  # fmt: skip
def test_reasoning_of_responses(qwen: Served, more: Any) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], **more}
    n_prompt(qwen, [USER, reasoning, {"role": "assistant", "content": "Answer"}, USER])
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "output_text", "text": "R"}]}
    n_prompt(qwen, [USER, reasoning, call, output])


def test_all_reasoning_of_an_answer(qwen: Served) -> None:
    def reasoning(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "R"}
    said, both = {"role": "assistant", "content": "Text"}, reasoning("The first\n\nThe second thought")
    first, second = reasoning("The first"), reasoning("The second thought")
    for answer in ([], [said], [call]):
        assert n_prompt(qwen, [USER, first, *answer, second, call, output]) == n_prompt(
            qwen, [USER, both, *answer, call, output]
        )
    thoughts = ({"reasoning_content": text} for text in ("The first", "The second thought"))
    chat = [message for each in thoughts for message in ({**CALL, **each}, result("R"))]
    status, answer = qwen.post(CHATS, {"messages": [USER, *chat], "max_tokens": 1})
    assert status == 200, answer
    items = [USER, first, call, output, second, call, output]  # each belongs to its own answer
    assert n_prompt(qwen, items) == answer["usage"]["prompt_tokens"]


def blocks(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 1}


def n_message(server: Served, body: dict[str, Any]) -> int:
    status, answer = server.post(MESSAGES, body)
    assert status == 200, answer
    return int(answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"])


def test_documents_of_text(qwen: Served) -> None:
    expected = n_message(qwen, blocks({"type": "text", "text": "Title\nA long document"}))
    plain = {"type": "text", "media_type": "text/plain", "data": "A long document"}
    listed = {"type": "content", "content": [{"type": "text", "text": "A long document"}]}
    for source in (plain, listed):
        assert n_message(qwen, blocks({"type": "document", "title": "Title", "source": source})) == expected


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (MESSAGES, blocks({"type": "document", "source": {"type": "base64", "data": "x"}}), ["document", "base64"]),
        (MESSAGES, blocks({"type": "container", "content": []}), ["container"]),
        (MESSAGES, {"messages": "x", "max_tokens": 1}, ["'messages' is no list"]),
        (CHATS, {"messages": "x"}, ["'messages' is no list"]),
        ("/completion", None, ["no JSON object"]),
        ("/v1/completions", [], ["no JSON object"]),
        ("/v1/completions", {"messages": []}, ["'prompt' is required"]),
        (CHATS, {"messages": [{**USER, "name": 5}]}, ["message 1", "'name'"]),
        (CHATS, {"messages": [USER], "tools": [{"function": {"name": "f", "description": 5}}]}, ["'f'", "description"]),
        (CHATS, {"messages": [USER], "tools": [{"function": {"name": 5}}]}, ["name"]),
    ],
)
def test_reasons(qwen: Served, path: str, body: Any, words: list[str]) -> None:
    status, answer = qwen.post(path, body)
    assert status == 400 and all(word in answer["error"]["message"] for word in words), answer


@pytest.mark.parametrize("arguments", [None, "", "null", {}])
def test_a_call_without_arguments(qwen: Served, arguments: Any) -> None:
    """The same prompt as with {}, for both front ends."""
    call = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "function": {"name": "f", "arguments": arguments}}]}
    empty = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "function": {"name": "f", "arguments": "{}"}}]}
    assert prompt(qwen, [USER, call, result("RESULT")]) == prompt(qwen, [USER, empty, result("RESULT")])
    for as_text in (False, True):
        given, plain = (read_call(each["tool_calls"][0], as_text=as_text) for each in (call, empty))
        assert given["function"] == plain["function"]


def test_a_call_without_an_id(qwen: Served) -> None:
    call = {**CALL, "tool_calls": [{**CALL["tool_calls"][0], "id": None}]}
    assert "RESULT" in prompt(qwen, [USER, call, result("RESULT")])


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("nemo"), "mistralai-Mistral-Nemo-Instruct-2407") as running:
        yield running


@pytest.mark.parametrize("given", ["call_fcQ8", "toolu_01A09q90qw90lq917835", "functions.f:0", "a-b-c-d-e", None])
def test_ids_for_a_template_that_wants_nine_characters(mistral: Served, given: str | None) -> None:
    """A call and its result keep a common id, a different one for each call."""
    calls = [{**CALL["tool_calls"][0], "id": name} for name in (given, given and f"{given}2")]
    results = [{**result("RESULT"), "tool_call_id": call["id"]} for call in calls]
    text = prompt(mistral, [USER, {**CALL, "tool_calls": calls}, *results])
    of_calls, of_results = (re.findall(rf'"{key}": "([0-9A-Za-z]{{9}})"', text) for key in ("id", "call_id"))
    assert of_calls == of_results and len(set(of_calls)) == 2


def test_turns_that_a_template_refuses_are_joined(mistral: Served) -> None:
    """Two questions in a row, a reminder behind a call's result, and a question behind a call that was cut."""
    late = {"role": "user", "content": [{"type": "text", "text": "LATE"}]}
    assert "Question\n\nLATE[/INST]" in prompt(mistral, [USER, late])
    text = prompt(mistral, [USER, CALL, result("RESULT"), late, {**USER, "content": "LAST"}])
    assert "RESULT\n\nLATE\n\nLAST" in text and text.count("call00001") == 2
    assert '"content": LATE, "call_id": "call00001"' in prompt(mistral, [USER, CALL, late])


def test_a_model_gets_the_ids_that_it_wrote(mistral: Served) -> None:
    """Without the prefixes of the APIs: their prompts are that of the id itself, which is in the slot's cache."""
    for name in ("nine12345", "call_nine12345"):
        called = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": name}
        got = {"type": "function_call_output", "call_id": name, "output": "RESULT"}
        status, answer = mistral.post(RESPONSES, {"input": [USER, called, got], "max_output_tokens": 1})
        assert status == 200, answer
    use = {"type": "tool_use", "id": "toolu_nine12345", "name": "f", "input": {}}
    used = {"type": "tool_result", "tool_use_id": "toolu_nine12345", "content": "RESULT"}
    turns = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [used]}]
    status, last = mistral.post(MESSAGES, {"messages": turns, "max_tokens": 1})
    assert status == 200, last
    assert answer["usage"]["input_tokens"] - answer["usage"]["input_tokens_details"]["cached_tokens"] <= 4
    assert last["usage"]["input_tokens"] <= 4  # without those of the cache


SCHEMA = {"type": "object"}
WRONG_CONSTRAINTS: list[dict[str, Any]] = [
    {"grammar": 5}, {"grammar": {}}, {"stop": 5}, {"stop": True},
    {"response_format": "json"}, {"response_format": []}, {"response_format": {"type": 5}},
    {"response_format": {"type": "json_object", "schema": 5}},
    {"response_format": {"type": "json_schema", "json_schema": 5}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
    {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    {"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}},
    {"grammar": 'root ::= "a"', "json_schema": SCHEMA},
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/v1/completions"])
@pytest.mark.parametrize("wrong", WRONG_CONSTRAINTS, ids=str)
def test_constraints_that_would_be_ignored(qwen: Served, path: str, wrong: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    status, answer = qwen.post(path, {**body, "max_tokens": 2, **wrong})
    assert status == 400, answer
    assert any(key.split("_")[0] in answer["error"]["message"] for key in wrong)


def test_thinking_is_switched_off(qwen: Served) -> None:
    """The Messages API's own key for it; the template's option goes before it."""

    def n_tokens(**more: Any) -> int:
        status, answer = qwen.post("/v1/messages/count_tokens", {"messages": [USER], "max_tokens": 2048, **more})
        assert status == 200, answer
        return int(answer["input_tokens"])

    off, on = {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}
    options = [{"chat_template_kwargs": {"enable_thinking": value}} for value in (False, True)]
    assert n_tokens(thinking=off) == n_tokens(**options[0]) != n_tokens(thinking=on) == n_tokens(**options[1])
    assert n_tokens(thinking=off, **options[1]) == n_tokens(thinking=on)


def test_channels_of_a_last_answer(tmp_path: Path) -> None:
    """As gpt-oss writes it: its template opens the channels itself."""
    thinks, says, header = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|start|>assistant"
    with serve_template(tmp_path, "openai-gpt-oss-120b") as server:
        for begun, answer in (
            (f"{thinks}Let me", {"reasoning_content": "Let me", "content": ""}),
            (f"{thinks}Let me.<|end|>{header}{says}So", {"reasoning_content": "Let me.", "content": "So"}),
            (f"{header}{says}So", {"content": "So"}),
        ):
            texts = [prompt(server, [USER, {"role": "assistant", **each}]) for each in (answer, {"content": begun})]
            assert texts[0] == texts[1] and texts[0].endswith(begun.removeprefix(header))
        closed = prompt(server, [USER, {"role": "assistant", "content": f"{thinks}Let me.<|end|>"}])
        assert closed.endswith(f"{header}{thinks}Let me.<|end|>{header}{says}")
        call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "P'
        assert prompt(server, [USER, {"role": "assistant", "content": call}]).endswith(call)
