"""JSON values next to a schema's keys: those of `enum` and `const` that the other keys allow."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable
from typing import Any

from llama_eagle.sessions.schemas.document import Document, Schema

TYPES = frozenset(("null", "boolean", "number", "integer", "string", "array", "object"))
CHECKED = (
    "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
    "maxItems", "required", "pattern", "format",
)  # fmt: skip


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def listed(value: Any) -> list[Any]:
    """Return a list, or a list of the value."""
    return value if isinstance(value, list) else [value]


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def identity(value: Any) -> Hashable:
    """Return what equal JSON values share: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((key, identity(part)) for key, part in value.items())
    if isinstance(value, list):
        return tuple(map(identity, value))
    return (bool, value) if isinstance(value, bool) else value


def are_same(one: Any, other: Any) -> bool:
    return one is other or (one == other and identity(one) == identity(other))


def common_values(values: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """Return the values that are also among the others."""
    known = set(map(identity, others))
    return [value for value in values if identity(value) in known]


def type_of(value: Any) -> str:
    """Return the JSON type of a value, "number" for integers too."""
    for name, kind in (("null", type(None)), ("boolean", bool), ("string", str), ("array", list), ("object", dict)):
        if isinstance(value, kind):
            return name
    return "number"


def choose_values(schema: Schema, document: Document) -> None:
    """Leave the values that the other keys allow, and remove these keys.

    Notes a pattern, which is not checked, and all of them if no value has them.
    """
    if "const" not in schema and "enum" not in schema:
        return
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    kept = [value for value in listed if _fits(value, schema)]
    for key in CHECKED:
        if key in schema and (not kept or key == "pattern"):
            document.note(key)
        schema.pop(key, None)
    if "const" not in schema and kept:
        schema["enum"] = kept


def _fits(value: Any, schema: Schema) -> bool:
    """Return True if a value has a schema's type, bounds, lengths and required keys."""
    if "type" in schema and not _has_type(value, schema):
        return False
    if isinstance(value, dict):
        return all(name in value for name in schema.get("required", ()) if isinstance(name, str))
    if isinstance(value, str):
        return _is_within(len(value), schema.get("minLength"), schema.get("maxLength"))
    if isinstance(value, list):
        return _is_within(len(value), schema.get("minItems"), schema.get("maxItems"))
    if not is_number(value):
        return True
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    is_inside = (not is_number(low) or low < value) and (not is_number(high) or value < high)
    return is_inside and _is_within(value, schema.get("minimum"), schema.get("maximum"))


def _has_type(value: Any, schema: Schema) -> bool:
    kind = type_of(value)
    if value is None and schema.get("nullable") is True:
        return True
    is_whole = is_number(value) and (isinstance(value, int) or value == math.floor(value))
    return any(name == kind or (name == "integer" and is_whole) for name in listed(schema["type"]))


def _is_within(number: float, low: Any, high: Any) -> bool:
    return (not is_number(low) or low <= number) and (not is_number(high) or number <= high)
