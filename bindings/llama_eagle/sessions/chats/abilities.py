"""Abilities of a chat template, found by rendering test conversations, as llama.cpp's server does.

See common/jinja/caps.cpp there. Each ability is tested when messages need it, once per template.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llama_eagle.errors import InputError
from llama_eagle.sessions.chat_template import render

Message = dict[str, Any]
MARK = "STRING_MARKER"
USER: Message = {"role": "user", "content": "User message"}
CHARACTERS_OF_A_LIST = ("'text'", '"text"')  # in the output of a template that prints the list itself
TOOL = {
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
def takes_text_arguments(template: str) -> bool:
    """Return True if arguments of calls must be JSON text, because objects fail or are printed in Python's notation."""
    objects = _rendered(template, _called({"arg": MARK}), tools=[TOOL])
    if MARK in objects and "{'arg'" not in objects:
        return False
    return MARK in _rendered(template, _called(f'{{"arg": "{MARK}"}}'), tools=[TOOL])


def _conversation(role: str, content: Any) -> list[Message]:
    message = {"role": role, "content": content}
    return {"user": [message], "assistant": [USER, message, USER]}.get(role, [message, USER])


def _called(arguments: Any) -> list[Message]:
    """Return a conversation with a call and its result. Some templates require an id of nine characters."""
    call = {"id": "call00001", "type": "function", "function": {"name": "tool1", "arguments": arguments}}
    result = {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"}
    answer = {"role": "assistant", "content": "The tool response was 'tool response'"}
    return [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result, answer, USER]


def _rendered(template: str, messages: list[Message], **more: Any) -> str:
    """Return the prompt; "" if the template refuses the messages."""
    variables: Mapping[str, Any] = {"bos_token": "", "eos_token": "", "add_generation_prompt": True, "tools": None}
    try:
        return render(template, {**variables, "messages": messages, **more}, "a test")
    except InputError:
        return ""
