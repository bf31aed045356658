"""Tools that a conversation of Anthropic's API defers, adds or removes.

The beginning of the prompt stays as it was: definitions of added tools are shown where they are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from llama_eagle.serving.requests.bodies import TOOL_PLACES

Tool = dict[str, Any]


class OfferedTools:
    """The tools of a request, while its messages are read in their order. given: as the request has them."""

    def __init__(self, given: Iterable[Any]) -> None:
        self._tools: dict[str, Tool] = {}
        self._shown: set[str] = set()  # in the beginning of the prompt
        self._offered: set[str] = set()  # here
        for tool in given:
            name = _name(tool)
            self._tools[name] = tool if isinstance(tool, dict) else {}
            if self._tools[name].get("defer_loading") is not True:
                self._shown.add(name)
                self._offered.add(name)

    def add(self, names: Sequence[str]) -> str:
        """Offer tools from here on. Return the text that shows them."""
        unknown = [f"There is no tool {name}.\n" for name in names if name not in self._tools]
        known = [name for name in names if name in self._tools]
        self._offered.update(known)
        lines = [f"<function>{_definition(self._tools[name])}</function>\n" for name in known]
        return "".join(unknown) + (f"<functions>\n{''.join(lines)}</functions>" if lines else "")

    def change(self, block: dict[str, Any]) -> str:
        """Add or remove the tool of a block. Return the text that says so."""
        tool = block.get("tool") or {}
        definition = tool.get("definition") if isinstance(tool, dict) else None
        name = _name(tool if definition is None else definition)
        if block["type"] == "tool_removal":
            self._offered.discard(name)
            return f"The tool {name} is no longer available."
        if isinstance(definition, dict) and definition.get("type") in (None, "", "custom"):
            self._tools[name] = definition
        return f"From here on, this tool is available:\n{self.add([name])}"

    def chat_tools(self) -> dict[str, Any]:
        """Return keys of a chat's body: the tools in OpenAI's form, and which of them have places of their own."""
        names = [name for name in self._tools if name in self._shown | self._offered]
        late = [name for name in names if name not in self._shown]
        withdrawn = [name for name in names if name not in self._offered]
        found: dict[str, Any] = {}
        if names:
            found["tools"] = [{"type": "function", "function": _function(self._tools[name])} for name in names]
        if late or withdrawn:
            found[TOOL_PLACES] = {"not_at_beginning": late, "not_offered": withdrawn}
        return found


def _name(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def _definition(tool: Tool) -> str:
    function = {key: value for key, value in sorted(_function(tool).items()) if key != "strict"}
    return json.dumps(function, ensure_ascii=False, separators=(",", ":"))


def _function(tool: Tool) -> Tool:
    strict = {"strict": True} if tool.get("strict") is True else {}
    return {
        "name": tool.get("name", ""), "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {}, **strict,
    }  # fmt: skip
