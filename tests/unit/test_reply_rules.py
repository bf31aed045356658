"""The rules by which an answer to a chat is sampled, and its calls piece by piece, as llama-server streams them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pytest
from fixtures.upstream import source_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_eagle.errors import UsageError
from llama_eagle.sessions.chat import Reply

pytestmark = pytest.mark.native

QWEN3, QWEN35, NEMO = "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "mistralai-Mistral-Nemo-Instruct-2407"
GPT_OSS, GEMMA2 = "openai-gpt-oss-120b", "google-gemma-2-2b-it"
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "note": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": NUMBERS}}]
QUESTION = {"role": "user", "content": "Q"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "note": "x"}}\n</tool_call>'


@lru_cache
def template_of(name: str) -> str:
    return (source_folder() / "models/templates" / f"{name}.jinja").read_text()


def reply_of(name: str, **request: Any) -> Reply:
    usual = {"bos": "", "eos": "", "messages": [QUESTION], "tools": TOOLS, "streams_calls": True}
    return Reply(template=template_of(name), **usual | request)


def joined(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the pieces of a stream make up."""
    message: dict[str, Any] = {"reasoning_content": "", "content": "", "tool_calls": []}
    for piece in pieces:
        for key in ("reasoning_content", "content"):
            message[key] += piece.get(key, "")
        for call in piece["tool_calls"]:
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"name": "", "arguments": "", "id": ""})
            for key in ("name", "arguments", "id"):
                message["tool_calls"][call["index"]][key] += call.get(key, "")
    return message


def whole(reply: Reply, text: str) -> dict[str, Any]:
    return joined([reply.add(text, is_last=True)])


def test_a_call_that_is_possible_has_a_lazy_grammar() -> None:
    rules = reply_of(QWEN3).settings
    assert rules["grammar_lazy"] is True
    assert rules["grammar_type"] == "tool_calls"
    assert rules["grammar_triggers"] == [{"type": 1, "value": "<tool_call>\n"}]
    assert "<tool_call>" in rules["preserved_tokens"]
    assert "grammar" not in reply_of(QWEN3, tool_choice="none").settings
    assert [trigger["type"] for trigger in reply_of(GPT_OSS).settings["grammar_triggers"]] == [2, 2, 2, 2]


def test_a_required_call_and_a_format_have_grammars_from_the_first_token() -> None:
    required = reply_of(QWEN3, tool_choice="required").settings
    schema = {"type": "object", "properties": {"city": {"const": "Rome"}}}
    format_ = reply_of(QWEN3, json_schema=schema, tools=None).settings
    both = reply_of(QWEN3, json_schema=schema).settings
    assert not any(each["grammar_lazy"] for each in (required, format_, both))
    assert ["Rome" in each["grammar"] for each in (required, format_, both)] == [False, True, True]
    assert ["<tool_call>" in each["grammar"] for each in (required, format_, both)] == [True, False, True]


def test_a_template_without_calls_refuses_a_required_one() -> None:
    assert whole(reply_of(GEMMA2), "Hello")["content"] == "Hello"
    with pytest.raises(UsageError, match="requires a call"):
        reply_of(GEMMA2, tool_choice="required")


def test_one_call_or_several() -> None:
    one, several = (reply_of(QWEN35, tool_choice="required", parallel_tool_calls=each) for each in (False, True))
    assert one.settings["grammar"] != several.settings["grammar"]


def test_messages_begin_where_the_template_begins_them() -> None:
    rules = reply_of(QWEN3).settings
    assert {"role": "user", "delimiter": "<|im_start|>user"} in rules["message_delimiters"]
    assert rules["generation_prompt"] == "<|im_start|>assistant\n"
    assert (rules["reasoning_budget_start_tag"], rules["reasoning_budget_end_tags"]) == ("<think>", ["</think>"])
    assert "reasoning_budget_end_tags" not in reply_of(GEMMA2).settings


@pytest.mark.parametrize("thinks", [True, False])
def test_the_end_of_the_prompt_chooses_the_form(thinks: bool) -> None:
    """Whatever the variables say: the prompt is what the model reads."""
    end = "<|im_start|>assistant\n<think>\n" + "\n</think>\n\n" * (not thinks)
    reply = reply_of(QWEN35, prompt_end=f"Q<|im_end|>\n{end}", enable_thinking=not thinks)
    assert reply.generation_prompt == end
    assert bool(whole(reply, "Why.\n</think>\n\nSo." if thinks else "So.")["reasoning_content"]) == thinks


def test_without_extraction_reasoning_is_content() -> None:
    text = "<think>\nWhy?\n</think>\n\nSo."
    assert whole(reply_of(QWEN3, reasoning_format="auto"), text)["reasoning_content"].strip() == "Why?"
    assert whole(reply_of(QWEN3, reasoning_format="none"), text)["content"] == text
    assert whole(reply_of(QWEN3, force_pure_content=True), CALL)["content"] == CALL


