"""Conversion of JSON schemas to grammars: llama-cpp-python's converter, plus counts, patterns and bounds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_grammar import PRIMITIVE_RULES, RESERVED_NAMES, STRING_FORMAT_RULES, BuiltinRule, SchemaConverter

from llama_eagle.generation.numbers import BOUNDS, bounds, integers, is_number, is_whole, numbers
from llama_eagle.native import calls

MOST = 2000  # maximum count of items or characters in a grammar, as in eagle_schema.h
COUNTS = (("minItems", "maxItems"), ("minLength", "maxLength"))
FIRST = ("$ref", "oneOf", "anyOf", "const", "enum", "pattern")  # these take precedence over counts
# Keys that determine the kind of a value. A schema without one of them allows any value.
DECIDING = {
    *FIRST, "type", "allOf", "properties", "additionalProperties", "items", "prefixItems", "format",
}  # fmt: skip
# llama-cpp-python's rule without raw control characters, which JSON forbids in strings.
CHAR = BuiltinRule(
    r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])', []
)
# Minimum and maximum length of the formats that have rules.
LENGTHS = {"date": (10, 10), "time": (9, 18), "date-time": (20, 29), "uuid": (36, 36)}
# Names of Python types that clients use for JSON types.
TYPES = {
    "float": "number", "double": "number", "int": "integer", "bool": "boolean", "str": "string", "dict": "object",
    "list": "array", "tuple": "array", "None": "null", "NoneType": "null",
}  # fmt: skip
JSON_TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
# Keys without a grammar, as in llama-cpp-python. `oneOf` is another one if its parts overlap.
UNENFORCED = {
    "patternProperties", "not", "dependencies", "minProperties", "maxProperties", "uniqueItems", "contains",
    "minContains", "maxContains", "propertyNames", "dependentRequired", "dependentSchemas", "if", "unevaluatedItems",
    "unevaluatedProperties",
}  # fmt: skip
LITERALS = ("const", "enum", "default", "examples")  # keys with values, not schemas
NAMED = ("properties", "$defs", "definitions")  # keys with schemas by name
# Keys that constrain a value; the others describe it.
CONSTRAINTS = {*DECIDING, *COUNTS[0], *COUNTS[1], *BOUNDS, "multipleOf", "required"}
MOST_REFERENCES = 100  # that lead to each other with further constraints
# Keys of an allOf that the parent merges.
OF_OBJECTS = {"properties", "additionalProperties", "anyOf", "oneOf", "$ref", "not"}


def gbnf(schema: str) -> str:
    """Return the grammar of a schema's values. Raises the converter's errors for a schema that it does not support."""
    converter = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    read = with_json_types(json.loads(schema))
    try:
        converter.find_references(read, read)
        converter.visit(read, "")
    except RecursionError:
        raise ValueError("it is nested too deeply, or a $ref with other keys contains itself") from None
    return str(converter.format_grammar())


def with_json_types(schema: Any, *, is_schema: bool = True) -> Any:
    """Return a schema with JSON's type names in place of Python's, at any depth."""
    if isinstance(schema, list):
        return [with_json_types(entry) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {}
    for key, value in schema.items():
        is_type = is_schema and key == "type"
        if is_type and isinstance(value, str | list):
            found[key] = _json_type(value)
        elif is_schema and key in LITERALS:
            found[key] = value
        else:  # names of properties are not keywords
            found[key] = with_json_types(value, is_schema=not (is_schema and key in NAMED))
    return found


def unenforced(schema: Any, *, is_schema: bool = True, root: Any = None) -> set[str]:
    """Return the keys of a schema that its grammar does not enforce, at any depth, and its unknown formats.

    root: the whole schema, for references.
    """
    root = schema if root is None else root
    if isinstance(schema, list):
        return set().union(*(unenforced(entry, is_schema=is_schema, root=root) for entry in schema))
    if not isinstance(schema, Mapping):
        return set()
    found: set[str] = set()
    for key, value in schema.items():
        if is_schema and key in UNENFORCED and value not in (False, 0):
            found.add(key)
        elif is_schema and key == "format" and schema.get("type") == "string" and not _is_known_format(value):
            found.add(f"format {value}")
        elif not (is_schema and key in LITERALS):
            found |= unenforced(value, is_schema=not (is_schema and key in NAMED), root=root)
    if is_schema and isinstance(schema.get("oneOf"), list) and not _is_one_only(schema, root):
        found.add("oneOf")
    return found


def _is_one_only(schema: Mapping[str, Any], root: Any) -> bool:
    """Return True if no value that a grammar allows fits two parts of `oneOf`."""
    siblings = {key: value for key, value in schema.items() if key in CONSTRAINTS - {"oneOf"}}
    try:
        parts = [_merged(siblings, _followed(part, root)) for part in schema["oneOf"]]
        return all(_exclude(one, other, root) for one, other in itertools.combinations(parts, 2))
    except (ValueError, TypeError, RecursionError):
        return False


def _exclude(one: Mapping[str, Any], other: Mapping[str, Any], root: Any) -> bool:
    """Return True if no value that a grammar allows fits both schemas: by their types, constants or required keys."""
    literals = [_literals(each) for each in (one, other)]
    if None not in literals:
        return not any(value in literals[1] for value in literals[0])
    if not _kinds(one) & _kinds(other):
        return True
    if _kinds(one) | _kinds(other) != {"object"}:
        return False
    properties = [each.get("properties", {}) for each in (one, other)]
    required = [set(each.get("required", [])) for each in (one, other)]
    is_open = any(each.get("additionalProperties") or not each.get("properties") for each in (one, other))
    if not is_open and required[0] - properties[1].keys() and required[1] - properties[0].keys():
        return True  # grammars write no other keys
    common = [key for key in required[0] & required[1] if key in properties[0] and key in properties[1]]
    pairs = ([_followed(each[key], root) for each in properties] for key in common)
    return any(_exclude(first, second, root) for first, second in pairs)


def _followed(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return a schema, or what its reference names."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = _named(str(schema["$ref"]), root)
    if not isinstance(schema, Mapping):
        raise TypeError(f"a schema must be an object, not {schema!r:.50}")
    return schema


def _literals(schema: Mapping[str, Any]) -> Any:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows; an integer is a number."""
    literals = _literals(schema)
    if literals is not None:
        kinds = {bool: "boolean", int: "number", float: "number", str: "string", dict: "object", list: "array"}
        return {kinds.get(type(value), "null") for value in literals}
    given = schema.get("type", "object" if {"properties", "required"} & schema.keys() else list(JSON_TYPES))
    return {"number" if kind == "integer" else kind for kind in (given if isinstance(given, list) else [given])}


