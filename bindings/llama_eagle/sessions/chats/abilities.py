"""Abilities of a chat template, found by rendering test conversations, as llama.cpp's server does.

See common/jinja/caps.cpp there. Each ability is tested when messages need it, once per template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llama_eagle.errors import InputError
from llama_eagle.sessions.chats.template import render

Message = dict[str, Any]
MARK = "STRING_MARKER"
USER: Message = {"role": "user", "content": "User message"}
# Arguments in Python's notation, and JSON text that was written as a JSON string.
WRONG_ARGUMENTS = (f"{{'arg': '{MARK}'", '\\"arg\\"')
ABSENT = ("None", "null")  # what templates print in place of missing content
REASONING = ("reasoning_content", "reasoning", "thinking", "thought")  # keys of reasoning in templates
CALL_ID = "call00001"  # some templates require nine characters
IN_CONTENT = "content"  # reasoning is a part of the content
CHARACTERS_OF_A_LIST = ("'text'", '"text"')  # in the output of a template that prints the list itself
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "tool1",
        "description": "Tool description",
        "parameters": {"type": "object", "properties": {"arg": {"type": "string"}}, "required": ["arg"]},
    },
}


@lru_cache(maxsize=32)
def takes_text(template: str, role: str) -> bool:
    """Return True if the content of a message with this role may be a string."""
    return MARK in _rendered(template, _conversation(role, MARK))


@lru_cache(maxsize=32)
def takes_parts(template: str, role: str) -> bool:
    """Return True if the content of a message with this role may be a list of parts."""
    parts = _rendered(template, _conversation(role, [{"type": "text", "text": MARK}]))
    if takes_text(template, role):
        return parts == _rendered(template, _conversation(role, MARK))
    return MARK in parts and not any(sign in parts for sign in CHARACTERS_OF_A_LIST)


@lru_cache(maxsize=32)
def takes_system(template: str) -> bool:
    """Return True if there may be a system message."""
    return MARK in _rendered(template, [{"role": "system", "content": MARK}, USER])


@lru_cache(maxsize=32)
def takes_later_systems(template: str) -> bool:
    """Return True if a system message may follow another message, a system message or an answer."""
    first, second, third = ({"role": "system", "content": f"{MARK}{i}"} for i in range(3))
    text = _rendered(template, [first, second, USER, {"role": "assistant", "content": "Answer"}, third, USER])
    return all(f"{MARK}{i}" in text for i in range(3))


@lru_cache(maxsize=32)
def shows_tools(template: str) -> bool:
    """Return False if the tools of a request are not in its prompt."""
    prompt = _rendered(template, [USER], tools=[TOOL])
    return not prompt or TOOL["function"]["name"] in prompt


@lru_cache(maxsize=32)
def shows_calls(template: str) -> bool:
    """Return False for a template that shows neither tools nor the calls of answers."""
    return shows_tools(template) or any(
        all(MARK in text for text in texts) for texts in _sound_calls(template).values()
    )


@dataclass(frozen=True)
class CallForm:
    """The form in which a template shows calls."""

    has_text_arguments: bool = False  # JSON text: objects fail or are printed in Python's notation
    has_null_content: bool = False  # of an answer without content; otherwise it is ""


@lru_cache(maxsize=32)
def form_of_calls(template: str) -> CallForm:
    """Return the first form that shows a call's arguments, as JSON and once.

    A form in which the template fails, or prints a word for missing content, is not used.
    """
    usable = _sound_calls(template)
    shown = [form for form, texts in usable.items() if all(MARK in text for text in texts)]
    return next(iter([*shown, *usable]), CallForm())


@lru_cache(maxsize=32)
def _sound_calls(template: str) -> dict[CallForm, list[str]]:
    """Return the prompts with an earlier call, last and followed by an answer, for each form that is sound."""
    forms = [CallForm(as_text, is_null) for as_text in (False, True) for is_null in (True, False)]
    texts = {form: [_rendered(template, _in_form(form)[:n], tools=[TOOL]) for n in (3, 5)] for form in forms}
    return {form: prompts for form, prompts in texts.items() if all(map(_is_sound, prompts))}


@lru_cache(maxsize=32)
def wants_nine_characters(template: str) -> bool:
    """Return True if the template refuses ids of calls that do not have nine characters, as Mistral's do."""
    chats = (_called({"arg": MARK}, "", name)[:3] for name in (CALL_ID, "call_1"))
    nine, other = (_rendered(template, chat, tools=[TOOL]) for chat in chats)
    return bool(nine) and not other


@lru_cache(maxsize=128)
def joint_of_texts(template: str, role: str) -> str | None:
    """Return what the template writes between the texts of a message with this role.

    None if its prompt is not that of one text, or if it reads one text alone.
    """
    texts = [f"{MARK}{i}" for i in range(3)]
    parts = _with_content(template, role, [{"type": "text", "text": text} for text in texts])
    joint, second, _ = parts.partition(texts[0])[2].partition(texts[1])
    return joint if second and parts == _with_content(template, role, joint.join(texts)) else None


