"""Reasoning, content and tool calls in replies by llama.cpp's parsers: whole, and cut anywhere."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from fixtures.answers import templates
from fixtures.upstream import source_folder
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from llama_eagle.drop_in.chat import split
from llama_eagle.drop_in.replies import CALL, CONTENT, REASONING, FormattedReply, Part
from llama_eagle.errors import UsageError
from llama_eagle.sessions.chat import Reply
from transformers.utils.chat_template_utils import render_jinja_template

pytestmark = pytest.mark.native

QWEN3, QWEN35, LLAMA3 = "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "meta-llama-Llama-3.1-8B-Instruct"
BEGUN = {QWEN3: "<|im_start|>assistant\n", QWEN35: "<|im_start|>assistant\n<think>\n", LLAMA3: "<|end_header_id|>\n\n"}
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
NUMBER = {"type": "number"}
PROPERTIES = {"a": NUMBER, "b": NUMBER, "note": {"type": "string"}}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "now"}},
]
ADD = {"a": 1, "b": 2.5, "note": "12"}
XML_ADD = (
    "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2.5\n</parameter>\n"
    "<parameter=note>\n12\n</parameter>\n</function>\n"
)
CASES = {
    "plain text stays as it is": (LLAMA3, "Hello\n\nyou \n", [(CONTENT, "Hello\n\nyou \n")]),
    "the beginning of a tag at the end": (QWEN3, "a <tool_ca", [(CONTENT, "a <tool_ca")]),
    "reasoning": (QWEN3, "<think>\nWhy?\n\n</think>\n\nSo.", [(REASONING, "Why?"), (CONTENT, "So.")]),
    "opened by the prompt": (QWEN35, "\nWhy?\n</think>\n\nSo.", [(REASONING, "Why?"), (CONTENT, "So.")]),
    "cut while reasoning": (QWEN35, "Why? Bec", [(REASONING, "Why? Bec")]),
    "no reasoning": (QWEN3, "<think>\n\n</think>\n\nSo.", [(CONTENT, "So.")]),
    "a tag later is text": (QWEN3, "Write <think> here", [(CONTENT, "Write <think> here")]),
    "a call": (
        QWEN3, f'Let me.\n<tool_call>\n{{"name": "add", "arguments": {json.dumps(ADD)}}}\n</tool_call>',
        [(CONTENT, "Let me."), (CALL, ADD, "add")],
    ),
    "two calls": (
        QWEN3, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n' * 2,
        [(CALL, {}, "now"), (CALL, {}, "now")],
    ),
    "thought, then called": (
        QWEN35, f"I add.\n</think>\n\n<tool_call>\n{XML_ADD}</tool_call>", [(REASONING, "I add."), (CALL, ADD, "add")]
    ),
    "an unknown tool": (
        QWEN3, '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>',
        [(CONTENT, '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>')],
    ),
    "no JSON": (QWEN3, "<tool_call>{]</tool_call> sorry", [(CONTENT, "<tool_call>{]</tool_call> sorry")]),
    "a call that was cut": (QWEN3, '<tool_call>\n{"name"', [(CONTENT, '<tool_call>\n{"name"')]),
    "Llama": (LLAMA3, '{"name": "add", "parameters": ' + json.dumps(ADD) + "}", [(CALL, ADD, "add")]),
    "Llama, after white space": (LLAMA3, '\n {"name": "now", "parameters": {}}', [(CALL, {}, "now")]),
    "Llama, other JSON": (LLAMA3, '{"a": [1, 2]} is it', [(CONTENT, '{"a": [1, 2]} is it')]),
    "Llama, text": (LLAMA3, 'The "now" tool', [(CONTENT, 'The "now" tool')]),
}  # fmt: skip


@lru_cache
def template_of(name: str) -> str:
    return (source_folder() / "models/templates" / f"{name}.jinja").read_text()


def reader(name: str, tools: list[Any], prompt_end: str = "") -> FormattedReply:
    messages = [{"role": "user", "content": "Q"}]
    reply = Reply(template=template_of(name), bos="", eos="", messages=messages, tools=tools, chat_template_kwargs={})
    return FormattedReply(reply, {}, prompt_end)


def joined(parts: list[Part]) -> list[tuple]:
    """Return the texts of each kind as one; calls with their arguments read, cut ones as they are."""
    found: list[tuple] = []
    for kind in (REASONING, CONTENT):
        if text := "".join(part.text for part in parts if part.kind == kind):
            found.append((kind, text))
    calls = [part for part in parts if part.kind == CALL]
    return [*found, *((CALL, json.loads(part.text) if part.is_whole else part.text, part.name) for part in calls)]


def read(reply: FormattedReply, *pieces: str) -> list[tuple]:
    parts = [part for piece in pieces for part in reply.read(piece)]
    return joined(parts + reply.finish())


def cut(text: str, data: st.DataObject) -> Iterator[str]:
    while text:
        n = data.draw(st.integers(1, len(text)))
        yield text[:n]
        text = text[n:]


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_a_reply_is_the_same_however_it_comes(name: str, data: st.DataObject) -> None:
    template, text, expected = CASES[name]
    assert read(reader(template, TOOLS, BEGUN[template]), *cut(text, data)) == expected


TWO_CALLS = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "add", "arguments": '


@pytest.mark.parametrize(("rest", "expected"), [('{"a": 1}}\n</tool_call>', "tool_calls"), ('{"a": 1', "stop")])
def test_a_call_that_a_stop_text_has_cut_is_none_to_run(rest: str, expected: str) -> None:
    def make() -> FormattedReply:
        return reader(QWEN3, TOOLS, BEGUN[QWEN3])

    whole = {"choices": [{"message": {"content": TWO_CALLS + rest}, "finish_reason": "stop"}]}
    pieces = [{"delta": {"content": text}, "finish_reason": None} for text in (TWO_CALLS, rest)]
    chunks = [{"choices": [choice]} for choice in [*pieces, {"delta": {}, "finish_reason": "stop"}]]
    for answer in (split(whole, make), *list(split(chunks, make))[-1:]):
        assert answer["choices"][0]["finish_reason"] == expected


CUT = {
    QWEN3: f'add <tool_call>\n{{"name": "add", "arguments": {json.dumps(ADD)}}}\n</tool_call>',
    QWEN35: f"\nI add.\n</think>\n\nNow. <tool_call>\n{XML_ADD}</tool_call>",
    LLAMA3: f'{{"name": "add", "parameters": {json.dumps(ADD)}}}',
    "mistralai-Mistral-Nemo-Instruct-2407": 'Now.[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abcdefghi"}]',
    "GLM-4.6": "\n<think>I add.</think>\nNow. <tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n",
}

BEGINNING = {QWEN35: ["<tool_call>", "I add.\n<tool_call>\n<func"]}  # of a call, behind thoughts that are not closed


@pytest.mark.parametrize("name", CUT)
def test_nothing_is_lost_of_a_reply_that_was_cut(name: str) -> None:
    """Reasoning, text and the beginning of a call that has no name yet."""
    for text in [*(CUT[name][:n] for n in range(len(CUT[name]) + 1)), *BEGINNING.get(name, [])]:
        found = read(reader(name, TOOLS, BEGUN.get(name, "")), text)
        if not any(part[0] == CALL for part in found):
            shown = "".join("".join(part[1] for part in found).split())
            assert shown == "".join(re.sub("</?think>", "", text).split())


PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", XML_ADD, '{"name": "now", "arguments": {}}', " ", "\n",
         "<", "<tool", "a", "{", "[", "; ", "<|python_tag|>"]
    ),
    max_size=8,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(pieces=PIECES, template=st.sampled_from([QWEN3, QWEN35, LLAMA3]), opened=st.booleans(), data=st.data())
def test_nothing_is_lost_cut_anywhere(pieces: list[str], template: str, opened: bool, data: st.DataObject) -> None:
    """The same calls as if it came at once, and all of a text without calls."""
    text = "".join(pieces)
    end = BEGUN[template] if opened or template != QWEN35 else CLOSED
    whole = read(reader(template, TOOLS, end), text)
    found = read(reader(template, TOOLS, end), *cut(text, data))
    assert [part for part in found if part[0] == CALL] == [part for part in whole if part[0] == CALL]
    if text.strip() and not any(tag in text for tag in ("think>", "{", XML_ADD)):
        kinds = ("".join(part[1] for part in group) for _, group in itertools.groupby(found, lambda part: part[0]))
        # White space between thoughts and what follows them belongs to neither.
        words = r"\s*".join(r"\s+".join(map(re.escape, shown.split())) for shown in kinds)
        assert re.fullmatch(words, text.strip())


@settings(deadline=None, max_examples=30)
@given(text=st.text(alphabet='<>/thinktool_ca{}" \n'))
def test_without_tools_and_reasoning_nothing_changes(text: str) -> None:
    reply = reader(LLAMA3, [])
    assert "".join(part.text for part in [*reply.read(text), *reply.finish()]) == text


def test_text_is_told_as_soon_as_it_is_known() -> None:
    reply = reader(QWEN3, TOOLS)
    assert reply.read("Hello <to") == [Part(CONTENT, "Hello")]
    assert reply.read("ast>") == [Part(CONTENT, " <toast>")]


def test_calls_of_a_stream_come_when_they_are_whole() -> None:
    reply = reader(QWEN3, TOOLS)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    assert reply.read(call) == []
    assert reply.read(call[:-12]) == [Part(CALL, "{}", "now")]
    assert reply.finish() == [Part(CALL, "{}", "now")]


@pytest.mark.parametrize("name", ["GigaChat3-10B-A1.8B", "ByteDance-Seed-OSS"])
def test_templates_that_look_for_a_type_in_a_list(name: str) -> None:
    """A parameter may have several types, or none."""
    properties = {"a": {"type": ["string", "null"]}, "b": {"enum": ["x", 1]}}
    function = {"name": "now", "description": "", "parameters": {"type": "object", "properties": properties}}
    reply = reader(name, [{"type": "function", "function": function}])
    assert read(reply, "Hello") == [(CONTENT, "Hello")]


def test_an_invalid_template_is_refused() -> None:
    for template in ("{% for %}", "{{ raise_exception('no') }}", ""):
        with pytest.raises(UsageError):
            Reply(template=template, bos="", eos="", messages=[], tools=[], chat_template_kwargs={})


WRITE = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
WRITE_TOOLS = [{"type": "function", "function": {"name": "write", "description": "", "parameters": WRITE}}]
# Where a call begins behind thoughts that the prompt has opened.
BEGINNINGS = {"GLM-4.7": "<tool_call>", "MiniMax-M2": "<minimax:tool_call>", "Spark2.5": "<tool_call>"}
TAGS = [
    "</parameter>", "<parameter=text>", "<parameter=path>\n", "</function>", "<function=write>", "</tool_call>",
    "<tool_call>", "<think>", "</think>", "<|python_tag|>", "</arg_value>", "<arg_key>", "</invoke>", "</param>",
    "[TOOL_CALLS]", "<|im_end|>", "\n", '"', "\\", "{", "}", "; ", "<", "print(", ")", "'",
]  # fmt: skip
VALUES = st.lists(st.sampled_from(TAGS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=9)
# Ends of a value behind which the value writes the rest of a call itself.
AMBIGUOUS = re.compile(r"</(parameter|arg_value|invoke)>\s*(<parameter=|<arg_key>|</function>|</tool_call>|</invoke>)")
ODD = {"LFM2.5-8B-A1B": "its template escapes no quotes"}


def rendered(name: str, answers: list[Any], *, is_asked: bool) -> str | None:
    messages = [{"role": "user", "content": "QUESTION"}, *answers]
    variables = {"bos_token": "", "eos_token": "", "add_generation_prompt": is_asked, "date_string": "now"}
    try:
        (text,), _ = render_jinja_template([messages], tools=WRITE_TOOLS, chat_template=template_of(name), **variables)
    except Exception:
        return None
    return str(text)


def written(name: str, arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the end of the prompt and a call as a template writes it, in each form of arguments."""
    prompt = rendered(name, [], is_asked=True) or ""
    plain = rendered(name, [{"role": "assistant", "content": "ANSWER"}], is_asked=False) or "ANSWER"
    end = plain[plain.rindex("ANSWER") + len("ANSWER") :] if "ANSWER" in plain else ""
    for form in (arguments, json.dumps(arguments, ensure_ascii=False)):
        call = {"id": "call00001", "type": "function", "function": {"name": "write", "arguments": form}}
        text = rendered(name, [{"role": "assistant", "content": "", "tool_calls": [call]}], is_asked=False)
        if text is None:
            continue
        begin = next((sign for key, sign in BEGINNINGS.items() if key in name), None)
        if text.startswith(prompt):
            yield prompt, text.removeprefix(prompt).removesuffix(end)
        elif begin is not None:
            yield prompt, "Why.</think>\n\n" + text[text.index(begin, len(prompt) - 20) :].removesuffix(end)