def _json_type(value: Any) -> Any:
    return [_json_type(each) for each in value] if isinstance(value, list) else TYPES.get(str(value), value)


def referring(schema: Any, place: str) -> Any:
    """Return a schema whose references to itself ("#/...") are valid at `place` in a larger schema."""
    if isinstance(schema, list):
        return [referring(entry, place) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: referring(value, place) for key, value in schema.items()}
    ref = schema.get("$ref")
    return found | {"$ref": place + ref[1:]} if isinstance(ref, str) and ref.startswith("#") else found


class _Converter(SchemaConverter):
    def find_references(self, schema: Any, root: Any) -> None:
        """Register what the references in a schema name. Raises ValueError for one that is not found."""
        if isinstance(schema, Mapping) and isinstance(ref := schema.get("$ref"), str) and ref not in self._refs:
            self._refs[ref] = _named(ref, root)
        for each in schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ():
            self.find_references(each, root)

    def _format_literal(self, literal: str) -> str:
        """Return a GBNF literal. The parent does not escape backslashes, which GBNF reads as escapes."""
        return '"' + json.dumps(literal, ensure_ascii=False)[1:-1] + '"'

    def _add_primitive(self, name: str, rule: Any) -> str:
        return str(super()._add_primitive(name, CHAR if name == "char" else rule))

    def _resolve_ref(self, ref: str) -> str:
        """Return one rule per reference, because definitions may share a name with each other or with other rules."""
        refs = list(self._refs)
        name = f"ref-{refs.index(ref)}"
        if ref in self._refs_being_resolved or name in self._rules:
            return name
        self._refs_being_resolved.add(ref)
        found = self.visit(self._refs[ref], name)
        self._refs_being_resolved.remove(ref)
        return found

    def visit(self, schema: Any, name: str) -> str:
        schema = {} if schema is True else schema
        if not isinstance(schema, Mapping):
            raise TypeError(f"a schema must be an object, not {schema!r:.50}")
        _require_keys(schema)
        schema = self._without_siblings(schema)
        schema = _with_required(_typed(_within_counts(self._without_all_of(schema))))
        _require_followed(schema)
        if not name and not DECIDING & schema.keys():
            schema = {}  # as in the parent: any object
        if name and not DECIDING & schema.keys():
            return str(self._add_rule(self._rule_name(name), self._add_primitive("value", PRIMITIVE_RULES["value"])))
        if isinstance(schema.get("type"), list) and not any(key in schema for key in ("$ref", "oneOf", "anyOf")):
            return self._visit_types(schema, name)
        counted = self._counted(schema, name)
        if counted is not None:
            return str(self._add_rule(self._rule_name(name), f"{counted} space"))
        return self._visit_bounds(schema, name)

    def _without_siblings(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge constraints next to $ref, oneOf or anyOf into the schemas that these name: the parent ignores them."""
        for _ in range(MOST_REFERENCES):
            key = next((key for key in ("$ref", "oneOf", "anyOf") if key in schema), None)
            siblings = {each: value for each, value in schema.items() if each in CONSTRAINTS - {key}}
            if key is None or not siblings:
                return schema
            if key != "$ref":
                return {key: [_merged(siblings, {} if part is True else part) for part in schema[key]]}
            definition = self._refs[schema["$ref"]]
            definition = {} if definition is True else definition
            more = {each: value for each, value in siblings.items() if definition.get(each) != value}
            schema = _merged(definition, more) if more else {"$ref": schema["$ref"]}
        raise ValueError("$ref with other keys refers to itself: write the keys into the definition")

    def _visit_types(self, schema: Mapping[str, Any], name: str) -> str:
        """Visit each type with the other keys. The values of `enum` and `const` imply their types."""
        without = {key: value for key, value in schema.items() if key != "type"}
        if "enum" in schema or "const" in schema:
            return self.visit(without, name)
        return self.visit({"anyOf": [{**without, "type": kind} for kind in schema["type"]]}, name)

    def _counted(self, schema: Mapping[str, Any], name: str) -> str | None:
        """Return the rule of an array or string with a minimum or maximum length; None for other schemas."""
        kind = schema.get("type")
        if any(key in schema for key in FIRST) or _is_known_format(schema.get("format")):
            return None
        if kind == "string" and any(key in schema for key in COUNTS[1]):
            char = self._add_primitive("char", CHAR)
            return f'"\\"" {repeated(char, *_count(schema, COUNTS[1]))} "\\""'
        items = schema.get("items") or schema.get("prefixItems") or {}
        is_counted = ("items" in schema and items in ({}, True)) or any(key in schema for key in COUNTS[0])
        if kind == "array" and not isinstance(items, list) and is_counted:
            if items == {} or items is True:
                item = self._add_primitive("value", PRIMITIVE_RULES["value"])
            else:
                item = self.visit(items, f"{name}-item" if name else "item")
            return f'"[" space {separated(item, *_count(schema, COUNTS[0]))} "]"'
        return None

    def _visit_pattern(self, pattern: str, name: str) -> str:
        if not isinstance(pattern, str):
            raise TypeError(f"a pattern must be text, not {pattern!r:.50}")
        return str(self._add_rule(name, f"{calls.pattern_rule(pattern)} space"))

    def _without_all_of(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the schema with the parts of `allOf` merged if they constrain one value; the parent merges objects."""
        parts = schema.get("allOf")
        if parts is None or any(key in schema for key in ("$ref", "oneOf", "anyOf", "const", "enum")):
            return schema
        parts = [self._refs[part["$ref"]] if "$ref" in part and len(part) == 1 else part for part in parts]
        if any(not isinstance(part, Mapping) or OF_OBJECTS & part.keys() for part in [schema, *parts]):
            return schema
        joined = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts:
            joined = _joined(joined, part)
        return self._without_all_of(joined)

    @staticmethod
    def _rule_name(name: str) -> str:
        return f"{name}-" if name in RESERVED_NAMES else name or "root"

    def _visit_bounds(self, schema: Mapping[str, Any], name: str) -> str:
        is_bounded = any(key in schema for key in (*BOUNDS, "multipleOf")) and "enum" not in schema
        if is_bounded and "const" not in schema and schema.get("type") in ("integer", "number"):
            rule = integers(*bounds(schema)) if is_whole(schema) else numbers(schema)
            return str(self._add_rule(self._rule_name(name), f"({rule}) space"))
        return str(super().visit(schema, name))


def _named(ref: str, root: Any) -> Any:
    """Return what a reference such as "#/$defs/name" names in the whole schema."""
    if not ref.startswith("#"):
        raise ValueError(f"$ref {ref!r:.80} is outside of the schema, only #/... is supported")
    found = root
    for part in ref.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        is_index = isinstance(found, list) and key.isdigit() and int(key) < len(found)
        if not is_index and not (isinstance(found, Mapping) and key in found):
            raise ValueError(f"$ref {ref!r:.80} names nothing in the schema")
        found = found[int(key)] if is_index else found[key]
    return found


def _typed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the type that counts or bounds imply, if no other key determines it."""
    if DECIDING & schema.keys():
        is_array = "items" in schema and not (DECIDING - {"items"}) & schema.keys()
        return {**schema, "type": "array"} if is_array else schema
    for keys, kind in zip(COUNTS, ("array", "string"), strict=True):
        if any(key in schema for key in keys):
            return {**schema, "type": kind}
    if any(key in schema for key in (*BOUNDS, "multipleOf")):
        return {**schema, "type": "number"}
    return schema


def _with_required(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add required keys without a property, and remove properties that are not allowed.

    Raises ValueError for a required key that is not allowed.
    """
    if schema.get("type", "object") != "object" or any(key in schema for key in (*FIRST, "allOf")):
        return schema
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    missing = [key for key in required if key not in properties]
    forbidden = [key for key in required if properties.get(key, others) is False]
    if forbidden:
        raise ValueError(f"required key {forbidden[0]!r:.50} is not allowed by the properties: correct the schema")
    found = {key: value for key, value in properties.items() if value is not False}
    found |= dict.fromkeys(missing, others)
    if not missing:
        return schema if found == properties else {**schema, "properties": found}
    open_object = {} if "properties" in schema else {"additionalProperties": others}
    return {**schema, **open_object, "properties": found}


def _require_keys(schema: Mapping[str, Any]) -> None:
    """Check that each key has a value of the right type. Raises TypeError or ValueError."""
    kind = schema.get("type", "object")
    known = all(isinstance(each, str) and each in JSON_TYPES for each in (kind if isinstance(kind, list) else [kind]))
    if not known or kind == []:
        raise ValueError(f"type {kind!r:.50} is not one of {', '.join(JSON_TYPES)}, or a list of them")
    if "prefixItems" in schema and schema.get("items", False) is not False:
        raise ValueError("prefixItems with items is not supported: leave one out")
    for key, form, words in (
        ("properties", Mapping, "an object"),
        ("required", list, "a list of names"),
        ("enum", list, "a list"),
        *((key, list, "a list of schemas") for key in ("allOf", "anyOf", "oneOf")),
    ):
        if key in schema and not isinstance(schema[key], form):
            raise TypeError(f"{key} must be {words}, not {json.dumps(schema[key])[:50]}")


def _require_followed(schema: Mapping[str, Any]) -> None:
    """Check that no key would be ignored because of another. Raises ValueError."""
    given = [key for key in COUNTS[1] if schema.get(key)]
    if "pattern" in schema and given:
        raise ValueError(f"pattern with {given[0]} is not supported: write the length into the pattern")
    name = str(schema.get("format"))
    low, high = LENGTHS.get("uuid" if name.startswith("uuid") else name, (0, MOST))
    if _is_known_format(name) and (schema.get("minLength", 0) > low or schema.get("maxLength", MOST) < high):
        raise ValueError(f"format {name} with {given[0]} is not supported: leave one out")


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with the constraints of both. Raises ValueError for a key whose values cannot be combined."""
    found = dict(one)
    for key, value in other.items():
        if key not in found or found[key] == value:
            found[key] = value
        elif key.startswith(("min", "exclusiveMin")) and is_number(value) and is_number(found[key]):
            found[key] = max(value, found[key])
        elif key.startswith(("max", "exclusiveMax")) and is_number(value) and is_number(found[key]):
            found[key] = min(value, found[key])
        elif key == "type" and sorted(map(str, [value, found[key]])) == ["integer", "number"]:
            found[key] = "integer"
        elif key not in ("title", "description", "default", "examples"):
            raise ValueError(f"two values of {key} in parts of one schema are not supported: merge them")
    return found


def _merged(one: Mapping[str, Any], other: Any) -> dict[str, Any]:
    """Return a schema with the constraints of both, objects included. Raises ValueError as `_joined`."""
    if not isinstance(other, Mapping):
        raise TypeError(f"a schema must be an object, not {other!r:.50}")
    properties = dict(one.get("properties", {}))
    for name, schema in other.get("properties", {}).items():
        properties[name] = _merged(properties[name], schema) if properties.get(name, schema) != schema else schema
    required = [*one.get("required", []), *other.get("required", [])]
    objects = {key: value for key, value in (("properties", properties), ("required", required)) if value}
    if "type" in one and one["type"] != other.get("type", one["type"]):
        objects["type"] = _common_type(one["type"], other["type"])
    return {**_joined(*({k: v for k, v in each.items() if k not in objects} for each in (one, other))), **objects}


def _common_type(one: Any, other: Any) -> Any:
    """Return the types of both, a name or a list of them. An integer is a number, too."""
    kinds = []
    for given in (one, other):
        kind = given if isinstance(given, list) else [given]
        kinds.append([*kind, "integer"] if "number" in kind and "integer" not in kind else kind)
    common = [kind for kind in kinds[0] if kind in kinds[1]]
    if not common:
        raise ValueError(f"types {one!r:.50} and {other!r:.50} of parts of one schema exclude each other")
    return common if len(common) > 1 else common[0]


def _is_known_format(name: Any) -> bool:
    return isinstance(name, str) and (name.startswith("uuid") or f"{name}-string" in STRING_FORMAT_RULES)


def _within_counts(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop maximum counts above `MOST`: many schemas have one, and no answer reaches it.

    Raises ValueError for an invalid count and for a minimum count above `MOST`.
    """
    found = dict(schema)
    for keys in COUNTS:
        for key in keys:
            value = schema.get(key, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
                raise ValueError(f"{key} must be a non-negative integer")
            if key in found:
                found[key] = int(value)
            if value > MOST and key.startswith("min"):
                raise ValueError(f"{key} {int(value)} is above {MOST}, the maximum for a grammar")
        low, high = _count(found, keys)
        if high is not None and low > high:
            raise ValueError(f"{keys[0]} {low} is above {keys[1]} {high}")
        if high is not None and high > MOST:
            del found[keys[1]]
    return found


def _count(schema: Mapping[str, Any], keys: tuple[str, str]) -> tuple[int, int | None]:
    return schema.get(keys[0], 0), schema.get(keys[1])


def repeated(item: str, low: int, high: int | None) -> str:
    """Return a rule for `item` repeated from `low` to `high` times (None: no limit)."""
    return '""' if high == 0 else f"{item}{{{low},{'' if high is None else high}}}"


def separated(item: str, low: int, high: int | None) -> str:
    """Return the same with commas between the items."""
    if high == 0:
        return '""'
    rest = repeated(f'("," space {item})', max(low - 1, 0), None if high is None else high - 1)
    return f"({item} {rest})" if low else f"({item} {rest})?"
