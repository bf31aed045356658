"""Constraints of several schemas for one value: those next to $ref, oneOf or anyOf, and the parts of allOf."""

from __future__ import annotations

from typing import Any

from llama_eagle.sessions.schemas.document import MAX_REFERENCES, Document, Fault, Schema
from llama_eagle.sessions.schemas.values import are_same, common_values, is_number, listed, text_of

CONSTRAINTS = frozenset((
    "$ref", "oneOf", "anyOf", "allOf", "const", "enum", "type", "format", "pattern", "items", "minItems", "maxItems",
    "minimum", "maximum", "required", "minLength", "maxLength", "prefixItems", "properties", "multipleOf",
    "additionalProperties", "exclusiveMinimum", "exclusiveMaximum",
))  # fmt: skip


def siblings_of(schema: Schema, key: str) -> Schema:
    """Return the constraints next to a key."""
    return {name: value for name, value in schema.items() if name != key and name in CONSTRAINTS}


def list_at(schema: Schema, key: str, what: str = "list of schemas") -> list[Any]:
    if not isinstance(schema[key], list):
        raise Fault(f"{key} must be a {what}, not {text_of(schema[key]):.50}")
    found: list[Any] = schema[key]
    return found


def merged(one: Schema, other: Schema, document: Document) -> Schema:
    """Return a schema with the constraints of both. Raises `Fault` for constraints that cannot be combined."""
    document.require_time()
    found = dict(one)
    for key, value in other.items():
        if key not in found or are_same(found[key], value):
            found[key] = value
        else:
            found[key] = _combined(key, found[key], value, document)
    for schema, more in ((one, other), (other, one)):
        _limit_others(schema, more, found, document)
    return found


def _combined(key: str, own: Any, value: Any, document: Document) -> Any:
    """Return what both values of a key allow, or the own one if that is unknown."""
    kinds = {type(own), type(value)}
    if key == "properties" and kinds == {dict}:
        return own | {name: _property(own.get(name), part, document) for name, part in value.items()}
    if key == "required" and kinds == {list}:
        return own + value
    if key == "enum" and kinds == {list}:
        return common_values(value, own)
    if key == "type":
        return _common_type(own, value, document)
    if is_number(own) and is_number(value) and key.startswith(("min", "exclusiveMin")):
        return max(own, value)
    if is_number(own) and is_number(value) and key.startswith(("max", "exclusiveMax")):
        return min(own, value)
    if key == "additionalProperties" and bool in kinds:
        return value if value is False or own is True else own
    if key in CONSTRAINTS:
        document.refuse(key, f"two values of {key} in parts of one schema are not supported: merge them")
    return own


def _property(own: Any, other: Any, document: Document) -> Any:
    if isinstance(own, dict) and isinstance(other, dict):
        return merged(own, other, document)
    return own if own is False or (other is True and own is not None) else other


def _common_type(one: Any, other: Any, document: Document) -> Any:
    """Return the types that both allow, a name or a list of them. An integer is a number, too."""
    ours, others = (_type_names(given) for given in (one, other))
    common = [name for name in ours if name in others]
    if not common:
        document.refuse("type", f"the types {text_of(one)} and {text_of(other)} exclude each other")
        return one
    return common if len(common) > 1 else common[0]


def _type_names(given: Any) -> list[str]:
    names = [name if isinstance(name, str) else text_of(name) for name in listed(given)]
    return [*names, "integer"] if "number" in names else names


def _limit_others(schema: Schema, other: Schema, found: Schema, document: Document) -> None:
    """Apply the additionalProperties of a schema to the properties that the other one adds.

    A required one remains, since otherwise there would be no answer.
    """
    more = other.get("properties")
    is_limited = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not is_limited or not isinstance(more, dict) or not isinstance(found["properties"], dict):
        return
    own, required = schema.get("properties"), found.get("required")
    for name in (name for name in more if not isinstance(own, dict) or name not in own):
        if isinstance(required, list) and name in required:
            document.note("additionalProperties for keys that another part of the schema requires")
        else:
            found["properties"] = found["properties"] | {name: False}


def without_siblings(schema: Any, document: Document) -> Any:
    """Return a schema without constraints next to a reference or alternatives. Raises `Fault`."""
    for _ in range(MAX_REFERENCES):
        key = next((key for key in ("$ref", "oneOf", "anyOf") if isinstance(schema, dict) and key in schema), "")
        siblings = siblings_of(schema, key) if key else {}
        if not siblings:
            return schema
        if key != "$ref":
            parts = list_at(schema, key)
            return {key: [merged(siblings, part, document) if isinstance(part, dict) else siblings for part in parts]}
        definition = document.resolve(schema["$ref"])
        if not isinstance(definition, dict):
            schema = siblings
            continue
        more = {name: value for name, value in siblings.items()
                if name not in definition or not are_same(definition[name], value)}  # fmt: skip
        if not more:
            return {"$ref": schema["$ref"]}
        schema = merged(definition, more, document)
    raise Fault("a $ref with other keys refers to itself: write the keys into the definition")


def without_all_of(schema: Any, document: Document) -> Any:
    """Return a schema with the parts of allOf merged, or as it is if several of them have alternatives.

    The converter then merges their properties. Raises `Fault`.
    """
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict) or "allOf" not in schema:
            return schema
        found = {key: value for key, value in schema.items() if key != "allOf"}
        n_alternatives = ("anyOf" in found) + ("oneOf" in found)
        for given in list_at(schema, "allOf"):
            part = document.named_by(without_siblings(given, document))
            if isinstance(part, dict):
                n_alternatives += ("anyOf" in part) + ("oneOf" in part)
                if n_alternatives > 1:
                    return schema
                found = merged(found, part, document)
        schema = found
    raise Fault("a part of allOf refers to itself: write its keys into the definition")
