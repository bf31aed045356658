"""References of JSON schemas by `$anchor`, as references by place, which llama.cpp's converter knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from llama_eagle.errors import UsageError

# Keys whose values are no schemas, and keys whose values are schemas by name.
VALUES = ("const", "default", "enum", "examples")
NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def with_places(schema: Any) -> Any:
    """Return a schema whose references are places in it. Raises `UsageError` for one that is nested too deeply."""
    try:
        places = dict(_anchors(schema, "#"))
        return _with_places(schema, places) if places else schema
    except RecursionError:
        raise UsageError("a JSON schema is nested too deeply. Leave out some of its levels.") from None


def tools_with_places(tools: Any) -> Any:
    """Return the tools of a request with such schemas. Others than functions are unchanged."""
    if not isinstance(tools, list | tuple):
        return tools
    return [
        {**tool, "function": function_with_places(tool["function"])}
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping)
        else tool
        for tool in tools
    ]


def function_with_places(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**function, "parameters": with_places(function["parameters"])} if "parameters" in function else function


def _anchors(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the references to anchors, and their places."""
    if isinstance(schema, Mapping) and isinstance(schema.get("$anchor"), str):
        yield f"#{schema['$anchor']}", place
    for keys, part in _parts(schema):
        names = (quote(key.replace("~", "~0").replace("/", "~1"), safe="") for key in keys)
        yield from _anchors(part, "/".join([place, *names]))


def _parts(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the schemas in a schema, with their keys."""
    if isinstance(schema, list | tuple):
        yield from (((str(i),), part) for i, part in enumerate(schema))
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in NAMED and isinstance(value, Mapping):
                yield from (((key, name), part) for name, part in value.items())
            elif key not in VALUES:
                yield (key,), value


def _with_places(schema: Any, places: Mapping[str, str]) -> Any:
    if isinstance(schema, list | tuple):
        return [_with_places(part, places) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in NAMED and isinstance(value, Mapping):
            found[key] = {name: _with_places(part, places) for name, part in value.items()}
        elif key == "$ref" and isinstance(value, str):
            found[key] = places.get(value, value)
        else:
            found[key] = value if key in VALUES else _with_places(value, places)
    return found
