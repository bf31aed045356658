"""Tools of OpenAI's Responses API as functions, and their names.

Custom tools are functions with one text. Functions of a namespace have its name before theirs. Tools that OpenAI's
servers run are ignored where agents send them by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llama_eagle import console
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.requests.fields import Body, text_at

HOSTED = ("web_search", "image_generation")  # beginnings of types that Codex sends
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
SEPARATOR = "__"


@dataclass(frozen=True)
class Tool:
    """A tool as the request names it."""

    name: str
    namespace: str = ""
    is_custom: bool = False


def name_in(namespace: str, name: str) -> str:
    """Return the name of a namespace's function as the model knows it."""
    has_end = not namespace or namespace.endswith(SEPARATOR)
    return namespace + ("" if has_end else SEPARATOR) + name


def functions(tools: Any) -> list[Body]:
    """Return a request's tools in the form of a chat's. Raises `Refusal`."""
    return [
        _function(tool, name_in(namespace, text_at(tool, "name")))
        for namespace, tool in _flat(tools)
        if not _is_ignored(tool)
    ]


def named(tools: Any) -> dict[str, Tool]:
    """Return the tools of a request by the names that the model knows."""
    found: dict[str, Tool] = {}
    for namespace, tool in _flat(tools):
        name = text_at(tool, "name")
        found.setdefault(name_in(namespace, name), Tool(name, namespace, text_at(tool, "type") == "custom"))
    return found


def chosen(choice: Any) -> Any:
    """Return a `tool_choice` with the names that the model knows, without ignored tools. Raises `Refusal`."""
    if not isinstance(choice, Mapping):
        return choice
    found = dict(choice)
    if text_at(choice, "namespace"):
        found["name"] = name_in(text_at(choice, "namespace"), text_at(choice, "name"))
    if not isinstance(choice.get("tools"), list):
        return found
    found["tools"] = [chosen(tool) for tool in choice["tools"] if not _is_hosted(tool)]
    if choice["tools"] and not found["tools"] and text_at(choice, "type") == "allowed_tools":
        if text_at(choice, "mode") == "required":
            raise Refusal(
                400, "'tool_choice' requires a tool that this server ignores: leave it out, or send functions"
            )
        return "none"
    return found


def _flat(tools: Any, namespace: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each tool with its namespace. Raises `Refusal`."""
    if not isinstance(tools, list):
        raise Refusal(400, "'tools' is no list")
    for tool in tools:
        if text_at(tool, "type") == "namespace":
            yield from _flat(tool.get("tools") or [], name_in(namespace, text_at(tool, "name")))
        else:
            yield namespace, tool


def _function(tool: Any, name: str) -> Body:
    kind = text_at(tool, "type")
    if kind not in ("function", "custom"):
        reason = f"has the type '{kind}', which this server does not know: leave it out" if kind else "has no 'type'"
        raise Refusal(400, f"a tool {reason}")
    if kind == "custom":
        kept = {key: tool[key] for key in ("description",) if key in tool}
        return {"type": "function", "function": {**kept, "strict": False, "name": name, "parameters": INPUT}}
    kept = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": {"strict": False, **kept, "name": name}}


def _is_hosted(tool: Any) -> bool:
    return text_at(tool, "type").startswith(HOSTED)


def _is_ignored(tool: Any) -> bool:
    if _is_hosted(tool):
        _note_ignored(tool["type"][:40])
    return _is_hosted(tool)


@lru_cache(maxsize=16)  # clients send the same tools with each request
def _note_ignored(kind: str) -> None:
    console.warn(f"a tool of type '{kind}' is ignored: this server runs no tools.")
