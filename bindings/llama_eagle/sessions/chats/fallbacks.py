"""Rendering of chats with an effort of reasoning or with tools that a template refuses.

The same rules in C++: `eagle_apply_effort` and `eagle_apply_schemas` (native/src/llama-common/chat/eagle_formats.h).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from llama_eagle.errors import InputError
from llama_eagle.sessions.chat_template import render

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
EFFORT = "reasoning_effort"  # in templates
JSON_TYPES = frozenset(("null", "boolean", "number", "integer", "string", "array", "object"))
# Names of Python types that clients use for JSON types.
TYPE_NAMES = {
    "float": "number", "double": "number", "int": "integer", "bool": "boolean", "str": "string", "dict": "object",
    "list": "array", "tuple": "array", "None": "null", "NoneType": "null",
}  # fmt: skip
MAX_LEVELS = 20  # of a plain schema; templates recurse into them
Variables = Mapping[str, Any]


def render_adapted(template: str, variables: Variables, where: object) -> str:
    """Return the prompt, with the nearest effort of reasoning and plain schemas of tools where the template needs them.

    Raises the errors of `render`.
    """
    try:
        return _render_tools(template, variables, where)
    except InputError:
        effort = _nearest_effort(template, variables)
        if effort == variables.get(EFFORT):
            raise
    return _render_tools(template, {**variables, EFFORT: effort}, where)


def _nearest_effort(template: str, variables: Variables) -> Any:
    """Return the nearest effort that the template takes, of two the higher one; the requested one if it takes none."""
    given = variables.get(EFFORT)
    if given not in EFFORTS:
        return given
    question = {**variables, "messages": [{"role": "user", "content": "Question"}], "tools": None}
    place = EFFORTS.index(given)
    for i in sorted(range(len(EFFORTS)), key=lambda i: (abs(i - place), -i)):
        try:
            render(template, {**question, EFFORT: EFFORTS[i]}, "a test")
        except InputError:
            continue
        return EFFORTS[i]
    return given


def _render_tools(template: str, variables: Variables, where: object) -> str:
    """Return the prompt, with plain schemas if the template fails for those of the tools."""
    try:
        return render(template, variables, where)
    except InputError:
        plain = [_plain_tool(tool) for tool in variables.get("tools") or ()]
        if not plain:
            raise
        try:
            prompt = render(template, {**variables, "tools": plain}, where)
        except InputError:
            prompt = ""
        if not prompt:
            raise
    warnings.warn("the chat template fails for a tool's schema: the model sees a plain form of it.", stacklevel=2)
    return prompt


def _plain_tool(tool: Any) -> Any:
    """Return a tool with a description, and with a plain schema of its parameters."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    parameters = {"type": "object", "properties": {}, "required": []} | plain_schema(function.get("parameters"))
    described = {**function, "description": function.get("description") or "", "parameters": parameters}
    return {**tool, "function": described}


def plain_schema(schema: Any, n_levels: int = MAX_LEVELS) -> dict[str, Any]:
    """Return a schema with one type, and with the keys that templates read in their usual form.

    Jinja2 fails for some uses of missing keys, which llama.cpp's interpreter prints as "".
    """
    if not isinstance(schema, Mapping) or n_levels == 0:
        schema = {}
    kind, properties, required = _first_type(schema), schema.get("properties"), schema.get("required")
    description = schema.get("description")
    plain: dict[str, Any] = {"type": kind} if kind else {}
    plain["description"] = description if isinstance(description, str) else ""
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        plain["enum"] = schema["enum"]
    if kind == "object" or "properties" in schema:
        given = properties.items() if isinstance(properties, Mapping) else ()
        plain["properties"] = {name: plain_schema(value, n_levels - 1) for name, value in given}
        plain["required"] = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        plain["additionalProperties"] = plain_schema(schema.get("additionalProperties"), n_levels - 1)
    if kind == "array":
        plain["items"] = plain_schema(schema.get("items"), n_levels - 1)
    return plain


def _first_type(schema: Mapping[str, Any]) -> str:
    """Return the first type of a schema except null; "" if it has none."""
    given = schema.get("type")
    given = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
    names = [TYPE_NAMES.get(name, name) for name in given]
    return next((name for name in names if name in JSON_TYPES - {"null"}), "")
