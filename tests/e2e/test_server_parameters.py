"""Parameters, tools and parts that have no effect are refused by name, or docs/server.md lists them as ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.serving import Served
from fixtures.streams import body_for, events, whole
from fixtures.templates import CITY, WEATHER, serve_template

pytestmark = pytest.mark.native

CHAT, RESPONSES, MESSAGES, TEXT = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"
COUNT = "/v1/messages/count_tokens"
FUNCTION = {"name": "weather", "description": "d", "parameters": CITY}
QUESTION = [{"role": "user", "content": "How is it?"}]

PRE, SUF, MID, REP, SEP = 1, 2, 3, 4, 5
GAP = ",".join(
    f"tokenizer.ggml.fim_{name}_token_id=int:{id_}"
    for name, id_ in (("pre", PRE), ("suf", SUF), ("mid", MID), ("rep", REP), ("sep", SEP))
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_template(tmp_path_factory.mktemp("model"), "Qwen3.5-4B", WEATHER, "--override-kv", GAP) as running:
        yield running


def body(path: str, **more: Any) -> dict[str, Any]:
    return body_for(path.removesuffix("/count_tokens"), "How is it?", 40, []) | more


PICTURE = {"type": "image", "source": {"type": "url"}}


def message(*content: Any) -> list[Any]:
    return [{"role": "user", "content": list(content)}]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"modalities": ["text", "audio"]}),
    (CHAT, {"audio": {"voice": "alloy", "format": "wav"}}),
    (CHAT, {"web_search_options": {}}),
    (CHAT, {"function_call": "auto"}),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "code"}}]}),
    (CHAT, {"messages": message({"type": "file", "file": {"file_id": "x"}})}),
    (CHAT, {"messages": [*QUESTION, {"role": "assistant", "audio": {"id": "x"}, "content": None}, *QUESTION]}),
    (RESPONSES, {"background": True}),
    (RESPONSES, {"conversation": "conv_1"}),
    (RESPONSES, {"conversation": {"id": "conv_1"}}),
    (RESPONSES, {"previous_response_id": "resp_1"}),
    (RESPONSES, {"prompt": {"id": "pmpt_1"}}),
    (RESPONSES, {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}),
    (RESPONSES, {"truncation": "middle"}),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"top_logprobs": 2}),
    *[
        (RESPONSES, {"tools": [{"type": kind}]})
        for kind in ("file_search", "code_interpreter", "computer_use_preview", "mcp", "local_shell", "shell")
    ],
    (MESSAGES, {"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}),
    (MESSAGES, {"container": "container_1"}),
    (MESSAGES, {"thinking": {"type": "always"}}),
    (MESSAGES, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
    *[
        (path, {"tools": [{"type": kind, "name": "x"}]})
        for path in (MESSAGES, COUNT)
        for kind in ("web_search_20250305", "bash_20250124", "text_editor_20250728", "computer_20250124")
    ],
    (MESSAGES, {"messages": message({"type": "image", "source": {"type": "file", "file_id": "x"}})}),
    *[
        (RESPONSES, {"input": [*QUESTION, {"type": kind}]})
        for kind in ("web_search_call", "local_shell_call", "compaction", "mcp_list_tools")
    ],
    (RESPONSES, {"input": message({"type": "input_file", "file_data": "x"})}),
    (RESPONSES, {"instructions": [{"role": "developer", "content": "be short"}]}),
    (RESPONSES, {"reasoning": "high"}),
    (MESSAGES, {"messages": message({"type": "document", "source": {"type": "content", "content": [PICTURE]}})}),
    (MESSAGES, {"system": [PICTURE]}),
    (MESSAGES, {"system": 5}),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": "1000"}}),
    (MESSAGES, {"context_management": "clear"}),
    (CHAT, {"stream_options": "include_usage"}),
    (CHAT, {"reasoning_effort": 5}),
    *[(path, {"parallel_tool_calls": "no"}) for path in (CHAT, RESPONSES, MESSAGES)],
    *[(TEXT, {"n": n}) for n in ("2", 1.5)],
    (CHAT, {"stop": [1]}),
    (CHAT, {"seed": "5"}),
    (TEXT, {"suffix": 5}),
    (TEXT, {"suffix": "end", "echo": True, "logprobs": 1}),
    (TEXT, {"best_of": 3, "n": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "more"), REFUSED, ids=str)
def test_refused_by_name(server: Served, path: str, more: dict[str, Any]) -> None:
    """The message names the parameter, or the kind of a tool, part or edit."""
    status, answer = server.post(path, body(path, **more))
    assert status == 400 and answer["error"]["type"] == "invalid_request_error", answer
    assert "json.exception" not in answer["error"]["message"]
    (key, value), *_ = more.items()
    kinds = re.findall(r"'type': '(\w+)'", str(value)) + re.findall(r"'(audio)': {", str(value))
    assert any(re.search(rf"'({name}|{name}\.\w+)'", answer["error"]["message"]) for name in (key, *kinds)), answer


SENT: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": "m", "store": True, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low",
        "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "modalities": ["text"],
        "prediction": {"type": "content", "content": "It"}, "stream_options": {"include_obfuscation": False},
        "function_call": "none", "functions": [], "audio": None, "web_search_options": None, "unknown": 5,
    },
    RESPONSES: {
        "store": True, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "truncation": "auto",
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"], "max_tool_calls": 3,
        "text": {"verbosity": "low", "format": {"type": "text"}}, "reasoning": {"summary": "auto"}, "background": False,
        "safety_identifier": "s", "prompt_cache_key": "k",
        "tools": [{"type": "web_search"}, {"type": "image_generation"}], "top_logprobs": 0,
        "previous_response_id": None, "conversation": None, "prompt": None, "context_management": None, "n": 2,
    },
    MESSAGES: {
        "metadata": {"user_id": "u"}, "service_tier": "auto", "mcp_servers": [], "container": None, "speed": "standard",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}, "inference_geo": None,
        "cache_control": {"type": "ephemeral"}, "system": [], "fallbacks": [{"model": "m"}], "tool_choice": "auto",
    },
    TEXT: {
        "suffix": None, "best_of": 1, "n": 1.0, "n_cmpl": None, "user": "u", "model": "m", "stream": None,
        "stream_options": {"include_usage": None},
    },
}  # fmt: skip


@pytest.mark.parametrize("path", SENT)
def test_ignored(server: Served, path: str) -> None:
    """Parameters that SDKs and agents send by default do not change the text."""
    assert whole(server, path, body(path, **SENT[path])) == whole(server, path, body(path))


CHOICES: list[Any] = [None, "auto", {"name": "weather"}]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_functions(server: Served, choice: Any) -> None:
    """OpenAI's older form of tools, whole and streamed, and the conversation after a call."""
    given = body(CHAT, functions=[FUNCTION], function_call=choice)
    status, answer = server.post(CHAT, given)
    assert status == 200, answer
    call, reason = answer["choices"][0]["message"]["function_call"], answer["choices"][0]["finish_reason"]
    assert (call, reason) == ({"name": "weather", "arguments": '{"city":"Paris"}'}, "function_call")
    assert "tool_calls" not in answer["choices"][0]["message"]
    streamed = [choice for event in events(server, CHAT, given) for choice in event["choices"]]
    parts = [choice["delta"]["function_call"] for choice in streamed if "function_call" in choice["delta"]]
    assert "".join(part.get("name", "") for part in parts) == "weather"
    assert "".join(part.get("arguments", "") for part in parts) == call["arguments"]
    assert streamed[-1]["finish_reason"] == "function_call"
    result = {"role": "function", "name": "weather", "content": "rain"}
    turns = [*QUESTION, {"role": "assistant", "content": None, "function_call": call}, result]
    tools = [{"id": "call00001", "type": "function", "function": call}]
    expected = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": tools}]
    expected += [{"role": "tool", "tool_call_id": "call00001", "content": "rain"}]
    assert prompt(server, turns, functions=[FUNCTION]) == prompt(
        server, expected, tools=[{"type": "function", "function": FUNCTION}]
    )


