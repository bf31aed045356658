"""Parsing of a chat model's reply into reasoning, content and tool calls, as its template formats them.

Qwen3 writes a call as JSON between <tool_call> tags, Qwen3.5 as tags for function and parameters inside them, Llama 3
as JSON alone. Reasoning is between <think> tags; a template may open it at the end of the prompt.

An argument may contain any of these tags. In JSON, a tag inside of a string is text. Between tags, a value ends at the
first line that begins with </parameter> and is followed by another parameter or the end of the call. llama.cpp's parser
(common/parsers/qwen3-coder.cpp) ends it at the first such line: what it reads is read in the same way here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_eagle.drop_in.answers.values import property_of, value_of
from llama_eagle.sessions.chats.calls import finite

REASONING, CONTENT, CALL = "reasoning", "content", "call"
ARGUMENTS, CALLED = "arguments", "called"  # a piece of a call's arguments; the end of a call
THINK, END_THINK = "<think>", "</think>"
TOOL, END_TOOL = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
JSON, XML, BARE = "json", "xml", "bare"  # formats of calls; the first two are between tags
# A string of JSON, which may be unfinished, or the end of a call.
IN_JSON = re.compile(rf'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|{END_TOOL}', re.DOTALL)
FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>\s*")
END_FUNCTION = re.compile(r"</function>\s*")
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>(\n?)")
_AFTER = rf"</parameter>\s*(?=<parameter=[^<>\n]+>|</function>\s*(?:{END_TOOL}|<function=))"
END_VALUE = {"\n": re.compile(r"\n" + _AFTER), "": re.compile(r"\n?" + _AFTER)}  # by the text after the opening tag

Schemas = Mapping[str, Mapping[str, Any]]  # tool that may be called -> schema of its parameters


@dataclass(frozen=True)
class Part:
    """A piece of one kind. For a call: the function's name, and its arguments as JSON in `text`.

    If arguments come in several pieces, only the first has the name.
    """

    kind: str
    text: str
    name: str = ""


@dataclass(frozen=True)
class Dialect:
    """A template's format of reasoning and calls."""

    thinks: bool = False
    calls: str = ""  # JSON, XML or BARE; "": no calls

    @classmethod
    def of(cls, template: str) -> Dialect:
        if TOOL in template:
            calls = XML if "<function=" in template else JSON
        else:
            calls = BARE if "ipython" in template and '"parameters"' in template else ""
        return cls(THINK in template or END_THINK in template, calls)


class RequiredCall:
    """Reader of a reply that a grammar forces to be {"name": ..., "arguments": {...}}. It works like `ReplyReader`."""

    def __init__(self) -> None:
        self._text = ""

    def read(self, text: str) -> list[Part]:
        self._text += text
        return []

    def finish(self) -> list[Part]:
        """Return the call. An incomplete one is content."""
        try:
            call = json.loads(self._text)
        except ValueError:
            return [Part(CONTENT, self._text)]
        return [Part(CALL, json.dumps(call["arguments"], ensure_ascii=False), call["name"])]


