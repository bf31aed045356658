"""Tools of a request and the choice among them, in OpenAI's forms and those of APIs that follow it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.sessions.schemas.grammars import require_strict

Tool = dict[str, Any]
OF_ONE = ("function", "tool", "custom")  # types of a choice that names one tool


def read_tools(tools: Any) -> list[Tool]:
    """Return tools as llama.cpp shows them to templates: functions with a name, a description and parameters.

    Raises `UsageError` for other tools, and for a strict one whose schema has no grammar.
    """
    if tools is None:
        return []
    if not isinstance(tools, list | tuple):
        raise UsageError("'tools' is no list. Send a list of functions.")
    return [_read_tool(tool) for tool in tools]


def _read_tool(tool: Any) -> Tool:
    kind = tool.get("type") if isinstance(tool, Mapping) else type(tool).__name__
    if kind not in (None, "", "function"):
        raise UsageError(f"a tool has the type {kind!r}, which is not supported. Send functions.")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise UsageError("a tool has no function. Send its name, description and parameters as 'function'.")
    function = {key: value for key, value in function.items() if value is not None}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise UsageError("a tool's function has no name. Send one.")
    if not isinstance(function.get("description", ""), str):
        raise UsageError(f"the tool {name!r} has a 'description' that is no text. Send a text, or leave it out.")
    require_strict(function)
    parameters = function.get("parameters", {})
    if not isinstance(parameters, Mapping):
        warnings.warn(f"the parameters of the tool {name!r} are no schema: its arguments are free.", stacklevel=2)
        parameters = {}
    shown = {"name": name, "description": function.get("description", ""), "parameters": parameters}
    return {"type": "function", "function": shown}


def read_choice(choice: Any, tools: Sequence[Tool]) -> tuple[str, list[Tool]]:
    """Return "auto", "none" or "required", and the tools that may be called.

    choice: `tool_choice` in OpenAI's form, with allowed tools too, or in Anthropic's. Raises `UsageError`.
    """
    kept = list(tools)
    if choice is None:
        return "auto", kept
    if not isinstance(choice, str | Mapping):
        raise UsageError("tool_choice is neither a text nor an object. Send auto, none, required or a tool.")
    mode = choice if isinstance(choice, str) else choice.get("type")
    if isinstance(choice, Mapping) and mode in OF_ONE:
        mode, kept = "required", _named(tools, [choice])
    elif isinstance(choice, Mapping) and mode == "allowed_tools":
        mode, kept = _allowed(choice, tools)
    mode = "required" if mode == "any" else mode
    if mode not in ("auto", "none", "required"):
        raise UsageError(f"tool_choice {mode!r} is not auto, none, required, any, allowed_tools or a tool's name.")
    if mode == "required" and not kept:
        raise UsageError("tool_choice requires a call, but there are no tools. Send tools, or leave it out.")
    return str(mode), kept


def _allowed(choice: Mapping[str, Any], tools: Sequence[Tool]) -> tuple[str, list[Tool]]:
    """Return the mode and the tools of a choice of type allowed_tools. Responses has both one level higher."""
    given = choice.get("allowed_tools") or choice
    mode = (given.get("mode") or "auto") if isinstance(given, Mapping) else None
    if mode not in ("auto", "required"):
        raise UsageError("tool_choice.mode is neither auto nor required. Send one of them.")
    listed = given.get("tools")
    if not isinstance(listed, list | tuple) or not listed:
        raise UsageError("tool_choice of type allowed_tools has no list 'tools'. Send at least one.")
    return mode, _named(tools, listed)


def _named(tools: Sequence[Tool], choices: Iterable[Any]) -> list[Tool]:
    """Return the tools that choices name: functions, or objects with a name."""
    names = [_name_of(choice) for choice in choices]
    for name in names:
        if all(tool["function"]["name"] != name for tool in tools):
            raise UsageError(f"tool_choice names {name!r}, which is not in 'tools'. Add the tool, or name another.")
    return [tool for tool in tools if tool["function"]["name"] in names]


def _name_of(choice: Any) -> str:
    given = choice.get("function") or choice if isinstance(choice, Mapping) else None
    name = given.get("name") if isinstance(given, Mapping) else None
    return name if isinstance(name, str) else ""


def with_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with tools in place of functions, which preceded them in OpenAI's API. Raises `UsageError`."""
    found = {key: value for key, value in body.items() if key not in ("functions", "function_call")}
    functions, call = body.get("functions") or [], body.get("function_call")
    if not isinstance(functions, list | tuple):
        raise UsageError("'functions' is no list. Send a list, or 'tools'.")
    if not functions:
        if call not in (None, "none"):
            raise UsageError("'function_call' has no 'functions'. Send them, or leave it out.")
        return found
    if found.get("tools"):
        raise UsageError("'functions' and 'tools' exclude each other. Leave one out.")
    found["tools"] = [{"type": "function", "function": function} for function in functions]
    found["parallel_tool_calls"] = False
    if call is not None:
        found["tool_choice"] = {"type": "function", "function": call} if isinstance(call, Mapping) else call
    return found


def with_calls(messages: Sequence[Any]) -> list[Any]:
    """Return messages with calls and results of tools in place of those of functions. A result follows its call."""
    found, last = [], ""
    for i, message in enumerate(messages):
        if isinstance(message, Mapping):
            call = message.get("function_call")
            message = {key: value for key, value in message.items() if key != "function_call"}
            if call is not None and not message.get("tool_calls"):
                last = f"call{i % 100_000:05}"  # nine characters, which all templates accept
                message["tool_calls"] = [{"id": last, "type": "function", "function": call}]
            if message.get("role") == "function":
                message |= {"role": "tool", "tool_call_id": last}
        found.append(message)
    return found