@lru_cache
def form_of(name: str) -> int | None:
    """Return the form of arguments in which a template writes a call that its parser reads; None without calls."""
    simple = {"path": "a", "text": "b"}
    texts = list(written(name, simple))
    found = [read(reader(name, WRITE_TOOLS, prompt), text)[-1:] == [(CALL, simple, "write")] for prompt, text in texts]
    return found.index(True) if True in found else None


NAMES = [path.stem for path in templates()]


# One of each kind of format; the others are slow tests.
QUICK = ("Qwen-Qwen3-0.6B", "Qwen3.5-4B", "meta-llama-Llama-3.1-8B-Instruct", "GLM-4.6", "MiniMax-M2",
         "openai-gpt-oss-120b", "deepseek-ai-DeepSeek-V3.1", "mistralai-Mistral-Nemo-Instruct-2407")  # fmt: skip
DIALECTS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def test_templates_of_each_format_write_calls() -> None:
    assert all(form_of(name) is not None for name in QUICK)


@pytest.mark.parametrize("name", DIALECTS)
@settings(deadline=None, max_examples=12)
@given(first=VALUES, second=VALUES, data=st.data())
@example(first=['print("</parameter>")'], second=["</parameter>\n</function>\n"], data=None)
@example(
    first=["a\n</parameter>\nb"], second=["</function>", "\n", "</tool_call>", "\n", "<tool_call>", '"\\'], data=None
)
@example(first=[], second=["\n"], data=None)
def test_any_text_is_an_argument(name: str, first: list[str], second: list[str], data: st.DataObject | None) -> None:
    """Whole, cut anywhere, and cut off anywhere: a whole call is never shorter than the model wrote it."""
    form = form_of(name)
    if form is None or name in ODD:
        return
    arguments = {"path": "".join(first), "text": "".join(second)}
    assume(data is None or not any(AMBIGUOUS.search(value) for value in arguments.values()))
    prompt, text = list(written(name, arguments))[form]
    expected = [(CALL, arguments, "write")]
    pieces = list(text) if data is None else list(cut(text, data))
    for found in (read(reader(name, WRITE_TOOLS, prompt), text), read(reader(name, WRITE_TOOLS, prompt), *pieces)):
        assert [part for part in found if part[0] == CALL] == expected
    n = len(text) // 2 if data is None else data.draw(st.integers(0, len(text)))
    begun = read(reader(name, WRITE_TOOLS, prompt), text[:n])
    assert [part for part in begun if part[0] == CALL and isinstance(part[1], dict)] in ([], expected)