class NamedCall:
    """Reader of a reply that a grammar forces to be the arguments of the function `name`.

    It works like `ReplyReader`.
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
        try:
            json.loads(self._text)
        except ValueError:
            return parts
        return [*parts, Part(CALLED, "")]


@dataclass
class ReplyReader:
    """Parser of a reply: call `read` for each piece and `finish` at the end. Text without tags is unchanged."""

    dialect: Dialect
    tools: Schemas = field(default_factory=dict)
    is_reasoning: bool = False  # the prompt ends inside <think>

    def __post_init__(self) -> None:
        self._kind = REASONING if self.is_reasoning else CONTENT
        self._pending = ""  # not returned yet: white space, or a possible beginning of a tag
        self._is_fresh = True  # nothing of this kind has been returned
        self._after_tag = self.is_reasoning

    def read(self, text: str) -> list[Part]:
        self._pending += text
        return list(self._parts())

    def finish(self) -> list[Part]:
        """Return the rest. An unclosed or invalid call is content."""
        rest, self._pending = self._pending, ""
        if self._kind != CALL:
            return [Part(self._kind, rest)] if rest else []
        if self.dialect.calls == BARE:
            return self._call(rest) or [Part(CONTENT, rest)]
        return [Part(CONTENT, TOOL + rest)]

    def _parts(self) -> Iterator[Part]:
        while self._pending:
            text = self._pending.lstrip()
            if self._is_fresh and self._after_tag and self._kind != CALL:
                self._pending = text
            if self._is_fresh and self._may_call(BARE) and text.startswith(("{", "[", PYTHON_TAG)):
                self._kind = CALL
            found = self._next_tag()
            if found is None:
                yield from self._release(self._n_safe())
                return
            at, tag = found
            before, self._pending = self._pending[:at], self._pending[at + len(tag) :]
            yield from self._ended(before, tag)

    def _release(self, n: int) -> Iterator[Part]:
        text, self._pending = self._pending[:n], self._pending[n:]
        if text:
            self._is_fresh = False
            yield Part(self._kind, text)

    def _ended(self, text: str, tag: str) -> Iterator[Part]:
        if self._kind == CALL:
            yield from self._call(text) or [Part(CONTENT, TOOL + text + END_TOOL)]
        elif text.rstrip():
            yield Part(self._kind, text.rstrip())
        self._kind = {THINK: REASONING, TOOL: CALL}.get(tag, CONTENT)
        self._is_fresh = self._after_tag = True

    def _may_call(self, *written: str) -> bool:
        return self._kind == CONTENT and bool(self.tools) and self.dialect.calls in written

    def _tags(self) -> tuple[str, ...]:
        """Return the tags that may come next outside of a call."""
        if self._kind == REASONING:
            return (END_THINK,)
        may_think = self.dialect.thinks and self._is_fresh and not self._after_tag
        first = (THINK,) if may_think and THINK.startswith(self._pending.lstrip()[: len(THINK)]) else ()
        return (*first, TOOL) if self._may_call(JSON, XML) else first

    def _next_tag(self) -> tuple[int, str] | None:
        """Return the place of the next tag, and the tag."""
        text = self._pending
        if self._kind == CALL:
            if self.dialect.calls == BARE or END_TOOL not in text:
                return None
            end = _json_end(text) if self.dialect.calls == JSON else _xml_calls(text)[0]
            return None if end is None else (end, END_TOOL)
        return min(((text.find(tag), tag) for tag in self._tags() if tag in text), default=None)

    def _n_safe(self) -> int:
        """Return the number of leading characters that are no part of a call or tag, nor white space before one."""
        text = self._pending
        if self._kind == CALL or (self._is_fresh and self._may_call(BARE) and PYTHON_TAG.startswith(text.lstrip())):
            return 0
        tags = self._tags()
        for n in range(min(len(text), max(map(len, tags), default=1) - 1), 0, -1):
            if any(tag.startswith(text[-n:]) for tag in tags):
                text = text[:-n]
                break
        return len(text.rstrip()) if tags else len(text)

    def _call(self, body: str) -> list[Part] | None:
        read: Callable[[str], Iterator[Part]] = self._xml_call if self.dialect.calls == XML else _json_calls
        try:
            calls = list(read(body))
            return calls if calls and all(call.name in self.tools for call in calls) else None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def _xml_call(self, body: str) -> Iterator[Part]:
        for name, found in _xml_calls(body + END_TOOL)[1]:
            schema = self.tools.get(name, {})
            arguments = {key: value_of(text, property_of(schema, key), schema) for key, text in found.items()}
            yield Part(CALL, json.dumps(arguments, ensure_ascii=False), name)


def _json_end(text: str) -> int | None:
    """Return the index of the tag that ends a call; None while there is none outside of the strings."""
    return next((found.start() for found in IN_JSON.finditer(text) if found.group() == END_TOOL), None)


def _xml_calls(text: str) -> tuple[int | None, list[tuple[str, dict[str, str]]]]:
    """Return the index of the tag that ends a call, None while there is none, and the functions with their arguments.

    There are none if the text is not a call: it ends at the next tag.
    """
    at, calls = 0, list[tuple[str, dict[str, str]]]()
    while head := FUNCTION.match(text, at):
        found, at = dict[str, str](), head.end()
        calls.append((head[1], found))
        while opened := PARAMETER.match(text, at):
            closed = END_VALUE[opened[2]].search(text, opened.end())
            if closed is None:
                return None, []
            found[opened[1]] = text[opened.end() : closed.start()]
            at = closed.end()
        end = END_FUNCTION.match(text, at)
        if end is None:
            break
        at = end.end()
        if text.startswith(END_TOOL, at):
            return at, calls
    end_of_other = text.find(END_TOOL, at)
    return (None if end_of_other < 0 else end_of_other), []


def _json_calls(body: str) -> Iterator[Part]:
    """Yield {"name": ..., "arguments" or "parameters": {...}}: one or several, in a list or one after the other."""
    decoder, at = json.JSONDecoder(parse_constant=finite, parse_float=finite), 0
    body = body.strip().removeprefix(PYTHON_TAG).strip()
    while at < len(body):
        value, at = decoder.raw_decode(body, at)
        at += len(body[at:]) - len(body[at:].lstrip("; \n\t"))
        for call in value if isinstance(value, list) else [value]:
            arguments = call["arguments"] if "arguments" in call else call["parameters"]
            if isinstance(arguments, str):  # JSON text within JSON
                arguments = json.loads(arguments)
            yield Part(CALL, json.dumps(arguments, ensure_ascii=False), call["name"])
