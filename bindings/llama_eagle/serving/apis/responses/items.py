"""Items of OpenAI's Responses API as messages of a chat, and the items of recent answers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from llama_eagle.serving.api_errors import COMPACTION, Refusal
from llama_eagle.serving.apis.responses.tools import name_in
from llama_eagle.serving.requests.fields import Body, bare_id, text_at

MAX_ITEMS = 4096
MAX_ITEM_BYTES = 16 << 20  # of all items
TEXTS = ("text", "input_text", "output_text", "refusal")  # clients send earlier answers back unchanged


class RecentItems:
    """The last items of answers, which clients may name by their ids."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._ids: deque[str] = deque()  # the oldest first
        self._n_bytes = 0

    def keep(self, item: Body) -> None:
        """Add an item with a new id; remove the oldest ones above a limit."""
        text = json.dumps(item)
        self._texts[item["id"]] = text
        self._ids.append(item["id"])
        self._n_bytes += len(text)
        while len(self._ids) > MAX_ITEMS or self._n_bytes > MAX_ITEM_BYTES:
            self._n_bytes -= len(self._texts.pop(self._ids.popleft()))

    def resolved(self, item: Any, where: str) -> Any:
        """Return the item that a reference names, or the item itself. Raises `Refusal`."""
        if not isinstance(item, dict):
            return item
        given = {key for key, value in item.items() if value is not None}
        is_id_alone = "id" in given and given.isdisjoint(("type", "role", "content"))
        if text_at(item, "type") != "item_reference" and not is_id_alone:
            return item
        name = text_at(item, "id")
        if name not in self._texts:
            raise Refusal(400, f"{where} refers to '{name}', which this server does not have: send the item itself")
        return json.loads(self._texts[name])


def messages(given: Any, recent: RecentItems) -> list[Body]:
    """Return the messages of a request's `input`. Raises `Refusal`."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Refusal(400, "'input' is neither a text nor a list of items")
    found: list[Body] = []
    for number, each in enumerate(given, start=1):
        _Item(recent.resolved(each, f"input item {number}"), f"input item {number}").add_to(found)
    if not found:
        raise Refusal(400, "'input' is empty: send a text, or at least one item")
    return found


class _Item:
    """An item of a request. where: names it in errors."""

    def __init__(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise Refusal(400, f"{where} is no object")
        self.item, self.where = item, where

    def add_to(self, found: list[Body]) -> None:
        """Add what the item says to the messages. Items of one answer become one message. Raises `Refusal`."""
        kind = "message" if text_at(self.item, "role") == "assistant" else text_at(self.item, "type") or "message"
        add: dict[str, Callable[[list[Body]], None]] = {
            "message": self._add_message,
            "reasoning": self._add_reasoning,
            "function_call": self._add_call,
            "custom_tool_call": self._add_call,
            "function_call_output": self._add_result,
            "custom_tool_call_output": self._add_result,
        }
        if kind not in add:
            remedy = COMPACTION if "compaction" in kind else "leave it out"
            self._refuse(f"has the type '{kind}', which this server does not read: {remedy}")
        add[kind](found)

    def _add_message(self, found: list[Body]) -> None:
        role = text_at(self.item, "role")
        if role not in ("user", "assistant", "system", "developer"):
            self._refuse(f"has the role '{role}', which is not user, assistant, system or developer")
        content = [self._part(part, role) for part in self._parts("content")]
        if role == "assistant" and found and found[-1]["role"] == role:
            found[-1]["content"] += content
        else:
            kept = {key: value for key, value in self.item.items() if key not in ("type", "status")}
            found.append({**kept, "content": content})

    def _add_reasoning(self, found: list[Body]) -> None:
        text = _reasoning(self.item)
        if text:
            answer = _answer(found)
            before = answer.get("reasoning_content")
            answer["reasoning_content"] = f"{before}\n\n{text}" if before else text

    def _add_call(self, found: list[Body]) -> None:
        item, is_custom = self.item, text_at(self.item, "type") == "custom_tool_call"
        arguments = {"input": text_at(item, "input")} if is_custom else item.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(arguments, str):
            self._refuse("has no text 'arguments'")
        function = {"name": name_in(text_at(item, "namespace"), self._text("name")), "arguments": arguments}
        call = {"id": bare_id(self._text("call_id")), "type": "function", "function": function}
        _answer(found).setdefault("tool_calls", []).append(call)

    def _add_result(self, found: list[Body]) -> None:
        parts = self._parts("output")
        content = [_chat_part(part) for part in parts] if isinstance(self.item["output"], list) else parts[0]["text"]
        found.append({"role": "tool", "tool_call_id": bare_id(self._text("call_id")), "content": content})

    def _parts(self, key: str) -> list[Any]:
        """Return the parts under a key; a text is one. Raises `Refusal`."""
        value = self.item.get(key)
        if isinstance(value, str):
            return [{"type": "text", "text": value}]
        if not isinstance(value, list):
            self._refuse(f"has no '{key}' that is a text or a list")
        return list(value)

    def _part(self, part: Any, role: str) -> Body:
        """Return a part of a message. Raises `Refusal`."""
        kind = text_at(part, "type")
        is_image = kind == "input_image" and role != "assistant"
        if kind not in TEXTS and not is_image:
            self._refuse(f"has a part of type '{kind}', which this server does not read")
        found = _chat_part(part)
        if is_image and not part.get("image_url"):
            self._refuse("has a picture without 'image_url'")
        if not is_image and not isinstance(found["text"], str):
            self._refuse("has a part without 'text'")
        return found

    def _text(self, key: str) -> str:
        if not isinstance(self.item.get(key), str):
            self._refuse(f"has no text '{key}'")
        return str(self.item[key])

    def _refuse(self, reason: str) -> NoReturn:
        raise Refusal(400, f"{self.where} {reason}")


def _answer(found: list[Body]) -> Body:
    """Return the last message if it is an answer, or a new one."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": []})
    return found[-1]


def _chat_part(part: Any) -> Any:
    """Return a part in the form of a chat's; one of an unknown type remains."""
    kind = text_at(part, "type")
    if kind in TEXTS:
        return {"type": "text", "text": part.get("refusal" if kind == "refusal" else "text")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def _reasoning(item: Body) -> str:
    """Return the text of a reasoning item: its content or its summary."""
    for key in ("content", "summary"):
        parts = item.get(key)
        text = "\n".join(filter(None, (text_at(part, "text") for part in parts))) if isinstance(parts, list) else ""
        if text:
            return text
    return ""
