"""Rendering of chats with an effort of reasoning or with tools that a template refuses.

The rule for efforts in C++: `eagle_apply_effort` (native/src/llama-common/chat/eagle_formats.h).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any

from llama_eagle.errors import InputError
from llama_eagle.sessions.chats.template import render
from llama_eagle.sessions.schemas.follow import TYPE_NAMES
from llama_eagle.sessions.schemas.values import TYPES

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
EFFORT = "reasoning_effort"  # in templates
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
        for has_all_keys in (False, True) if variables.get("tools") else ():
            plain = [plain_tool(tool, has_all_keys=has_all_keys) for tool in variables["tools"]]
            with contextlib.suppress(InputError):
                if prompt := render(template, {**variables, "tools": plain}, where):
                    break
        else:
            raise
    warnings.warn("the chat template fails for a tool's schema: the model sees a plain form of it.", stacklevel=2)
    return prompt


def plain_tool(tool: Any, *, has_all_keys: bool) -> Any:
    """Return a tool with a description, and with a plain schema of its parameters."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    parameters = {"type": "object", "properties": {}, "required": []} | plain_schema(
        function.get("parameters"), has_all_keys=has_all_keys
    )
    described = {**function, "description": function.get("description") or "", "parameters": parameters}
    return {**tool, "function": described}


def plain_schema(schema: Any, n_levels: int = MAX_LEVELS, *, has_all_keys: bool) -> dict[str, Any]:
    """Return a schema with one type, and with the keys that templates read in their usual form.

    has_all_keys: also those that the schema lacks. Jinja2 fails for some uses of them, which llama.cpp's interpreter
    prints as "".
    """
    if not isinstance(schema, Mapping) or n_levels == 0:
        schema = {}

    def plain_form(of: Any) -> dict[str, Any]:
        return plain_schema(of, n_levels - 1, has_all_keys=has_all_keys)

    kind, properties, required = _first_type(schema), schema.get("properties"), schema.get("required")
    description = schema.get("description")
    plain: dict[str, Any] = {"type": kind} if kind else {}
    if isinstance(description, str) or has_all_keys:
        plain["description"] = description if isinstance(description, str) else ""
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        plain["enum"] = schema["enum"]
    if kind == "object" or "properties" in schema:
        given = properties.items() if isinstance(properties, Mapping) else ()
        plain["properties"] = {name: plain_form(value) for name, value in given}
        plain["required"] = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        if has_all_keys:
            plain["additionalProperties"] = plain_form(schema.get("additionalProperties"))
    if kind == "array":
        plain["items"] = plain_form(schema.get("items"))
    return plain


def _first_type(schema: Mapping[str, Any]) -> str:
    """Return the first type of a schema except null; "" if it has none."""
    given = schema.get("type")
    given = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
    names = [TYPE_NAMES.get(name, name) for name in given]
    return next((name for name in names if name in TYPES - {"null"}), "")
