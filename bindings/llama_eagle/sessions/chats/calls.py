"""Tool calls of earlier answers, in the form that a chat template supports.

Arguments that a limit has cut are completed: what is open at their end is closed.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_eagle.errors import UsageError

MAX_OPEN = 500  # brackets in cut arguments that are closed
MAX_ESCAPE = 12  # characters of a JSON escape: "\\ud83d\\ude00"
N_OF_ID, OF_IDS = 9, string.digits + string.ascii_uppercase + string.ascii_lowercase
CLOSERS = {"{": "}", "[": "]"}
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*\\?(?P<close>"?)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def read_call(call: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    """Return a copy of a call with its arguments as an object, or as JSON text. Cut arguments are completed.

    Keys without a value are left out. Raises `UsageError` for a call without a function, and for arguments that are
    neither an object nor its beginning.
    """
    call = {"type": "function", **{key: value for key, value in call.items() if value is not None}}
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UsageError("a tool call has no function with a name. Send the calls as the answer contained them.")
    if call["type"] not in ("", "function"):
        raise UsageError(f"a tool call has the type {call['type']!r}, which is not supported. Send calls of functions.")
    if not isinstance(call.get("id") or "", str):
        raise UsageError(f"the call of {function['name']!r} has an id that is no text. Send the call as it was.")
    given = function.get("arguments")
    arguments = read_arguments(given, function["name"])
    if as_text:
        is_whole = isinstance(given, str) and given.strip() not in ("", "null") and is_json(given)
        return {**call, "function": {**function, "arguments": given if is_whole else _written(arguments)}}
    return {**call, "function": {**function, "arguments": arguments}}


def has_calls(message: Mapping[str, Any]) -> bool:
    """Return True for an answer with calls, and for a result."""
    return bool(message.get("tool_calls")) or message["role"] == "tool"


def calls_as_texts(messages: Sequence[Mapping[str, Any]], text_of: Callable[[Any], str]) -> list[dict[str, Any]]:
    """Return messages with calls as texts of the model and results as texts of the user.

    text_of: returns the text of a message's content.
    """
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        text = text_of(message.get("content"))
        if message["role"] == "tool":
            name = names.get(message.get("tool_call_id") or "", "")
            found.append({"role": "user", "content": f"Result of the tool{name and ' '}{name}:\n{text}"})
            continue
        changed = dict(message)
        calls = [read_call(call, as_text=True) for call in changed.pop("tool_calls", None) or ()]
        names |= {call.get("id") or "": call["function"]["name"] for call in calls}
        texts = [f"Call of the tool {each['function']['name']}:\n{each['function']['arguments']}" for each in calls]
        found.append(changed | {"content": "\n\n".join(filter(None, [text, *texts]))} if calls else changed)
    return found


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of messages whose calls and results have ids of nine letters and digits.

    A result without an id belongs to the next of the last calls.
    """
    found, ids, n_results = [], [], 0
    for i, message in enumerate(messages):
        changed = dict(message)
        if message.get("tool_calls"):
            ids = [_nine_characters(call.get("id") or f"{i} {n}") for n, call in enumerate(message["tool_calls"])]
            n_results = 0
            changed["tool_calls"] = [
                {**call, "id": short} for call, short in zip(message["tool_calls"], ids, strict=True)
            ]
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            changed["tool_call_id"] = (
                ids[n_results] if not given and n_results < len(ids) else _nine_characters(given or "")
            )
            n_results += 1
        found.append(changed)
    return found


def _nine_characters(given: str) -> str:
    """Return an id of nine letters and digits: the given one if it has this form, else one that follows from it."""
    if len(given) == N_OF_ID and set(given) <= set(OF_IDS):
        return given
    number = 0xCBF29CE484222325  # FNV-1a
    for byte in given.encode():
        number = (number ^ byte) * 0x100000001B3 % 2**64
    found = ""
    for _ in range(N_OF_ID):
        number, place = divmod(number, len(OF_IDS))
        found += OF_IDS[place]
    return found


def read_arguments(given: Any, name: str) -> Mapping[str, Any]:
    """Return the arguments of a call of the function `name`. Raises `UsageError` as `read_call` does."""
    found = given
    if given in (None, "", "null"):
        found = {}
    elif isinstance(given, str):
        try:
            found = read_json(given)
        except ValueError:
            found = completed(given) if given.lstrip().startswith("{") else None
    if not isinstance(found, Mapping):
        raise UsageError(
            f"the arguments of a call of {name!r} are not a JSON object: {given!s:.80}. Send them as they were."
        )
    return found


def completed(text: str) -> dict[str, Any]:
    """Return the arguments of a call whose text was cut; {} if nothing of them is valid.

    What is open at the end is closed: of the whole text, without an escape or a number that is cut, or behind the last
    complete value.
    """
    opened, begin, value_end, closers = _scanned(text)
    if len(opened) > MAX_OPEN:
        return {}
    ends = [(len(text) - n, closers) for n in range(min(MAX_ESCAPE, len(text) - begin - 1) + 1)]
    for end, closed in (*ends, (value_end, None)):
        kept = text[:end]
        try:
            found = read_json(kept + (_scanned(kept)[3] if closed is None else closed))
            json.dumps(found, ensure_ascii=False).encode()  # half a character is no value
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


def _scanned(text: str) -> tuple[list[str], int, int, str]:
    """Return what closes the brackets that are open at the end of a JSON text, innermost last, and three more values.

    They are the beginning of the last token, the end of the last value or opening bracket, and all closing characters.
    """
    opened: list[str] = []
    begin, value_end, is_key, is_quoted = 0, 0, False, False
    for found in _TOKEN.finditer(text):
        token, begin, end = found[0], *found.span()
        is_quoted = token[0] == '"' and (end == begin + 1 or not found["close"])
        if token[0] == '"':
            is_value = not is_key and not is_quoted
        else:
            is_surplus = token in "]}" and not opened
            is_value = not is_surplus and (token in "{}[]" or (token not in ",:" and end < len(text)))
        value_end = end if is_value else value_end
        if token in CLOSERS:
            opened.append(CLOSERS[token])
        elif token in "]}" and opened:
            opened.pop()
        if len(opened) > MAX_OPEN:
            break
        is_key = token == "{" or (token == "," and opened[-1:] == ["}"])
    return opened, begin, value_end, '"' * is_quoted + "".join(reversed(opened))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a JSON number")
    return value


def _written(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
