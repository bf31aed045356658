"""Reasoning, content and calls of tools in what models write: whole, and cut anywhere."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import pytest
from fixtures.upstream import source_folder
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from llama_eagle.drop_in.replies import CALL, CONTENT, REASONING, Dialect, Part, ReplyReader
from transformers.utils.chat_template_utils import render_jinja_template

QWEN3 = '{%- if tools %}<tool_call>{"name":...}</tool_call>{%- endif %}</think>'
QWEN35 = "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n{{- '<think>\\n' }}"
LLAMA3 = '{%- if "tools" in message %}"ipython"{{ \'{"name": function name, "parameters": dictionary}\' }}'
NUMBER = {"type": "number"}
TOOLS = {"add": {"properties": {"a": NUMBER, "b": NUMBER, "note": {"type": "string"}}}, "now": {}}
ADD = {"a": 1, "b": 2.5, "note": "12"}
XML_ADD = (
    "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2.5\n</parameter>\n"
    "<parameter=note>\n12\n</parameter>\n</function>"
)
CASES = {
    "plain text stays as it is": (QWEN3, False, "  Hello\n\nyou \n", [(CONTENT, "  Hello\n\nyou \n")]),
    "reasoning": (QWEN3, False, "<think>\nWhy?\n\n</think>\n\nSo.", [(REASONING, "Why?"), (CONTENT, "So.")]),
    "opened by the prompt": (QWEN35, True, "\nWhy?\n</think>\n\nSo.", [(REASONING, "Why?"), (CONTENT, "So.")]),
    "cut while reasoning": (QWEN35, True, "Why? Bec", [(REASONING, "Why? Bec")]),
    "no reasoning": (QWEN3, False, "<think>\n\n</think>\n\nSo.", [(CONTENT, "So.")]),
    "a tag later is text": (QWEN3, False, "Write <think> here", [(CONTENT, "Write <think> here")]),
    "a call": (
        QWEN3, False, f'Let me.\n<tool_call>\n{{"name": "add", "arguments": {json.dumps(ADD)}}}\n</tool_call>',
        [(CONTENT, "Let me."), (CALL, ADD, "add")],
    ),
    "two calls": (
        QWEN3, False, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n' * 2,
        [(CALL, {}, "now"), (CALL, {}, "now")],
    ),
    "thought, then called": (
        QWEN35, True, f"I add.\n</think>\n\n<tool_call>\n{XML_ADD}\n</tool_call>",
        [(REASONING, "I add."), (CALL, ADD, "add")],
    ),
    "an unknown tool": (
        QWEN3, False, '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>',
        [(CONTENT, '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>')],
    ),
    "no JSON": (QWEN3, False, "<tool_call>{]</tool_call> sorry", [(CONTENT, "<tool_call>{]</tool_call>sorry")]),
    "a call that was cut": (QWEN3, False, '<tool_call>\n{"name"', [(CONTENT, '<tool_call>\n{"name"')]),
    "Llama": (LLAMA3, False, '{"name": "add", "parameters": ' + json.dumps(ADD) + "}", [(CALL, ADD, "add")]),
    "Llama, two": (
        LLAMA3, False, '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
        [(CALL, {}, "now"), (CALL, {}, "now")],
    ),
    "Llama, after white space": (LLAMA3, False, '\n {"name": "now", "parameters": {}}', [(CALL, {}, "now")]),
    "Llama, after its tag": (
        LLAMA3, False, '\n<|python_tag|>{"name": "now", "parameters": {}}', [(CALL, {}, "now")]
    ),
    "Llama, other JSON": (LLAMA3, False, '{"a": [1, 2]} is it', [(CONTENT, '{"a": [1, 2]} is it')]),
    "a call with a name that is a list": (
        QWEN3, False, '<tool_call>{"name": [], "arguments": {}}</tool_call>',
        [(CONTENT, '<tool_call>{"name": [], "arguments": {}}</tool_call>')],
    ),
    "arguments as text": (
        QWEN3, False, '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', [(CALL, {}, "now")]
    ),
    "infinity": (LLAMA3, False, '{"name": "now", "parameters": {"a": 1e999}}',
        [(CONTENT, '{"name": "now", "parameters": {"a": 1e999}}')],
    ),
    "Llama, text": (LLAMA3, False, 'The {"name": "now"} tool', [(CONTENT, 'The {"name": "now"} tool')]),
}  # fmt: skip


def joined(parts: list[Part]) -> list[tuple]:
    """Neighbours of one kind as one; calls with their arguments read."""
    found: list[tuple] = []
    for part in parts:
        if part.kind == CALL:
            found.append((CALL, json.loads(part.text), part.name))
        elif found and found[-1][0] == part.kind:
            found[-1] = (part.kind, found[-1][1] + part.text)
        else:
            found.append((part.kind, part.text))
    return found


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None)
@given(data=st.data())
def test_a_reply_is_the_same_however_it_comes(name: str, data: st.DataObject) -> None:
    template, is_reasoning, text, expected = CASES[name]
    reader = ReplyReader(Dialect.of(template), TOOLS, is_reasoning)
    parts: list[Part] = []
    while text:
        n = data.draw(st.integers(1, len(text)))
        parts += reader.read(text[:n])
        text = text[n:]
    assert joined(parts + reader.finish()) == expected


PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", XML_ADD, '{"name": "now", "arguments": {}}', " ", "\n",
         "<", "<tool", "a", "{", "[", "; ", "<|python_tag|>"]
    ),
    max_size=8,
)  # fmt: skip


@settings(deadline=None)
@given(pieces=PIECES, template=st.sampled_from([QWEN3, QWEN35, LLAMA3, ""]), opened=st.booleans(), cuts=st.data())
def test_any_text_is_read_the_same_cut_anywhere(
    pieces: list[str], template: str, opened: bool, cuts: st.DataObject
) -> None:
    text = "".join(pieces)
    whole = ReplyReader(Dialect.of(template), TOOLS, opened)
    expected = joined([*whole.read(text), *whole.finish()])
    reader, parts = ReplyReader(Dialect.of(template), TOOLS, opened), []
    while text:
        n = cuts.draw(st.integers(1, len(text)))
        parts += reader.read(text[:n])
        text = text[n:]
    assert joined(parts + reader.finish()) == expected


@settings(deadline=None)
@given(text=st.text(alphabet='<>/thinktool_ca{}" \n'))
def test_without_tools_and_reasoning_nothing_changes(text: str) -> None:
    for template in (LLAMA3, ""):
        reader = ReplyReader(Dialect.of(template))
        assert "".join(part.text for part in [*reader.read(text), *reader.finish()]) == text


def test_text_is_told_as_soon_as_it_is_known() -> None:
    reader = ReplyReader(Dialect.of(QWEN3), TOOLS)
    assert reader.read("Hello <to") == [Part(CONTENT, "Hello")]
    assert reader.read("ast>") == [Part(CONTENT, " <toast>")]
    assert ReplyReader(Dialect.of("")).read("Hello ") == [Part(CONTENT, "Hello ")]


WRITERS = {  # templates of each format, with the beginning and the end of an answer
    "Qwen-Qwen3-0.6B": ("<|im_start|>assistant\n", "<|im_end|>"),
    "Qwen-Qwen2.5-7B-Instruct": ("<|im_start|>assistant\n", "<|im_end|>"),
    "Qwen3-Coder": ("<|im_start|>assistant\n", "<|im_end|>"),
    "Qwen3.5-4B": ("<think>\n\n</think>\n\n", "<|im_end|>"),
    "StepFun3.5-Flash": ("<think>\n\n</think>\n", "<|im_end|>"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("<think></think>", "<|im_end|>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("assistant<|end_header_id|>\n\n", "<|eot_id|>"),
}
WRITE = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
TAGS = [
    "</parameter>", "<parameter=text>", "<parameter=path>\n", "</function>", "<function=write>", "</tool_call>",
    "<tool_call>", "<think>", "</think>", "<|python_tag|>", "\n", '"', "\\", "{", "}", "; ", "<", "print(", ")", "'",
]  # fmt: skip
VALUES = st.lists(st.sampled_from(TAGS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=9)
# Where a value between tags ends: llama.cpp's first line "</parameter>", here followed by the rest of the call.
AMBIGUOUS = re.compile(r"\n</parameter>\s*(<parameter=[^<>\n]+>|</function>\s*(</tool_call>|<function=))")


@lru_cache
def template_of(name: str) -> str:
    return (source_folder() / "models/templates" / f"{name}.jinja").read_text()


def written(name: str, arguments: dict[str, Any]) -> str:
    """A call as the model's own template writes it."""
    call = {"id": "call00001", "type": "function", "function": {"name": "write", "arguments": arguments}}
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "write", "description": "", "parameters": WRITE}}]
    (text,), _ = render_jinja_template([messages], tools=tools, chat_template=template_of(name), bos_token="")
    begin, end = WRITERS[name]
    before = text.index("Q" + end) if "Q" + end in text else text.index("Q")
    return text[text.index(begin, before) + len(begin) : text.rindex(end)]


