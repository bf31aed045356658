"""Grammars of JSON schemas and of tool calls, made by llama.cpp's converter of reduced schemas."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from llama_eagle.errors import UsageError
from llama_eagle.native.calls import OK, check_grammar, library
from llama_eagle.native.common import call, one_line, with_remedy
from llama_eagle.sessions.schemas.document import Excess, Fault, Opening, Schema
from llama_eagle.sessions.schemas.reduce import reduced

MAX_KEPT = 100_000  # characters of a schema whose reduced form is kept
LIMITS = "all limits of these tools' schemas"
Function = Mapping[str, Any]
Notes = frozenset[str]  # names of what a grammar does not enforce
Made = TypeVar("Made")


def schema_grammar(schema: Any) -> tuple[str, list[str]]:
    """Return the grammar of a JSON schema, and the keys that it does not enforce.

    Raises `UsageError` for a schema that cannot be converted.
    """
    found, unenforced = schema_of_format(schema)
    return _converted(found), sorted(unenforced)


def schema_of_format(schema: Any, opening: Opening = Opening.NONE) -> tuple[Schema, Notes]:
    """Return a schema of whole answers as the converter reads it, and the keys that its grammar does not enforce.

    Raises `UsageError`.
    """
    try:
        found, unenforced = _reduced(schema, opening, "d")
    except Fault as fault:
        reason = f"the JSON schema cannot be turned into a grammar ({one_line(str(fault))})"
        raise UsageError(with_remedy(reason)) from None
    return _with_named_root(found) or {"description": ""}, unenforced  # an empty schema is none to parsers of answers


def calls_grammar(functions: Sequence[Function]) -> tuple[str, list[str]]:
    """Return the grammar of {"name": ..., "arguments": ...} for a call of one of `functions`, as `schema_grammar`.

    What a grammar cannot express of a schema is left open. Raises `UsageError` for such a schema of a strict function.
    """
    return _opened_grammar(functions, lambda opening: _calls(functions, opening))


def arguments_grammar(function: Function) -> tuple[str, list[str]]:
    """Return the grammar of the arguments of a call of `function`, as `calls_grammar`."""
    return _opened_grammar([function], lambda opening: _parameters(function, opening))


def require_strict(function: Function) -> None:
    """Raise `UsageError` for a strict function whose schema has no grammar."""
    if function.get("strict") is not True or function.get("parameters") is None:
        return
    try:
        check_grammar(None, schema_grammar(function["parameters"])[0])
    except UsageError as error:
        reason = f"the tool {function.get('name')!r} is strict, but its schema has no grammar. {error}"
        raise UsageError(f"{reason.rstrip('.')}. Or leave out 'strict'.") from None


def tool_with_schema(tool: Any, opening: Opening, prefix: str) -> tuple[Any, Notes]:
    """Return a tool with its parameters as parsers of calls read them, and what a grammar does not enforce of them.

    prefix: of the names of definitions. Raises `Excess`.
    """
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or "parameters" not in function:
        return tool, frozenset()
    given = function["parameters"]
    if not isinstance(given, Mapping):
        without = {key: value for key, value in function.items() if key != "parameters"}
        return {**tool, "function": without}, frozenset(["parameters that are no schema"])
    found, unenforced = _reduced(given, opening, prefix)
    names = given.get("properties")
    if isinstance(names, Mapping) and not {"anyOf", "$ref"}.isdisjoint(found):  # some parsers read names and types here
        found = {**found, "properties": {name: _with_type(part) for name, part in names.items()}}
    return {**tool, "function": {**function, "parameters": found}}, unenforced


def _with_type(schema: Any) -> Schema:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"type": kind} if isinstance(kind, str) else {}


def _parameters(function: Function, opening: Opening, prefix: str = "d") -> tuple[Schema, Notes]:
    given = function.get("parameters")
    return _reduced(given if isinstance(given, Mapping) and given else {"type": "object"}, opening, prefix)


def opened_until_fit(make: Callable[[Opening], Made], grammar_of: Callable[[Made], str], notes: set[str]) -> Made:
    """Return what `make` makes, with more of schemas left open until a grammar is within the limits of grammars."""
    for opening in (Opening.FAULTS, Opening.LIMITS, Opening.VALUES):
        with contextlib.suppress(Excess):
            made = make(opening)
            grammar = grammar_of(made)
            if not grammar or library().eagle_grammar_check(None, grammar.encode(), b"root") == OK:
                return made
        notes.add(LIMITS)
    return make(Opening.ALL)


def _opened_grammar(
    functions: Iterable[Function], make: Callable[[Opening], tuple[Schema, Notes]]
) -> tuple[str, list[str]]:
    for function in functions:
        require_strict(function)
    unenforced: set[str] = set()

    def grammar(opening: Opening) -> str:
        schema, notes = make(opening)
        unenforced.update(notes)
        try:
            return _converted(_with_named_root(schema))
        except UsageError as error:  # its JSON exceeds a limit
            raise Excess(str(error)) from None

    return opened_until_fit(grammar, str, unenforced), sorted(unenforced)


def _calls(functions: Sequence[Function], opening: Opening) -> tuple[Schema, Notes]:
    calls, definitions, unenforced = [], Schema(), set[str]()
    for i, function in enumerate(functions):
        parameters, notes = _parameters(function, opening, f"t{i}d")
        definitions |= parameters.get("$defs", {}) | {f"t{i}": parameters}
        unenforced |= notes
        properties = {"name": {"const": function["name"]}, "arguments": {"$ref": f"#/$defs/t{i}"}}
        calls.append({"type": "object", "properties": properties, "required": [*properties]})
    return {"anyOf": calls, "$defs": definitions}, frozenset(unenforced)


def _with_named_root(schema: Schema) -> Schema:
    """Return a schema whose root is a definition if it has a property "", whose rule would be the root's."""
    if "" not in schema.get("properties", {}):
        return schema
    return {"$ref": "#/$defs/root", "$defs": {**schema.get("$defs", {}), "root": schema}}


def _converted(schema: Schema) -> str:
    """Return the converter's grammar of a reduced schema."""
    return call("eagle_schema_grammar", json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))


def plain(value: Any) -> Any:
    """Return an object of a client's library as JSON's types."""
    if hasattr(value, "model_dump"):  # of OpenAI's client
        return value.model_dump(exclude_none=True)
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, Iterable) else str(value)


def _reduced(schema: Any, opening: Opening, prefix: str) -> tuple[Schema, Notes]:
    try:
        text = json.dumps(schema, default=plain, ensure_ascii=False)
        return (_kept if len(text) <= MAX_KEPT else _kept.__wrapped__)(text, opening, prefix)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, Fault):
            raise
        raise UsageError(f"a JSON schema is no JSON, or nested too deeply ({error}). Change the schema.") from None


@lru_cache(maxsize=512)
def _kept(text: str, opening: Opening, prefix: str) -> tuple[Schema, Notes]:
    """Return a reduced schema, which nobody changes: requests send the same tools again and again."""
    found, unenforced = reduced(json.loads(text), opening, prefix)
    return found, frozenset(unenforced)
