"""A JSON schema as a document: its references, its limits, and the keys that its grammar does not enforce."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]
MAX_LEVELS = 1000  # of nested schemas and references, and of optional properties
MAX_NESTED = 300  # schemas within each other without references, whose JSON has about two levels for each
MAX_NAME = 4096  # bytes of a property's name, over which the converter's regular expressions recurse
MAX_SECONDS = 2  # of the processor
MAX_REFERENCES = 100  # that lead to each other with further keys
# Keys whose values are no schemas, and keys whose values are schemas by name.
VALUES = ("const", "default", "enum", "examples")
NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


class Fault(ValueError):
    """Error for a schema, or a part of one, that no grammar expresses."""


class Excess(Fault):
    """Error for a document that exceeds a limit."""


class Opening(IntEnum):
    """Parts of a schema that are left open: more with each step."""

    NONE = 0  # nothing: a fault is refused
    FAULTS = 1  # keys with faults
    LIMITS = 2  # all but types, names and listed values
    VALUES = 3  # all but the names of an object's properties
    ALL = 4  # everything: any object


class Document:
    """A schema that is being reduced. unenforced: names of what its grammar does not enforce."""

    def __init__(self, root: Any, opening: Opening = Opening.NONE) -> None:
        self.root = root
        self.opening = opening
        self.unenforced: set[str] = set()
        self._end = time.thread_time() + MAX_SECONDS

    def note(self, what: str) -> None:
        self.unenforced.add(what)

    def refuse(self, what: str, fault: str) -> None:
        """Raise a fault, or note what the grammar does not enforce."""
        if self.opening == Opening.NONE:
            raise Fault(fault)
        self.note(what)

    def require_time(self) -> None:
        if time.thread_time() > self._end:
            raise Fault(f"the schema takes more than {MAX_SECONDS} s")

    def resolve(self, reference: Any) -> Any:
        """Return the schema that a reference names. Raises `Fault`."""
        if not isinstance(reference, str):
            raise Fault("$ref must be a string")
        if reference.startswith("#") and reference in self._anchors:
            return self._anchors[reference]
        if reference != "#" and not reference.startswith("#/"):
            raise Fault(f"unsupported $ref {reference:.500}, only references into the same document are supported")
        found = self.root
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key[:9]) < len(found):
                found = found[int(key[:9])]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise Fault(f"cannot resolve $ref {reference:.500}, {key:.500} not found")
        return found

    def named_by(self, schema: Any) -> Any:
        """Return a schema, or what its reference names."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return schema
            schema = self.resolve(schema["$ref"])
        raise Fault("a $ref refers to itself")

    @cached_property
    def _anchors(self) -> dict[str, Any]:
        return {f"#{schema['$anchor']}": schema for schema in _with_anchors(self.root)}


def _with_anchors(root: Any) -> Iterator[Any]:
    """Yield the schemas with an anchor in a schema."""
    todo = [root]
    while todo:
        schema = todo.pop()
        if isinstance(schema, list):
            todo += schema
        elif isinstance(schema, Mapping):
            if isinstance(schema.get("$anchor"), str):
                yield schema
            for key, value in schema.items():
                if key in NAMED and isinstance(value, Mapping):
                    todo += value.values()
                elif key not in VALUES:
                    todo.append(value)