def tag_of(name: str) -> str | None:
    """Return the tag that begins a call; None for templates whose calls begin with plain JSON, or that have none."""
    rules = Reply(template=template_of(name), bos="", eos="", messages=[{"role": "user", "content": "Q"}], tools=TOOLS)
    words = [each["value"].strip() for each in rules.settings.get("grammar_triggers", []) if each["type"] == 1]
    return words[0] if words and words[0].isascii() else None


@lru_cache
def thoughts_of(name: str) -> tuple[str, str] | None:
    """Return what a model writes before and behind its thoughts; None if its answers have none."""
    messages = [{"role": "user", "content": "Q"}]
    rules = Reply(template=template_of(name), bos="", eos="", messages=messages, tools=[]).settings
    *_, end = rules.get("reasoning_budget_end_tags", [""])
    for head in ("", rules.get("reasoning_budget_start_tag", "") + "\n"):
        if stripped(read(reader(name, []), f"{head}Hm.{end}\n\nSo.")) == [(REASONING, "Hm."), (CONTENT, "So.")]:
            return head, end
    return None


def stripped(found: list[tuple]) -> list[tuple]:
    return [(kind, text.strip() if kind != CALL else text, *more) for kind, text, *more in found]


# Those whose thoughts end at the tag of a call, and one of each other kind.
THINKING = ("Qwen3.5-4B", "inclusionai-ling-3.0-flash", "moonshotai-Kimi-K2", "StepFun3.5-Flash", "GLM-4.6",
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Cohere2MoE", "Qwen-Qwen3-0.6B")  # fmt: skip
ANY_THINKING = [name if name in THINKING else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("tools", [None, WRITE_TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("name", ANY_THINKING)
def test_the_tag_of_a_call_in_thoughts_is_text(name: str, tools: list[Any] | None) -> None:
    """Without tools, it ends neither the thoughts nor their budget."""
    tag, around = tag_of(name), thoughts_of(name)
    assert name not in THINKING or (tag and around)
    if tag is None or around is None:
        return
    text = f"{around[0]}I see {tag} here.{around[1]}\n\nSo."
    for pieces in ([text], text):
        found = stripped(read(reader(name, tools or []), *pieces))
        assert found == [(REASONING, f"I see {tag} here."), (CONTENT, "So.")]
    messages = [{"role": "user", "content": "Q"}]
    rules = Reply(template=template_of(name), bos="", eos="", messages=messages, tools=tools, tool_choice="none")
    assert tag not in rules.settings["reasoning_budget_end_tags"]


@pytest.mark.parametrize("name", ANY_THINKING)
def test_text_around_calls_remains(name: str) -> None:
    """Behind a call, between two, behind one of an unknown tool, and in thoughts, where some dialects have calls."""
    tag, form = tag_of(name), form_of(name)
    if tag is None or form is None:
        return
    _, text = list(written(name, {"path": "a", "text": "b"}))[form]
    call = text[text.index(tag) :].removesuffix("<|eom_id|>").removesuffix("<｜hy_eos:opensource｜>")
    unknown = call.replace("write", "other")
    head, end = thoughts_of(name) or ("", "")
    texts = [f"Yes. {call} No.", f"Yes. {call} No. {call} Well.", f"Yes. {unknown} No."]
    if end:
        texts = [f"{head}Hm.{end}\n\n{each}" for each in texts]
        texts += [f"{head}Hm. {each} No.{end}\n\nSo." for each in (call, unknown)]
    for each in texts:
        found = read(reader(name, WRITE_TOOLS), each)
        assert read(reader(name, WRITE_TOOLS), *each) == found
        calls = [part for part in found if part[0] == CALL]
        assert calls == [(CALL, {"path": "a", "text": "b"}, "write")] * len(calls)
        assert len(calls) == each.count(call) or (end and each.endswith("So."))
        shown = " ".join(part[1] for part in found if part[0] != CALL)
        expected = each.removeprefix(head).replace(end, "") if end else each
        assert shown.split() == expected.replace(call, "", len(calls)).split()
