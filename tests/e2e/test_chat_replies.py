"""Chats with tools and reasoning, by the real templates: replies are told apart, results go back, schemas hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from fixtures.targets import make_target
from fixtures.upstream import source_folder
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import UsageError

pytestmark = pytest.mark.native

NAMES = {"qwen3": "Qwen-Qwen3-0.6B", "qwen35": "Qwen3.5-4B", "llama3": "meta-llama-Llama-3.1-8B-Instruct"}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": NUMBERS}}
ASKED = [{"role": "user", "content": "What is 1 + 2?"}]
CALLED = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
REPLIES = {
    "qwen3": '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    "qwen35": "I add.\n</think>\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "add", "parameters": {"a": 1, "b": 2}}',
}


class Say:
    """A logits processor: the model says this text, and ends."""

    def __init__(self, llm: Any, text: str) -> None:
        self._tokens = [*llm.tokenize(text.encode(), add_bos=False, special=True), llm.token_eos()]
        self._n_prompt: int | None = None

    def __call__(self, ids: Any, logits: Any) -> Any:
        if self._n_prompt is None:
            self._n_prompt = len(ids)
        forced = np.full_like(logits, -np.inf)
        forced[self._tokens[min(len(ids) - self._n_prompt, len(self._tokens) - 1)]] = 0
        return forced


@pytest.fixture(scope="module", params=list(NAMES))
def chatting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """A tiny random model with a real template, drafting by look-up."""
    from llama_eagle import EagleLlama

    folder = make_target("qwen3", tmp_path_factory.mktemp("chat") / "hf", 1, dtype="float32")
    template = (source_folder() / "models/templates" / f"{NAMES[request.param]}.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    path = folder.parent / "target.gguf"
    convert_target(folder, path, TargetOptions(outtype="f32"))
    with EagleLlama(path, n_ctx=2048, n_threads=1, draft="lookup") as llm:
        yield request.param, llm


def said(llm: Any, text: str, **options: Any) -> Any:
    arguments: dict[str, Any] = {"messages": ASKED, "temperature": 0, "logits_processor": [Say(llm, text)], **options}
    return llm.create_chat_completion(**arguments)


def collected(chunks: Any) -> dict[str, Any]:
    """A stream as one choice."""
    message: dict[str, Any] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        for key, value in choice["delta"].items():
            message[key] = message[key] + value if key in message else value
    return {"message": message, "finish_reason": choice["finish_reason"]}


def allowed(mode: str, name: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}}]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


SUBTRACT = {"type": "function", "function": {"name": "subtract", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("tools", [[ADD], [SUBTRACT, ADD]])
def test_a_call_that_is_required(tools: list[Any], chatting: tuple[str, Any]) -> None:
    """The model would answer something else; the second grammar allows only numbers."""
    _, llm = chatting
    options = {"tools": tools, "tool_choice": "required", "max_tokens": 400, "temperature": 0}
    names = {tool["function"]["name"] for tool in tools}
    for seed in range(3):
        whole = llm.create_chat_completion(ASKED, seed=seed, **options)["choices"][0]
        if whole["finish_reason"] == "length":  # a random model may write digits for ever
            assert whole["message"]["content"].startswith('{"name"')
            continue
        assert whole["finish_reason"] == "tool_calls"
        (call,) = whole["message"]["tool_calls"]
        assert call["function"]["name"] in names
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    said_so = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    for stream in (False, True):
        answer = said(llm, said_so, stream=stream, **{**options, "max_tokens": 100})
        choice = collected(answer) if stream else answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}


def test_what_cannot_be_required(chatting: tuple[str, Any]) -> None:
    with pytest.raises(UsageError, match="no tools"):
        chatting[1].create_chat_completion(ASKED, tool_choice="required")


@pytest.mark.parametrize(
    ("choice", "is_call"),
    [
        ("auto", True), ({"type": "auto"}, True), ("none", False), (allowed("auto", "add"), True),
        (allowed("auto", "subtract"), False),
    ],
)  # fmt: skip
def test_choices_of_tools(choice: Any, is_call: bool, chatting: tuple[str, Any]) -> None:
    """A call of a tool that may not be called is a text, as the server's is."""
    family, llm = chatting
    answer = said(llm, REPLIES[family], tools=[SUBTRACT, ADD], tool_choice=choice)["choices"][0]
    assert ("tool_calls" in answer["message"], answer["finish_reason"] == "tool_calls") == (is_call, is_call)
    assert is_call or "add" in answer["message"]["content"]


@pytest.mark.parametrize("choice", [{"type": "function", "name": "add"}, {"type": "tool", "name": "add"}])
def test_a_named_tool_in_the_forms_of_other_apis(choice: Any, chatting: tuple[str, Any]) -> None:
    answer = said(chatting[1], '{"a": 1, "b": 2}', tools=[SUBTRACT, ADD], tool_choice=choice)["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1, "b": 2})


def test_a_call_of_a_tool(chatting: tuple[str, Any]) -> None:
    family, llm = chatting
    answer = said(llm, REPLIES[family], tools=[ADD])["choices"][0]
    streamed = collected(said(llm, REPLIES[family], tools=[ADD], stream=True))
    for choice in (answer, streamed):
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1, "b": 2})
        assert choice["message"].get("reasoning_content") == (None if family == "llama3" else "I add.")
        assert not choice["message"].get("content")
    assert streamed["message"]["tool_calls"][0]["index"] == 0


