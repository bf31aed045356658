"""Media in messages: marks in their texts, which every template shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.sessions.chats import abilities
from llama_eagle.sessions.chats.messages import text_of, unread_part

Part = Mapping[str, Any]


def with_marks(
    template: str, message: Any, is_media: Callable[[Any], bool], mark_of: Callable[[Part], str], kinds: str
) -> Any:
    """Return a message with media as a message of text, joined as the template joins texts. Others are unchanged.

    template: "" if there is none. mark_of: returns the text in place of a part that `is_media` is true for. kinds: the
    supported types of parts, for errors. Raises `UsageError` for other parts, which become texts in results of tools.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple) or not any(map(is_media, content)):
        return message
    role = "system" if message.get("role") == "developer" else str(message.get("role"))
    joint = abilities.joint_of_texts(template, role) if template else None
    parts = []
    for part in content:
        if is_media(part):
            parts.append({"type": "media_marker", "text": mark_of(part)})
        elif (text := _text(part)) is not None:
            parts.append({"type": "text", "text": text})
        elif role == "tool":
            parts.append(unread_part(part))
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise UsageError(f"a message has a part of type {kind!r}. Send {kinds} parts.")
    return {**message, "content": text_of(parts, "\n" if joint is None else joint)}


def _text(part: Any) -> str | None:
    text = part.get("refusal" if part.get("type") == "refusal" else "text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else None
