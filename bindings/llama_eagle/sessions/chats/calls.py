"""Tool calls of earlier answers, in the form that a chat template supports.

Arguments that a limit has cut are completed as llama.cpp's server does here (native/src/llama-common/chat/
eagle_answers.h): characters are removed from the end until closing brackets make the text valid JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from llama_eagle.errors import UsageError

MAX_CUT = 2000  # maximum number of characters that are removed from cut arguments, as in eagle_answers.h
CLOSERS = {"{": "}", "[": "]"}


def read_call(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    """Return a copy of a call with its arguments as an object, or as JSON text. Cut arguments are completed.

    Raises `UsageError` for a call without a function, and for arguments that are neither an object nor its beginning.
    """
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError("a tool call has no function with a name. Send the calls as the answer contained them.")
    given = function.get("arguments")
    arguments = read_arguments(given, function["name"])
    if as_text:
        is_whole = isinstance(given, str) and given.strip() and is_json(given)
        return {**call, "function": {**function, "arguments": given if is_whole else _written(arguments)}}
    return {**call, "function": {**function, "arguments": arguments}}


def read_arguments(given: Any, name: str) -> Mapping[str, Any]:
    """Return the arguments of a call of the function `name`. Raises `UsageError` as `read_call` does."""
    found = given
    if given is None or given == "":
        found = {}
    elif isinstance(given, str):
        try:
            found = read_json(given)
        except ValueError:
            found = completed(given) if given.lstrip().startswith("{") else None
    if not isinstance(found, Mapping):
        raise UsageError(f"the arguments of a call of {name!r} are not a JSON object: {given!s:.80}. Correct them.")
    return found


def completed(text: str) -> dict[str, Any]:
    """Return the arguments of a call whose text was cut; {} if nothing of them is valid."""
    for n, closers in reversed(_ends(text)):
        try:
            found = read_json(text[:n] + closers)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def is_json(text: str) -> bool:
    """Return True for a complete JSON text. JSON has no NaN and no Infinity."""
    try:
        json.loads(text, parse_constant=_finite)
    except (ValueError, RecursionError):
        return False
    return True


def read_json(text: str) -> Any:
    """Return the value of a JSON text, with finite numbers only. Raises `ValueError`."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _ends(text: str) -> list[tuple[int, str]]:
    """Return the last lengths at which a text may be cut, each with the characters that close what is open there."""
    return [end for end in _states(text) if end[0] > len(text) - MAX_CUT]


def _states(text: str) -> Iterator[tuple[int, str]]:
    closers, is_quoted, is_escaped = "", False, False
    for n, character in enumerate(text, start=1):
        if is_escaped:
            is_escaped = False
        elif is_quoted:
            is_escaped, is_quoted = character == "\\", character != '"'
        elif character == '"':
            is_quoted = True
        elif character in CLOSERS:
            closers = CLOSERS[character] + closers
        elif character in "]}":
            closers = closers[1:]
        yield n, '"' * is_quoted + closers


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a JSON number")
    return value


def _written(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
