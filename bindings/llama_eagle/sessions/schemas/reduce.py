"""Schemas as the converter reads them: definitions by place, rules of numbers and patterns, and nothing unknown.

A reduced schema has other references than the given one: all are to "$defs". The key "gbnf" is the grammar rule of a
number or a text, which the converter takes as it is (eagle_ruled.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from llama_eagle.sessions.schemas.document import (
    MAX_LEVELS,
    MAX_NAME,
    MAX_NESTED,
    Document,
    Excess,
    Fault,
    Opening,
    Schema,
)
from llama_eagle.sessions.schemas.follow import UNKNOWN, followed, require_count
from llama_eagle.sessions.schemas.merge import CONSTRAINTS, list_at
from llama_eagle.sessions.schemas.number_rules import number_rule
from llama_eagle.sessions.schemas.patterns import pattern_rule

LIMITED = ("type", "nullable", "properties", "required", "items", "enum", "const", "anyOf", "oneOf")
READ = CONSTRAINTS | {*UNKNOWN, "nullable", "description"}
FORMATS = frozenset(("date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"))
MAX_NAMES = 1 << 21  # characters of the names of all rules: two times the largest grammar
MAX_OPTIONAL = 700  # properties of an object, or as many of several as take the same time, which grows with the cube
MAX_ALTERNATIVES = 10_000  # of a definition and of its alternatives, which parsers of calls follow one by one
Part = tuple[Any, Any]  # a container and a key: the place of a part's schema


class Place(NamedTuple):
    """Place of a schema. level: with references. n_nested: without. n_name: length of the names of its rules."""

    level: int
    n_nested: int
    n_name: int

    def within(self, key: Any) -> Place:
        return Place(self.level + 1, self.n_nested + 1, self.n_name + len(str(key)) + 1)

    def require(self) -> None:
        if self.level > MAX_LEVELS or self.n_nested > MAX_NESTED:
            limit = MAX_LEVELS if self.level > MAX_LEVELS else MAX_NESTED
            raise Fault(f"the schema is nested deeper than {limit} levels")


def reduced(schema: Any, opening: Opening = Opening.NONE, prefix: str = "d") -> tuple[Schema, set[str]]:
    """Return what a grammar enforces of a schema, and the names of what it does not enforce.

    prefix: of the names of definitions; schemas in one grammar have several. Raises `Fault`.
    """
    document = Document(schema, opening)
    try:
        return _Reduction(document, prefix).reduced(), document.unenforced
    except RecursionError:
        raise Excess(f"the schema is nested deeper than {MAX_LEVELS} levels") from None


class _Reduction:
    def __init__(self, document: Document, prefix: str) -> None:
        self._document = document
        self._prefix = prefix
        self._names: dict[str, str] = {}  # of definitions, by their references
        self._definitions: Schema = {}
        self._joined: list[tuple[Schema, int]] = []  # schemas with allOf, whose properties the converter joins
        self._n_names = self._n_cubed = 0

    def reduced(self) -> Schema:
        """Reduce the schemas in the order in which the converter visits them, so that levels are the converter's."""
        top: Schema = {"root": self._document.root}
        todo = [(top, "root", Place(level=1, n_nested=1, n_name=0))]
        while todo:
            owner, key, place = todo.pop()
            self._count(place)
            node, parts = self._read(owner[key], place)
            owner[key] = node
            if "$ref" in node:
                parts = self._definition(node)
                place = place._replace(n_nested=0, n_name=0)
            self._count_optional(len(node.get("properties", ())) - len(node.get("required", ())), place.level)
            if "allOf" in node:
                self._joined.append((node, place.level))
            todo += [(*part, place.within(part[1])) for part in reversed(parts)]
        _require_ends(self._definitions)
        for node, level in self._joined:
            self._count_optional(sum(map(self._n_properties, node["allOf"])), level)
        return top["root"] | ({"$defs": self._definitions} if self._definitions else {})

    def _count(self, place: Place) -> None:
        self._n_names += place.n_name
        if self._n_names > MAX_NAMES:
            raise Excess("the grammar of the schema is too large")

    def _n_properties(self, node: Schema) -> int:
        """Return the number of properties of a schema, or of its alternatives."""
        while "$ref" in node:
            node = self._definitions[node["$ref"].rpartition("/")[2]]
        return len(node.get("properties", ())) + sum(map(self._n_properties, node.get("anyOf", ())))

    def _count_optional(self, n: int, level: int) -> None:
        self._n_cubed += n**3
        if level + n > MAX_LEVELS or self._n_cubed > MAX_OPTIONAL**3:
            raise Excess(f"the schema has too many optional properties, {n} in one object")

    def _definition(self, node: Schema) -> list[Part]:
        """Give a reference its place. Returns what it names if that is new."""
        reference = node["$ref"]
        is_new = reference not in self._names
        name = self._names.setdefault(reference, f"{self._prefix}{len(self._names)}")
        node["$ref"] = f"#/$defs/{name}"
        if not is_new:
            return []
        self._definitions[name] = self._document.resolve(reference)
        return [(self._definitions, name)]

    def _read(self, schema: Any, place: Place) -> tuple[Schema, list[Part]]:
        document = self._document
        given = {key: value for key, value in schema.items() if key in READ} if isinstance(schema, dict) else schema
        if document.opening == Opening.NONE:
            place.require()
            return _shaped(followed(given, document), document)
        try:
            place.require()
            return self._without_faults(_opened(given, document.opening, is_root=place.level == 1))
        except Fault:
            document.note("a part of a schema")
            return {}, []

    def _without_faults(self, given: Any) -> tuple[Schema, list[Part]]:
        """Return what a grammar can express of a schema.

        Of one with faults these are its keys in their order, without those that have a fault, alone or next to the
        keys before.
        """
        try:
            return self._checked(given)
        except Fault:
            if not isinstance(given, dict):
                raise
        kept: Schema = {}
        found: tuple[Schema, list[Part]] = {}, []
        for key, value in given.items():
            try:
                found = self._checked({**kept, key: value})
                kept[key] = value
            except Fault:
                self._document.note(key)
        return found

    def _checked(self, given: Any) -> tuple[Schema, list[Part]]:
        schema = followed(given, self._document)
        self._document.named_by(schema)
        if isinstance(schema, dict) and "pattern" in schema:
            pattern_rule(schema["pattern"])
        return _shaped(schema, self._document)