def prompt(server: Served, messages: list[Any], **more: Any) -> str:
    status, answer = server.post("/apply-template", {"messages": messages, **more})
    assert status == 200, answer
    return str(answer["prompt"])


def test_a_choice_of_tools(server: Served) -> None:
    """By the names of a namespace, next to a tool that is ignored, and as a text in Anthropic's API."""
    space = {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "weather", "parameters": CITY}]}
    named = {"type": "function", "namespace": "mcp", "name": "weather"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}, named]}
    for choice in (named, allowed):
        given = body(RESPONSES, tools=[space, {"type": "web_search"}], tool_choice=choice)
        status, answer = server.post(RESPONSES, given)
        assert status == 200 and answer["output"][-1].get("namespace") == "mcp", answer
        assert "message" not in [item["type"] for item in answer["output"]]
    tools = [{"name": "weather", "input_schema": CITY}]
    status, answer = server.post(MESSAGES, body(MESSAGES, tools=tools, tool_choice="any"))
    assert status == 200 and [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]


def test_custom_tools_and_namespaces(server: Served) -> None:
    """Calls have the form of the tool, and can be sent back."""
    custom = {"type": "custom", "name": "weather", "description": "d"}
    space = {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "weather", "parameters": CITY}]}
    for tool, kind in ((custom, "custom_tool_call"), (space, "function_call")):
        given = {
            "input": QUESTION,
            "temperature": 0,
            "tools": [tool],
            "tool_choice": "required",
            "max_output_tokens": 80,
        }
        found = list(events(server, RESPONSES, given))
        items = found[-1]["response"]["output"]
        assert items[-1]["type"] == kind and items[-1]["name"] == "weather"
        assert items[-1].get("namespace") == (None if tool is custom else "mcp")
        if tool is custom:
            (done,) = [event["input"] for event in found if event["type"] == "response.custom_tool_call_input.done"]
            assert items[-1]["input"] == done
        result = {"type": f"{kind}_output", "call_id": items[-1]["call_id"], "output": "rain"}
        status, answer = server.post(RESPONSES, {**given, "input": [*QUESTION, *items, result]})
        assert status == 200, answer


