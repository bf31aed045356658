"""Values of tool arguments that a model writes as text between tags. The parameter's schema determines their type.

The rules are those of llama.cpp's server (common/parsers/qwen3-coder.cpp). If the schema allows no string, the text is
JSON. If it allows only strings, the text is unchanged. If it allows both, the text is JSON of an allowed type, or else
a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llama_eagle.sessions.chats.calls import read_json
from llama_eagle.sessions.schemas.document import Document, Fault
from llama_eagle.sessions.schemas.follow import TYPE_NAMES
from llama_eagle.sessions.schemas.values import TYPES as JSON_TYPES

JsonTypes = frozenset[str]
PYTHON = {"True": "true", "False": "false", "None": "null"}
# Strings in either kind of quotes, and Python's constants outside of them.
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'|\b(?:True|False|None)\b", re.DOTALL)
ESCAPES = {"\\'": "'", '"': '\\"'}  # from Python's single quotes to JSON's double quotes
KEYWORDS_OF = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def value_of(text: str, schema: Any, root: Any = None) -> Any:
    """Return the value of `text` by `schema`, whose references point into `root`. Text that fits no type stays text."""
    types = types_of(schema, schema if root is None else root)
    if types == {"string"}:
        return text
    may_be_text = "string" in types
    try:
        value = read_json(text if may_be_text else _as_json(text))
    except ValueError:
        return text
    is_read = _type_of(value) & types and not (may_be_text and isinstance(value, str))
    return value if is_read else text


def property_of(schema: Any, name: str) -> Any:
    """Return the schema of the property `name` of an object's schema; {} if there is none."""
    for each in _alternatives(schema, schema, set()):
        properties = each.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
    others = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
    return others if isinstance(others, Mapping) else {}


def with_properties(schema: Any) -> Any:
    """Return an object's schema with the properties that it combines or refers to as its own."""
    if not isinstance(schema, Mapping) or "properties" in schema:
        return schema
    found: dict[str, Any] = {}
    for each in _alternatives(schema, schema, set()):
        found |= each.get("properties") or {}
    own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
    return {**own, "type": "object", "properties": found} if found else schema


def types_of(schema: Any, root: Any, known: dict[str, JsonTypes] | None = None) -> JsonTypes:
    """Return the JSON types that a schema allows. An invalid or circular reference allows all.

    known: types of references that were followed before.
    """
    known = {} if known is None else known
    if not isinstance(schema, Mapping):
        return JSON_TYPES
    reference = schema.get("$ref")
    types = _own_types(schema) if reference is None else _types_of_reference(str(reference), root, known)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            types &= frozenset().union(*(types_of(each, root, known) for each in schema[key]))
    for each in _list(schema, "allOf"):
        types &= types_of(each, root, known)
    return types | {"null"} if schema.get("nullable") is True else types


def _types_of_reference(reference: str, root: Any, known: dict[str, JsonTypes]) -> JsonTypes:
    if reference not in known:
        known[reference] = JSON_TYPES
        known[reference] = types_of(_resolved(reference, root), root, known)
    return known[reference]


def _own_types(schema: Mapping[str, Any]) -> JsonTypes:
    """Return the types by `const`, `enum` and `type`; without those, by keywords that only one type has."""
    if "const" in schema:
        return _type_of(schema["const"])
    if isinstance(schema.get("enum"), list):
        return frozenset().union(*map(_type_of, schema["enum"]))
    given = schema.get("type")
    if given is not None:
        kinds = [given, *_list(schema, "type")]
        named = frozenset(TYPE_NAMES.get(kind, kind) for kind in kinds if isinstance(kind, str))
        return named | {"integer"} if "number" in named else named
    implied = [kind for kind, keys in KEYWORDS_OF.items() if any(key in schema for key in keys)]
    if not implied:
        return JSON_TYPES
    return frozenset(implied) | ({"integer"} if "number" in implied else frozenset())


def _alternatives(schema: Any, root: Any, followed: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those that it combines or refers to. followed: references, each visited once."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    reference = str(schema.get("$ref", ""))
    if reference and reference not in followed:
        followed.add(reference)
        yield from _alternatives(_resolved(reference, root), root, followed)
    for key in ("allOf", "anyOf", "oneOf"):
        for each in _list(schema, key):
            yield from _alternatives(each, root, followed)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _resolved(reference: str, root: Any) -> Any:
    """Return the target of a reference such as "#/$defs/Color"; None if there is none."""
    try:
        return Document(root).resolve(reference)
    except Fault:
        return None


def _type_of(value: Any) -> JsonTypes:
    if value is None:
        return frozenset(["null"])
    if isinstance(value, bool):
        return frozenset(["boolean"])
    if isinstance(value, (int, float)):
        return frozenset(["number"] if isinstance(value, float) and not value.is_integer() else ["number", "integer"])
    if isinstance(value, str):
        return frozenset(["string"])
    return frozenset(["object" if isinstance(value, Mapping) else "array"])


def _as_json(text: str) -> str:
    """Replace Python's constants and strings, which models also write, by JSON's."""
    return TOKENS.sub(lambda found: _token_as_json(found.group()), text.strip())


def _token_as_json(token: str) -> str:
    if not token.startswith("'"):
        return PYTHON.get(token, token)
    inside = re.sub(r"\\.|\"", lambda found: ESCAPES.get(found[0], found[0]), token[1:-1], flags=re.DOTALL)
    return f'"{inside}"'