def test_what_is_no_call_is_text(chatting: tuple[str, Any]) -> None:
    """A call of an unknown tool, and text behind a call."""
    family, llm = chatting
    unknown = REPLIES[family].replace("add", "rm")
    whole = said(llm, unknown, tools=[ADD])["choices"][0]
    assert collected(said(llm, unknown, tools=[ADD], stream=True)) == {
        "message": whole["message"],
        "finish_reason": "stop",
    }
    assert whole["message"]["content"] == unknown.split("</think>\n\n")[-1].replace("I rm", "I add")
    more = said(llm, REPLIES[family] + " Done.", tools=[ADD])["choices"][0]
    assert (more["message"]["content"].strip(), len(more["message"]["tool_calls"])) == ("Done.", 1)


def test_reasoning_and_text(chatting: tuple[str, Any]) -> None:
    family, llm = chatting
    opened = {"qwen3": "<think>\n", "qwen35": "", "llama3": None}[family]
    text = "The answer is 3." if opened is None else f"{opened}Hm, 1 < 2.\n</think>\n\nThe answer is 3."
    for tools in (None, [ADD]):
        whole = said(llm, text, tools=tools)["choices"][0]
        streamed = collected(said(llm, text, tools=tools, stream=True))
        assert streamed == {"message": whole["message"], "finish_reason": "stop"}
        assert whole["message"]["content"] == "The answer is 3."
        assert whole["message"].get("reasoning_content") == (None if opened is None else "Hm, 1 < 2.")


def test_control_tokens_in_messages_as_text(chatting: tuple[str, Any]) -> None:
    """Parsed by default, as by llama.cpp; as text, only those of the template are control tokens."""
    _, llm = chatting
    end = "<|im_end|>"
    (token,) = llm.tokenize(end.encode(), add_bos=False, special=True)
    asked = f"a {end}b{end}\n{end}"
    chats = [[{"role": "user", "content": content}] for content in (asked, [{"type": "text", "text": asked}])]

    def prompts(messages: Any) -> list[list[int]]:
        found = []
        for parsed in (True, False):
            object.__setattr__(llm._options, "parse_special", parsed)
            said(llm, "x", messages=messages, max_tokens=1, chat_template_kwargs={"date_string": "26 Jul 2024"})
            found.append(list(llm._prompt))
        object.__setattr__(llm._options, "parse_special", True)
        return found

    for messages in chats:
        parsed, plain = prompts(messages)
        assert parsed.count(token) - plain.count(token) == 3
        assert llm.detokenize(plain, special=True) == llm.detokenize(parsed, special=True)
        between = llm.tokenize(asked.encode(), add_bos=False, special=False)
        assert any(plain[i : i + len(between)] == between for i in range(len(plain)))
    parsed, plain = prompts(ASKED)
    assert parsed == plain


def test_the_parents_way(chatting: tuple[str, Any]) -> None:
    """Without `parse_replies` the content is all that was said."""
    family, llm = chatting
    object.__setattr__(llm._options, "parse_replies", False)
    try:
        assert said(llm, REPLIES[family], tools=[ADD])["choices"][0]["message"]["content"] == REPLIES[family]
    finally:
        object.__setattr__(llm._options, "parse_replies", True)


def test_results_go_back(chatting: tuple[str, Any]) -> None:
    """The prompt is what transformers makes of the same messages, whose arguments are objects there."""
    _, llm = chatting
    call = {**CALLED, "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "3"}]
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(Path(llm.model_path).parent / "hf")
    expected = tokenizer.apply_chat_template(
        [*ASKED, *turns], tools=[ADD], tokenize=False, add_generation_prompt=True, date_string="26 Jul 2024"
    )
    turns[0] = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
    options = {"chat_template_kwargs": {"date_string": "26 Jul 2024"}}
    said(llm, "3.", messages=[*ASKED, *turns], tools=[ADD], **options)
    found = llm.detokenize(llm._prompt, special=True).decode()
    begins = (
        "<|start_header_id|>" if "<|start_header_id|>" in expected else "<|im_start|>"
    )  # behind the tiny model's BOS
    assert found[found.index(begins) :] == expected[expected.index(begins) :]
    assert "add" in found


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_honoured(chatting: tuple[str, Any], stream: bool) -> None:
    _, llm = chatting
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = llm.create_chat_completion(ASKED, response_format=wanted, temperature=0, max_tokens=60, stream=stream)
    choice = collected(answer) if stream else answer["choices"][0]
    assert json.loads(choice["message"]["content"])["ok"] in (True, False)


def test_what_cannot_be_honoured_is_refused(chatting: tuple[str, Any]) -> None:
    _, llm = chatting
    wrong = {
        "response_format 'xml' is not one of": {"type": "xml"},
        "needs json_schema": {"type": "json_schema"},
        "cannot be turned into a grammar": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/$defs/none"}}},
    }
    for message, response_format in wrong.items():
        with pytest.raises(UsageError, match=message.replace("$", r"\$")):
            llm.create_chat_completion(ASKED, response_format=response_format)
    with pytest.raises(TypeError, match="'n'"):
        llm.create_chat_completion(ASKED, n=2)


def test_errors_in_callbacks_reach_the_caller(chatting: tuple[str, Any]) -> None:
    _, llm = chatting

    def processor(ids: Any, logits: Any) -> Any:
        if len(ids) > 12:
            raise LookupError("no")
        return logits

    def criterion(ids: Any, logits: Any) -> bool:
        raise LookupError("no")

    for option in ({"logits_processor": [processor]}, {"stopping_criteria": [criterion]}):
        for draft in (0, 4):
            llm.set_n_draft(draft)
            with pytest.raises(LookupError, match="no"):
                llm.create_completion("abc" * 3, max_tokens=30, temperature=0, **option)
    with pytest.raises(ValueError, match=r"broadcast|could not"):
        llm.create_completion("abc", max_tokens=3, logits_processor=[lambda ids, logits: logits[:2]])
    llm.set_n_draft("auto")
    assert llm.create_completion("abc", max_tokens=3, temperature=0)["choices"][0]["finish_reason"] == "length"