def _opened(schema: Any, opening: Opening, *, is_root: bool) -> Any:
    """Return a schema with less than it states."""
    if opening < Opening.LIMITS or not isinstance(schema, dict):
        return schema
    if opening == Opening.LIMITS:
        return {key: schema[key] for key in LIMITED if key in schema}
    if not is_root:
        return {}
    names = schema.get("properties") if opening == Opening.VALUES else None
    return {"type": "object"} | ({"properties": {name: {} for name in names}} if isinstance(names, dict) else {})


def _shaped(schema: Any, document: Document) -> tuple[Schema, list[Part]]:
    """Return a schema with the keys that the converter reads, and its parts. Raises `Fault` for what that refuses."""
    if not isinstance(schema, dict):
        raise Fault("a schema must be an object")
    described = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    for key in ("$ref", "oneOf", "anyOf"):
        if key == "$ref" and key in schema:
            document.resolve(schema[key])
            return {key: schema[key], **described}, []
        if key in schema:
            return _alternatives("anyOf", list_at(schema, key), described)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _alternatives("anyOf", [schema | {"type": name} for name in kind], described)
    for key in ("const", "enum"):
        if key in schema:
            if key == "enum" and not list_at(schema, key, "list"):
                raise Fault("enum must be a non-empty array")
            return {key: schema[key], **described}, []
    node, parts = _typed(schema, kind)
    node.update(described)
    return node, parts


def _alternatives(key: str, parts: list[Any], more: Schema) -> tuple[Schema, list[Part]]:
    if not parts:
        raise Fault(f"{key} must not be empty")
    found = list(parts)
    return {key: found, **more}, [(found, i) for i in range(len(found))]


