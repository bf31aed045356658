"""Messages that a chat template refuses next to each other, joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from llama_eagle.sessions.chats import abilities

Message = dict[str, Any]
TextOf = Callable[[Any], str]


def join_turns(template: str, messages: Sequence[Message], text_of: TextOf) -> list[Message]:
    """Return the messages with questions and answers in a row joined, if the template requires alternating roles.

    A question after a call's result joins the result. A question after a call without a result becomes its result.
    text_of: returns the text of a message's content.
    """
    if not any(_may_follow(before, message) for before, message in pairwise(messages)):
        return list(messages)
    needs_turns, ends_with_results = abilities.needs_turns(template), abilities.ends_with_results(template)
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else {}
        is_same = needs_turns and _repeats_role(last, message)
        if is_same or (ends_with_results and _follows_result(last, message)):
            found[-1] = _joined(last, message, text_of)
        elif ends_with_results and _follows_cut_call(last, message):
            found.append(message | {"role": "tool", "tool_call_id": last["tool_calls"][-1].get("id") or ""})
        else:
            found.append(message)
    return found


def _may_follow(before: Message, message: Message) -> bool:
    return any(follows(before, message) for follows in (_repeats_role, _follows_result, _follows_cut_call))


def _repeats_role(before: Message, message: Message) -> bool:
    """Return True for two questions or two answers. Answers with calls are kept apart."""
    has_calls = before.get("tool_calls") or message.get("tool_calls")
    return message["role"] in ("user", "assistant") and before.get("role") == message["role"] and not has_calls


def _follows_result(before: Message, message: Message) -> bool:
    return before.get("role") == "tool" and bool(message["role"] == "user")


def _follows_cut_call(before: Message, message: Message) -> bool:
    """Return True for a question after a call without a result, because a limit has cut the call."""
    return bool(before.get("tool_calls")) and bool(message["role"] == "user")


def _joined(before: Message, message: Message, text_of: TextOf) -> Message:
    """Return both messages as one, with an empty line between their texts."""
    found = dict(before)
    for key in ("content", "reasoning_content"):
        texts = [text_of(each[key]) for each in (before, message) if each.get(key) is not None]
        if texts:
            found[key] = "\n\n".join(texts)
    return found
