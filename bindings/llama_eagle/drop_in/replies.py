"""Replies of chat models as reasoning, content and tool calls, whole or piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_eagle.drop_in.answers.values import property_of, value_of
from llama_eagle.sessions.chat import Reply
from llama_eagle.sessions.chats.calls import is_json, read_json

REASONING, CONTENT, CALL = "reasoning", "content", "call"
KEYS = {REASONING: "reasoning_content", CONTENT: "content"}
REQUIRED = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(.*?)\s*\}\s*', re.DOTALL)
ARGUMENTS, CALLED = "arguments", "called"  # a piece of a call's arguments; the end of a call


@dataclass(frozen=True)
class Part:
    """A piece of one kind. For a call: the function's name, and its arguments as JSON in `text`.

    If arguments come in several pieces, only the first has the name. is_whole: a call has not been cut.
    """

    kind: str
    text: str
    name: str = ""
    is_whole: bool = True


class FormattedReply:
    """Reader of a reply in the format of the model's template: call `read` for each piece and `finish` at the end.

    tools: schemas of the parameters, by name.
    """

    def __init__(self, reply: Reply, tools: Mapping[str, Any], prompt_end: str) -> None:
        self._reply = reply
        self._tools = tools
        reply.follow(prompt_end)

    def read(self, text: str) -> list[Part]:
        return self._parts(self._reply.add(text))

    def finish(self) -> list[Part]:
        """Return the rest."""
        return self._parts(self._reply.add("", is_last=True))

    def _parts(self, delta: dict[str, Any]) -> list[Part]:
        texts = [Part(kind, delta[key]) for kind, key in KEYS.items() if key in delta]
        return [*texts, *(self._call(**call, is_loose=delta["is_loose"]) for call in delta["tool_calls"])]

    def _call(self, name: str, arguments: str, *, is_loose: bool) -> Part:
        if is_loose:
            arguments = self._typed(arguments, self._tools.get(name) or {})
        return Part(CALL, arguments, name, is_json(arguments))

    @staticmethod
    def _typed(arguments: str, schema: Any) -> str:
        """Return arguments with the types of their schemas; unchanged if they are cut or have infinite numbers."""
        try:
            given = read_json(arguments).items()
        except ValueError:
            return arguments
        values = {
            key: value_of(value, property_of(schema, key), schema) if isinstance(value, str) else value
            for key, value in given
        }
        return json.dumps(values, ensure_ascii=False)


class RequiredCall:
    """Reader of a reply that a grammar forces to be {"name": ..., "arguments": {...}}.

    It works like `FormattedReply`.
    """

    def __init__(self) -> None:
        self._text = ""

    def read(self, text: str) -> list[Part]:
        self._text += text
        return []

    def finish(self) -> list[Part]:
        """Return the call. An incomplete one is content."""
        found = REQUIRED.fullmatch(self._text)
        if found is None or not is_json(found[2]):
            return [Part(CONTENT, self._text)]
        return [Part(CALL, found[2], json.loads(found[1]))]


class NamedCall:
    """Reader of a reply that a grammar forces to be the arguments of the function `name`.

    It works like `FormattedReply`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._text = ""
        self._is_begun = False

    def read(self, text: str) -> list[Part]:
        self._text += text
        name, self._is_begun = "" if self._is_begun else self._name, True
        return [Part(ARGUMENTS, text, name)]

    def finish(self) -> list[Part]:
        """Return the end of the call; nothing if its arguments are incomplete."""
        parts = [] if self._is_begun else self.read("")
        return [*parts, Part(CALLED, "")] if is_json(self._text) else parts