def _typed(schema: Schema, kind: str | None) -> tuple[Schema, list[Part]]:
    """Return a schema of one type, or of the type that its keys imply, in the converter's order."""
    has_keys = "properties" in schema or schema.get("additionalProperties", True) is not True
    if kind is None and has_keys:
        kind = "object"
    elif kind in (None, "object", "string") and "allOf" in schema and not (kind == "object" and has_keys):
        return _alternatives("allOf", list_at(schema, "allOf"), {})
    elif kind is None and ("items" in schema or "prefixItems" in schema):
        kind = "array"
    elif kind is None and ({"pattern", "minLength", "maxLength"} & schema.keys() or _format(schema)):
        kind = "string"
    if kind == "object":
        return _object(schema)
    if kind == "array":
        return _array(schema)
    if kind == "string":
        return _string(schema), []
    rule = number_rule(schema) if kind in ("integer", "number") else ""
    return ({"type": kind} if kind else {}) | ({"gbnf": rule} if rule else {}), []


def _object(schema: Schema) -> tuple[Schema, list[Part]]:
    node: Schema = {"type": "object"}
    parts: list[Part] = []
    if "properties" in schema:
        if not isinstance(schema["properties"], dict):
            raise Fault("properties must be an object")
        if any(
            len(name) > MAX_NAME or len(name.encode("utf-8", "replace")) > MAX_NAME for name in schema["properties"]
        ):
            raise Fault(f"a name in the schema is longer than {MAX_NAME} bytes")
        node["properties"] = own = dict(schema["properties"])
        parts += [(own, name) for name in own]
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
    node["required"] = [name for name in node.get("properties", ()) if name in names]
    if "additionalProperties" in schema:
        node["additionalProperties"] = schema["additionalProperties"]
        if isinstance(schema["additionalProperties"], dict):
            parts.append((node, "additionalProperties"))
        elif not isinstance(schema["additionalProperties"], bool):
            raise Fault("additionalProperties must be a boolean or a schema")
    return node, parts


def _array(schema: Schema) -> tuple[Schema, list[Part]]:
    node: Schema = {"type": "array"}
    key = "items" if "items" in schema else "prefixItems"
    if isinstance(schema.get(key), list):
        node["items"] = items = list(schema[key])
        return node, [(items, i) for i in range(len(items))]
    node |= {key: n for key in ("minItems", "maxItems") if (n := require_count(schema, key)) is not None}
    if key not in schema:
        return node, []
    node["items"] = schema[key]
    return node, [(node, "items")]


def _string(schema: Schema) -> Schema:
    node: Schema = {"type": "string"}
    if name := _format(schema):
        node["format"] = name
    node |= {key: n for key in ("minLength", "maxLength") if (n := require_count(schema, key)) is not None}
    rule = pattern_rule(schema["pattern"]) if "pattern" in schema else ""
    return node | ({"gbnf": rule} if rule else {})


def _format(schema: Schema) -> str:
    """Return a format that the converter knows; "" for others."""
    name = schema.get("format", "")
    if not isinstance(name, str):
        raise Fault("format must be a string")
    return name if name in FORMATS else ""


def _require_ends(definitions: Schema) -> None:
    """Refuse definitions that are alternatives of themselves, or have too many."""
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = MAX_ALTERNATIVES  # until it is known: too many for one that leads to itself
            nodes = list(_alternatives_of(definitions[name]))
            names = [node["$ref"].rpartition("/")[2] for node in nodes if "$ref" in node]
            sizes[name] = len(nodes) + sum(map(size, names))
        if sizes[name] >= MAX_ALTERNATIVES:
            raise Excess("a definition of the schema is an alternative of itself, or has too many")
        return sizes[name]

    for name in definitions:
        size(name)


def _alternatives_of(node: Schema) -> Iterator[Schema]:
    """Yield a schema and its alternatives, without those of definitions."""
    todo = [node]
    while todo:
        yield (each := todo.pop())
        todo += each.get("anyOf", []) + each.get("allOf", [])
