"""JSON bodies of requests: one reader with one set of limits for every API."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from llama_eagle.serving.api_errors import Refusal

MAX_DEPTH = 500  # levels: Python's own limit is near 1,000 calls, and the server needs some of them
MAX_VALUES = 1_000_000  # reading more would stop all other answers for longer than half a second
MAX_KEYS = 20_000  # of one object: the child compares each with those before it
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json_body(data: bytes) -> dict[str, Any]:
    """Return the object in the body of a request, whatever its content type. Raises `Refusal`.

    JSON has no NaN and no infinity. The last one of equal keys counts. A byte order mark is skipped.
    """
    body = read_json(data)
    if not isinstance(body, dict):
        raise Refusal(400, "the body is no JSON object")
    return body


def read_json(data: bytes) -> Any:
    """Return the value of a JSON text of a client. Raises `Refusal`."""
    try:
        if _n_values(data) > MAX_VALUES and _n_values(_TEXT.sub(b"", data)) > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values")
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_finite, parse_float=_finite)
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH or data.count(b":") > MAX_KEYS:
            _require_limits(value)
        if b"\\u" in data and _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Refusal(400, _too_deep()) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Refusal(400, f"the body is no valid JSON: {error.msg} at {where}") from None
    except UnicodeDecodeError as error:
        raise Refusal(400, f"the body is no valid JSON: byte {error.start + 1} is not UTF-8") from None
    except UnicodeEncodeError as error:
        found = repr(error.object[error.start])
        raise Refusal(400, f"the body is no valid JSON: the surrogate {found} is half a character") from None
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    return value


def _n_values(data: bytes) -> int:
    """Return at least the number of values of a JSON text; more if its texts have commas and brackets."""
    return sum(map(data.count, (b",", b"[", b"{")))


def without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value: clients send null for what they leave out."""
    return {key: value for key, value in body.items() if value is not None}


def _finite(text: str) -> float:
    """Return the number of a text. Raises `ValueError` for NaN and for those that are too large."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the body is no valid JSON: {text[:40]} is no number of 64 bits")
    return number


def _require_limits(value: Any) -> None:
    """Raise `ValueError` for a value that is nested too deeply or has too many keys."""
    level, depth, pairs = [value], 0, 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(_too_deep())
        pairs += sum(len(each) ** 2 for each in level if isinstance(each, dict))
        if pairs > MAX_KEYS**2:
            raise ValueError("its objects have too many keys")
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]


def _too_deep() -> str:
    return f"it is nested deeper than {MAX_DEPTH} levels"