TOKENS: list[tuple[str, dict[str, Any]]] = [
    *((path, more) for path in ("/completion", "/v1/completions") for more in ({}, {"echo": path != "/completion"})),
    ("/v1/completions", {"echo": True, "logprobs": 1}),
    ("/tokenize", {}), ("/tokenize", {"with_pieces": True}), ("/detokenize", {}),
]  # fmt: skip
KEYS = {"/tokenize": "content", "/detokenize": "tokens"}


@pytest.mark.parametrize(("path", "more"), TOKENS)
def test_token_ids_outside_of_the_vocabulary(server: Served, path: str, more: dict[str, Any]) -> None:
    n_vocab = server.get("/v1/models")[1]["data"][0]["meta"]["n_vocab"]
    for token in (n_vocab, -1, 2**40):
        lists: list[Any] = [[1, token], ["a", token]] if path != "/detokenize" else [[1, token]]
        for tokens in lists + ([[[1], [1, token]]] if path not in KEYS else []):
            status, answer = server.post(path, {KEYS.get(path, "prompt"): tokens, "max_tokens": 1, **more})
            expected = f"{token} is no token id of this model: its {n_vocab} tokens have the ids 0 to {n_vocab - 1}"
            assert (status, answer["error"]["message"]) == (400, expected)
    status, answer = server.post(path, {KEYS.get(path, "prompt"): [1, n_vocab - 1], "max_tokens": 1, **more})
    assert status == 200, answer


def test_trigger_tokens_outside_of_the_vocabulary(server: Served) -> None:
    trigger = {"type": 0, "value": "b", "token": 2**20}
    given = {"prompt": "a", "grammar": 'root ::= "b"', "grammar_lazy": True, "grammar_triggers": [trigger]}
    status, answer = server.post("/completion", given)
    assert (status, "1048576 is no token id" in answer["error"]["message"]) == (400, True)


FIELDS: dict[str, dict[str, Any]] = {  # all that have no value are left out
    "/tokenize": {"content": "abc", "add_special": None, "parse_special": None, "with_pieces": None},
    "/detokenize": {"tokens": [97, 98], "other": None},
    "/infill": {
        "input_prefix": "ab", "input_suffix": "cd", "prompt": None, "input_extra": None, "stream": None,
        "temperature": 0, "n_predict": 3,
    },
}  # fmt: skip
FILES = {"input_extra": [{"text": "a", "filename": None}]}