@lru_cache(maxsize=32)
def has_results_apart(template: str) -> bool:
    """Return True if the template shows each text of a result as a result."""
    texts = [f"{MARK}{i}" for i in range(3)]
    prompt = _with_content(template, "tool", [{"type": "text", "text": text} for text in texts])
    is_printed = any(sign in prompt for sign in CHARACTERS_OF_A_LIST)
    is_shown = re.findall(rf"{MARK}[0-2]", prompt) == texts and not is_printed
    return is_shown and joint_of_texts(template, "tool") is None


def _with_content(template: str, role: str, content: Any) -> str:
    """Return the prompt of a conversation with this content in a message of this role."""
    if role != "tool":
        return _rendered(template, _conversation(role, content))
    called = _in_form(form_of_calls(template))
    return _rendered(template, [*called[:2], called[2] | {"content": content}], tools=[TOOL])


@lru_cache(maxsize=32)
def refuses_empty_answers(template: str) -> bool:
    """Return True if the template refuses an answer without text, as Ministral's does, but not a part without text."""
    empty = ("", [{"type": "text", "text": ""}])
    return [bool(_rendered(template, _conversation("assistant", content))) for content in empty] == [False, True]


@lru_cache(maxsize=32)
def needs_turns(template: str) -> bool:
    """Return True if the template refuses two messages of one role in a row."""
    return bool(_rendered(template, [USER], tools=[TOOL])) and not _rendered(template, [USER, USER], tools=[TOOL])


@lru_cache(maxsize=32)
def ends_with_results(template: str) -> bool:
    """Return True if the template refuses a question after a call's result."""
    chat = _in_form(form_of_calls(template))
    del chat[3]  # the answer between them
    is_shown = MARK in _rendered(template, chat[:2], tools=[TOOL])
    return is_shown and not _rendered(template, chat, tools=[TOOL])


def _in_form(form: CallForm) -> list[Message]:
    arguments = f'{{"arg": "{MARK}"}}' if form.has_text_arguments else {"arg": MARK}
    return _called(arguments, None if form.has_null_content else "")


def _is_sound(prompt: str) -> bool:
    return bool(prompt) and not any(sign in prompt for sign in (*WRONG_ARGUMENTS, *ABSENT))


@lru_cache(maxsize=32)
def key_of_reasoning(template: str) -> str:
    """Return the key of an answer's reasoning that the template reads; if there is none, OpenAI-like servers' own."""
    for key in REASONING:
        if MARK in _reasoned(template, {key: MARK}):
            return key
    parts = _reasoned(template, {"content": [{"type": "thinking", "thinking": MARK}]})
    is_list = any(sign in parts for sign in ("'thinking'", '"thinking"'))
    return IN_CONTENT if MARK in parts and not is_list else REASONING[0]


@lru_cache(maxsize=32)
def takes_reasoning_and_content(template: str) -> bool:
    """Return True if an answer with calls may have both reasoning and content."""
    return MARK in _reasoned(template, {key_of_reasoning(template): MARK, "content": "Content"}, n_messages=3)


def _reasoned(template: str, answer: Message, n_messages: int = 0) -> str:
    """Return the prompts of chats with an answer that reasons, to a call and at the end."""
    called = _called({"arg": "value"}, "")[:3]
    called[1] |= answer
    plain = [USER, {"role": "assistant", "content": "Answer", **answer}]
    chats = [called] if n_messages else [called, plain]
    return "".join(_rendered(template, chat, tools=[TOOL]) for chat in chats)


def _conversation(role: str, content: Any) -> list[Message]:
    message = {"role": role, "content": content}
    return {"user": [message], "assistant": [USER, message, USER]}.get(role, [message, USER])


def _called(arguments: Any, content: str | None, call_id: str = CALL_ID) -> list[Message]:
    """Return a conversation with a call and its result."""
    call = {"id": call_id, "type": "function", "function": {"name": "tool1", "arguments": arguments}}
    result = {"role": "tool", "content": "Tool response", "tool_call_id": call_id}
    answer = {"role": "assistant", "content": "The tool response was 'tool response'"}
    return [USER, {"role": "assistant", "content": content, "tool_calls": [call]}, result, answer, USER]


def _rendered(template: str, messages: list[Message], **more: Any) -> str:
    """Return the prompt; "" if the template refuses the messages."""
    tokens = {"bos_token": "", "eos_token": ""}
    variables: Mapping[str, Any] = {**tokens, "add_generation_prompt": True, "tools": None, "datetime": ""}
    try:
        return render(template, {**variables, "messages": messages, **more}, "a test")
    except InputError:
        return ""