def read(name: str, *pieces: str) -> list[tuple]:
    reader = ReplyReader(Dialect.of(template_of(name)), {"write": WRITE})
    parts = [part for piece in pieces for part in reader.read(piece)]
    return joined(parts + reader.finish())


@pytest.mark.parametrize("name", WRITERS)
@settings(deadline=None, max_examples=60)
@given(first=VALUES, second=VALUES)
@example(first=['print("</parameter>")'], second=["</parameter>\n</function>\n</tool_call>"])
@example(first=["a\n</parameter>\nb"], second=["</function>", "\n", "</tool_call>", "\n", "<tool_call>", '"\\'])
@example(first=[], second=["\n"])
def test_any_text_is_an_argument(name: str, first: list[str], second: list[str]) -> None:
    """Whole, cut anywhere, and cut off anywhere: a call is never shorter than the model wrote it."""
    arguments = {"path": "".join(first), "text": "".join(second)}
    assume(not any(AMBIGUOUS.search(f"{value}\n</parameter>") for value in arguments.values()))
    text = written(name, arguments)
    expected = [(CALL, arguments, "write")]
    assert read(name, text) == read(name, *text) == expected
    for n in range(1, len(text)):
        assert read(name, text[:n], text[n:]) == expected
        found = read(name, text[:n])
        assert [part for part in found if part[0] == CALL] in ([], expected)


def test_where_a_value_ends_if_it_writes_the_rest_of_the_call() -> None:
    """No parser can tell: as llama.cpp's, at the first end of a parameter."""
    text = "a\n</parameter>\n</function>\n</tool_call>\nb"
    (call, rest) = read("Qwen3-Coder", written("Qwen3-Coder", {"path": "p", "text": text}))
    assert call == (CALL, {"path": "p", "text": "a"}, "write")
    assert rest[0] == CONTENT


def test_deep_lists_are_text() -> None:
    reader = ReplyReader(Dialect.of(LLAMA3), TOOLS)
    assert [*reader.read("[" * 100_000), *reader.finish()] == [Part(CONTENT, "[" * 100_000)]
