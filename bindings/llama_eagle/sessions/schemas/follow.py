"""The keys of one schema: read, combined and completed, so that the converter follows them all. All raise `Fault`.

What a grammar cannot enforce is noted.
"""

from __future__ import annotations

from typing import Any

from llama_eagle.sessions.schemas.document import Document, Fault, Schema
from llama_eagle.sessions.schemas.merge import list_at, without_all_of, without_siblings
from llama_eagle.sessions.schemas.one_of import is_one_only
from llama_eagle.sessions.schemas.values import TYPES, choose_values, is_number, listed, text_of

MAX_COUNT = 2000  # of items or characters: the most repetitions of a grammar
# Names of Python types that clients use for JSON types.
TYPE_NAMES = {
    "float": "number", "double": "number", "int": "integer", "bool": "boolean", "str": "string", "dict": "object",
    "list": "array", "tuple": "array", "None": "null", "NoneType": "null",
}  # fmt: skip
LISTS = {"required": "list of names", "enum": "list", **dict.fromkeys(("allOf", "anyOf", "oneOf"), "list of schemas")}
UNKNOWN = (  # to grammars
    "not", "patternProperties", "propertyNames", "minProperties", "maxProperties", "uniqueItems", "contains",
    "minContains", "maxContains", "dependencies", "dependentRequired", "dependentSchemas", "if", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip
TYPED = frozenset((  # keys that determine a type
    "$ref", "oneOf", "anyOf", "const", "enum", "pattern", "type", "allOf", "properties", "additionalProperties",
    "items", "prefixItems", "format",
))  # fmt: skip
IMPLIED = {  # types of keys, the first one first
    "minItems": "array", "maxItems": "array", "minLength": "string", "maxLength": "string", "minimum": "number",
    "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number", "multipleOf": "number",
    "required": "object",
}  # fmt: skip
LENGTHS = {"date": (10, 10), "time": (9, 18), "date-time": (20, 29), "uuid": (36, 36)}  # least and most of formats


def followed(given: Any, document: Document) -> Any:
    """Return a schema that the converter follows completely, apart from the keys that are noted."""
    document.require_time()
    if not isinstance(given, dict):
        return {} if given is True else given
    schema = dict(given)
    _read_types(schema)
    _require_lists(schema)
    if "oneOf" in schema and not is_one_only(schema, document):
        document.note("oneOf")
    schema = without_siblings(without_all_of(without_siblings(schema, document), document), document)
    schema = dict(schema)
    for key in ("allOf", *UNKNOWN):
        if key in schema and (key == "allOf" or schema[key] != 0):
            document.note(key)
    _read_types(schema)
    choose_values(schema, document)
    for kind in ("Items", "Length"):
        _read_counts(schema, f"min{kind}", f"max{kind}")
    if not TYPED & schema.keys():
        schema |= next(({"type": kind} for key, kind in IMPLIED.items() if key in schema), {})
    _require_lengths(schema, document)
    _complete_properties(schema)
    _read_items(schema)
    return schema


def _read_types(schema: Schema) -> None:
    if "type" not in schema:
        return
    given = schema["type"]
    names = [TYPE_NAMES.get(name, name) for name in listed(given) if isinstance(name, str)]
    if not names or len(names) < len(listed(given)) or not TYPES.issuperset(names):
        kinds = "null, boolean, number, integer, string, array, object"
        raise Fault(f"type {text_of(given):.50} is not one of {kinds}")
    schema["type"] = names if isinstance(given, list) else names[0]


def _require_lists(schema: Schema) -> None:
    for key, what in LISTS.items():
        if key in schema:
            list_at(schema, key, what)
    if not isinstance(schema.get("properties", {}), dict):
        raise Fault(f"properties must be an object, not {text_of(schema['properties']):.50}")
    if "prefixItems" in schema and schema.get("items", False) is not False:
        raise Fault("prefixItems with items is not supported: leave one out")


def _read_counts(schema: Schema, low: str, high: str) -> None:
    """Read counts, which may be floats such as 2.0, and refuse those that no grammar counts.

    A maximum that answers do not reach is left out.
    """
    for key in (low, high):
        if is_number(schema.get(key)):
            if schema[key] < 0 or schema[key] % 1:
                raise Fault(f"{key} must be a non-negative integer")
            schema[key] = int(schema[key])
    least, most = (schema[key] if is_number(schema.get(key)) else None for key in (low, high))
    if least is not None and most is not None and least > most:
        raise Fault(f"{low} {least} is above {high} {most}")
    if least is not None and least > MAX_COUNT:
        raise Fault(f"{low} {least} is above {MAX_COUNT}, the most that a grammar counts")
    if most is not None and most > MAX_COUNT:
        del schema[high]


def _require_lengths(schema: Schema, document: Document) -> None:
    """Refuse a length that the converter ignores because of a pattern or a format, or leave it open."""
    low, high = (require_count(schema, key) for key in ("minLength", "maxLength"))
    key = "minLength" if low else "maxLength"
    if "pattern" in schema and (low or high):
        document.refuse(key, f"pattern with {key} is not supported: write the length into the pattern")
    given = schema.get("format")
    if not isinstance(given, str) or not given:
        return
    lengths = LENGTHS.get("uuid" if given.startswith("uuid") else given)
    if lengths and ((low or 0) > lengths[0] or (high is not None and high < lengths[1])):
        document.refuse(key, f"format {given} with {key} is not supported: leave one out")
    if not lengths and schema.get("type") == "string":
        document.note(f"format {given}")


def require_count(schema: Schema, key: str) -> int | None:
    """Return a count; None if there is none."""
    if key in schema and not is_number(schema[key]):
        raise Fault(f"{key} must be a non-negative integer")
    return schema.get(key)


def _complete_properties(schema: Schema) -> None:
    """Add required names without a property, and remove properties that are not allowed."""
    has_keys = "properties" in schema or "additionalProperties" in schema
    is_object = schema["type"] == "object" if "type" in schema else has_keys
    given = schema.get("properties", {})
    if not is_object or "$ref" in schema or "allOf" in schema or not isinstance(given, dict):
        return
    others = schema.get("additionalProperties", True)
    properties = {name: part for name, part in given.items() if part is not False}
    required = schema.get("required", [])
    for name in required if isinstance(required, list) else ():
        if not isinstance(name, str) or name in properties:
            continue
        if name in given or others is False:
            raise Fault(f"required key '{name:.50}' is not allowed by the properties: correct the schema")
        properties[name] = others if isinstance(others, dict) else {}
    if properties.keys() != given.keys():
        if "properties" not in schema:
            schema["additionalProperties"] = others
        schema["properties"] = properties


def _read_items(schema: Schema) -> None:
    """Leave out items that maxItems or `false` exclude."""
    if isinstance(schema.get("prefixItems"), list):
        n_most = require_count(schema, "maxItems")
        schema["prefixItems"] = schema["prefixItems"][:n_most]
        schema.pop("items", None)
    elif schema.get("items") is False:
        del schema["items"]
        schema |= {"type": "array", "maxItems": 0}