def without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return {k: without_nulls(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("path", "more"), [*((path, {}) for path in FIELDS), ("/infill", FILES), ("/tokenize", {"content": None})]
)
def test_fields_without_a_value_are_absent(server: Served, path: str, more: dict[str, Any]) -> None:
    given = FIELDS[path] | more
    answers = []
    for body in (given, without_nulls(given)):
        status, answer = server.post(path, body)
        assert status == 200, answer
        answers.append([answer.get(key) for key in ("tokens", "content", "prompt", "tokens_evaluated")])
    assert answers[0] == answers[1]


WRONG_TYPES = [
    *(("/tokenize", key, value) for key in ("add_special", "parse_special", "with_pieces") for value in (5, "yes")),
    *(("/tokenize", "content", value) for value in (5, True, {}, ["a", 1.5], [None], [[1]])),
    *(("/detokenize", "tokens", value) for value in (5, "abc", {}, ["a"], [1.5], [None])),
    *(("/infill", key, value) for key in ("input_prefix", "input_suffix", "prompt") for value in (5, ["a"], {})),
    *(("/infill", key, None) for key in ("input_prefix", "input_suffix")),
    *(("/infill", "input_extra", value) for value in ("a", ["a"], [{}], [{"text": 5}], [{"text": "", "filename": 5}])),
]


@pytest.mark.parametrize(("path", "key", "value"), WRONG_TYPES)
def test_fields_of_wrong_types_are_named(server: Served, path: str, key: str, value: Any) -> None:
    status, answer = server.post(path, FIELDS[path] | {key: value})
    assert status == 400 and f"'{key}'" in answer["error"]["message"], answer


@pytest.mark.parametrize("path", FIELDS)
def test_a_body_that_is_no_object(server: Served, path: str) -> None:
    status, answer = server.send("POST", path, b"[5]")
    assert (status, answer["error"]["message"]) == (400, "the body is no JSON object")


def test_a_gap_is_streamed(server: Served) -> None:
    """The request, from which fields without a value were removed, is read until the stream's end."""
    given = FIELDS["/infill"] | FILES
    text = server.post("/infill", given)[1]["content"]
    status, answer = server.post("/infill", given | {"stream": True})
    parts = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line.startswith("data: {")]
    assert (status, "".join(part["content"] for part in parts)) == (200, text)


def prompt_of_gap(server: Served, **given: Any) -> bytes:
    """Return the prompt as the server evaluates it, in which each token is a byte."""
    body = {"input_prefix": "", "input_suffix": "", "n_predict": 2, "temperature": 0, **given}
    status, answer = server.post("/infill", body)
    assert status == 200 and answer["tokens_evaluated"] == len(answer["prompt"]), answer
    return str(answer["prompt"]).encode()


def test_a_gap_is_where_the_answer_is(server: Served) -> None:
    """The beginning of the answer is behind the middle token, and files are before the gap, each as a whole."""
    gap = {"input_prefix": "ab", "input_suffix": "cd", "prompt": "x"}
    around = bytes([PRE]) + b"ab" + bytes([SUF]) + b"cd" + bytes([MID]) + b"x"
    assert prompt_of_gap(server, **gap) == around
    n_ctx = server.get("/props")[1]["default_generation_settings"]["n_ctx"]
    files = [{"text": "q" * (n_ctx // 2)}, {"text": "second", "filename": "b.py"}, {"text": "w" * (n_ctx // 2)}]
    assert prompt_of_gap(server, **gap, input_extra=files[1:2]) == (
        bytes([REP]) + b"myproject\n" + bytes([SEP]) + b"b.py\nsecond" + bytes([SEP]) + b"filename\n" + around
    )
    found = prompt_of_gap(server, **gap, input_extra=files)
    assert b"q" not in found and b"second" in found and found.count(b"w") == n_ctx // 2


def test_a_gap_may_take_the_whole_context(server: Served) -> None:
    """Only the ends far from the gap are left out, as little of them as possible."""
    n_ctx = server.get("/props")[1]["default_generation_settings"]["n_ctx"]
    before, behind = "0123456789" * (n_ctx // 10 + 1), "abcdefghij" * (n_ctx // 10 + 1)
    found = prompt_of_gap(server, input_prefix=before, input_suffix="end")
    assert found == bytes([PRE]) + before[-(n_ctx - 8) :].encode() + bytes([SUF]) + b"end" + bytes([MID])
    found = prompt_of_gap(server, input_prefix=before, input_suffix=behind)
    n_before = found.index(SUF) - 1
    assert found[1 : n_before + 1] == before[-n_before:].encode() and n_before > 2 * (len(found) - n_before)
    assert behind.encode().startswith(found[n_before + 2 : -1]) and len(found) == n_ctx - 2


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["a", 98]], ids=str)
def test_a_suffix(server: Served, prompt: Any) -> None:
    """The answer of /infill, also streamed, for several prompts and with an echo."""
    expected = server.post("/infill", FIELDS["/infill"])[1]["content"]
    body = {"prompt": prompt, "suffix": "cd", "max_tokens": 3, "temperature": 0}
    assert whole(server, TEXT, body) == expected
    assert "".join(event["choices"][0]["text"] for event in events(server, TEXT, body)) == expected
    assert whole(server, TEXT, {**body, "echo": True}) == f"ab{expected}"
    choices = server.post(TEXT, {**body, "prompt": [prompt, "q"]})[1]["choices"]
    assert len(choices) == 2 and choices[0]["text"] == expected