def test_an_answer_goes_on_with_the_last_message() -> None:
    begun = {"role": "assistant", "content": "It is", "reasoning_content": "Easy."}
    reply = reply_of(QWEN3, messages=[QUESTION, begun], continue_final_message=True)
    assert reply.generation_prompt == "<|im_start|>assistant\n<think>\nEasy.\n</think>\n\nIt is"
    assert joined([reply.add(" 4"), reply.add(".", is_last=True)])["content"] == " 4."
    echoed = reply_of(QWEN3, messages=[QUESTION, begun], continue_final_message=True, echo=True)
    assert whole(echoed, " 4.")["content"] == "It is 4."
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    seen = reply_of(QWEN3, messages=[QUESTION | {"content": [picture]}, begun], continue_final_message="content")
    assert seen.generation_prompt == reply.generation_prompt


def test_a_call_comes_piece_by_piece() -> None:
    reply = reply_of(QWEN3)
    pieces = [reply.add(character)["tool_calls"] for character in CALL]
    sent = [piece for each in pieces for piece in each]
    assert len(sent) > 10
    assert [piece.get("name") for piece in sent] == ["add"] + [None] * (len(sent) - 1)
    assert joined([reply.add("", is_last=True)])["tool_calls"] == []
    assert json.loads("".join(piece["arguments"] for piece in sent)) == {"a": 1, "note": "x"}


def test_a_call_has_the_id_that_the_model_wrote() -> None:
    text = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]'
    assert whole(reply_of(NEMO), text)["tool_calls"] == [{"name": "add", "arguments": '{"a": 1}', "id": "abcdefghi"}]


TEXTS = st.lists(
    st.sampled_from(
        ["<think>\n", "\n</think>\n\n", CALL, CALL[:40], CALL[40:], "<tool_call>", " ", "\n", "<", "a", "{", "é", "; "]
    ),
    max_size=6,
).map("".join)


@settings(deadline=None, max_examples=60)
@given(text=TEXTS, data=st.data())
def test_an_answer_equals_its_stream(text: str, data: st.DataObject) -> None:
    """The same calls, and no text of a stream is lost or written twice."""
    ends = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    cuts = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    reply = reply_of(QWEN3)
    streamed = joined([*map(reply.add, cuts), reply.add("", is_last=True)])
    answer = whole(reply_of(QWEN3), text)
    assert streamed["tool_calls"] == answer["tool_calls"]
    if not answer["tool_calls"]:
        assert streamed["content"].split() == answer["content"].split()


LONG = 'It is "so": {a} \\ [1, 2], é\n' * 300  # about 8,000 bytes
LONG_CALL = json.dumps({"name": "add", "arguments": {"a": 1, "note": LONG}}, ensure_ascii=False)
LONG_ANSWERS = {
    "thoughts, text and calls": (QWEN3, f"<think>\n{LONG}</think>\n\n{LONG}<tool_call>\n{LONG_CALL}\n</tool_call>", {}),
    "calls one after another": (QWEN3, f"<tool_call>\n{LONG_CALL}\n</tool_call>\n" * 3, {}),
    "text between tags": (
        QWEN35,
        f"{LONG}</think>\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\n{LONG}"
        "\n</parameter>\n</function>\n</tool_call>",
        {},
    ),
    "a format": (QWEN3, json.dumps({"a": LONG, "rest": [{"a": LONG}] * 2}), {"json_schema": {"type": "object"}}),
    "numbers": (QWEN3, '<tool_call>\n{"name": "add", "arguments": {"a": [' + "1, " * 2000, {}),
    "what looks like a mark": (QWEN3, f"<think>\n{LONG}</think>\n\nIt is \uf5e70\uf5e7. {LONG}", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_ANSWERS)
@pytest.mark.parametrize("streams_calls", [True, False])
def test_a_long_answer_equals_its_stream(name: str, streams_calls: bool) -> None:
    """Its beginnings are not parsed from their first characters: what is left out is in the message."""
    template, text, more = LONG_ANSWERS[name]
    reply = reply_of(template, **more, streams_calls=streams_calls)
    pieces = [reply.add(text[n : n + 7]) for n in range(0, len(text), 7)]
    pieces.append(reply.add("", is_last=True))
    answer = reply_of(template, **more, streams_calls=streams_calls).add(text, is_last=True)
    if streams_calls:
        streamed, whole_answer = joined(pieces), joined([answer])
        assert streamed["content"].strip() == whole_answer.pop("content").strip()
        assert {key: streamed[key] for key in whole_answer} == whole_answer
        assert len(pieces[-1].get("content", "")) < 100, "content was held back"
    else:
        assert [call for piece in pieces for call in piece["tool_calls"]] == answer["tool_calls"]


def test_long_text_comes_with_every_piece() -> None:
    reply = reply_of(QWEN3)
    assert all(reply.add(" a, b").get("content") for _ in range(4000))
