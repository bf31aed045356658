"""Parts of `oneOf` that exclude each other, so that a grammar of alternatives enforces it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from llama_eagle.sessions.schemas.document import Document, Fault, Schema
from llama_eagle.sessions.schemas.merge import merged, siblings_of
from llama_eagle.sessions.schemas.values import TYPES, common_values, listed, type_of


def is_one_only(schema: Schema, document: Document) -> bool:
    """Return True if no value that a grammar allows fits two parts of a schema's `oneOf`."""
    siblings = siblings_of(schema, "oneOf")
    try:
        parts = [document.named_by(part) for part in schema["oneOf"]]
        whole = [merged(siblings, part if isinstance(part, dict) else {}, document) for part in parts]
        return all(_exclude(one, other, document) for one, other in combinations(whole, 2))
    except (Fault, RecursionError):
        return False


def _exclude(one: Any, other: Any, document: Document) -> bool:
    """Return True if no value that a grammar allows fits both schemas: by their types, constants or required keys."""
    document.require_time()
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    values, others = _literals(one), _literals(other)
    if values is not None and others is not None:
        return not common_values(values, others)
    kinds, other_kinds = _kinds(one, values), _kinds(other, others)
    if not kinds & other_kinds:
        return True
    return kinds == other_kinds == {"object"} and _exclude_objects(one, other, document)


def _exclude_objects(one: Schema, other: Schema, document: Document) -> bool:
    first, second = (_properties(schema) for schema in (one, other))
    names, other_names = (_required_names(schema) for schema in (one, other))
    if not (_is_open(one) or _is_open(other)) and names - second.keys() and other_names - first.keys():
        return True  # grammars write no other keys
    shared = names & other_names & first.keys() & second.keys()
    return any(
        _exclude(document.named_by(first[name]), document.named_by(second[name]), document) for name in sorted(shared)
    )


def _literals(schema: Schema) -> list[Any] | None:
    """Return the values that a schema lists; None if it lists none."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _kinds(schema: Schema, literals: list[Any] | None) -> set[str]:
    """Return the JSON types that a schema allows; an integer is a number."""
    if literals is not None:
        kinds = set(map(type_of, literals))
    elif "type" not in schema:
        kinds = {"object"} if "properties" in schema or "required" in schema else set(TYPES)
    else:
        kinds = {name for name in listed(schema["type"]) if isinstance(name, str)}
    return {"number" if kind == "integer" else kind for kind in kinds}


def _properties(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required_names(schema: Schema) -> set[str]:
    found = schema.get("required", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Fault("required must be a list of names")
    return set(found)


def _is_open(schema: Schema) -> bool:
    return schema.get("additionalProperties", False) is not False or not _properties(schema)
