"""The server's interpreter prints null, lists, objects, numbers and quotes in templates as transformers does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fixtures.programs import program
from fixtures.upstream import source_folder
from transformers.utils.chat_template_utils import _compile_jinja_template

pytestmark = pytest.mark.native

USER = {"role": "user", "content": "Q"}
PROPERTIES = {
    "a": {"type": ["string", "null"], "default": None, "description": 'it\'s a "test"\nline\\'},
    "b": {"enum": ["x", None, 1.5, True], "default": ["q", "it's", 'say "x"', "' and \"", "\t\u00a0\u200bé\u2028😀"]},
    "c": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": {"k": None, "l": [1.0, 1e20, 1e-7]}},
    "d": {"type": "array", "items": {"type": "object", "properties": {"z": {"type": "number"}}}, "default": []},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["a", "b"]}
FUNCTION = {"name": "f", "description": 'Tool\'s "d"', "parameters": PARAMETERS, "return": {"type": ["string", "null"]}}
TOOLS = [{"type": "function", "function": FUNCTION}]
ARGUMENTS = {"a": None, "b": ["x", None, True, 1.0, "it's"], "c": {"l": ["a\nb", '"', {"m": 1e16}]}, "d": []}
CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
RESULT = {"role": "tool", "name": "f", "content": "R", "tool_call_id": "call00001"}
CHATS: list[list[Any]] = [
    [{"role": "system", "content": "S"}, USER],
    *([USER, {"role": "assistant", "content": text, "tool_calls": [CALL]}, RESULT] for text in (None, "", "A")),
]
# Functionary 3.1: jinja2 escapes what follows a text that is marked as safe.
OTHERS = ("functionary-medium-v3.1",)
VALUES = [
    "{{ x }}", "{{ [x] }}", "{{ {'k': x} }}", "{{ x ~ '|' ~ nothing ~ [x] }}", "{{ [x, 1]|join(', ') }}",
    "{{ [x]|string }}", "{% set y %}{{ x }}{{ [[x]] }}{% endset %}{{ y }}",
    "{% macro m(v) %}{{ v }}{% endmacro %}{{ m(x) }}",
    "{{ (x ~ '') == x|string }} {{ (x ~ 'b') == x|string }} {{ ('a' ~ x) == ('a' ~ x) }}",
]  # fmt: skip
TEXTS = ["", "'", '"', "'\"", "\\", "\x00\x1f\x7f\x80\u00ad", "\ue000\ufeff", "\U000e0001\U0001f600", "é日"]
NUMBERS = [0, -1, 2**53 + 1, 1.0, 0.1, 1e16, 1e15, 1e-4, 1e-5, 1.5e300, True, False, None]


def prompts(template: str, variables: list[dict[str, Any]]) -> list[tuple[str | None, str | None]]:
    """Return transformers' texts and ours; None for an error."""
    compiled = _compile_jinja_template(template)
    lines = "".join(json.dumps({"template": template, "variables": each}) + "\n" for each in variables)
    done = subprocess.run(program("render_templates"), input=lines, capture_output=True, encoding="utf-8", check=True)
    found = []
    for each, line in zip(variables, done.stdout.split("\n")[:-1], strict=True):
        try:
            expected = compiled.render(**each)
        except Exception:
            expected = None
        found.append((expected, json.loads(line).get("text")))
    return found


@pytest.mark.parametrize("path", sorted((source_folder() / "models/templates").glob("*.jinja")), ids=lambda p: p.stem)
def test_templates(path: Path) -> None:
    """Calls whose arguments and tools whose schemas contain every kind of value."""
    common = {"bos_token": "<B>", "eos_token": "<E>", "add_generation_prompt": True, "date_string": "now"}
    if any(name in path.name for name in OTHERS):
        return
    variables = [{**common, "messages": chat, "tools": tools} for chat in CHATS for tools in (TOOLS, None)]
    found = prompts(path.read_text(), variables)
    assert all(ours == expected for expected, ours in found if expected is not None)


@pytest.mark.parametrize("template", VALUES)
def test_values(template: str) -> None:
    values: list[Any] = [*TEXTS, *NUMBERS, [], {}, [[]], [{"a": ["b", None]}]]
    for expected, ours in prompts(template, [{"x": value} for value in values]):
        assert ours == expected


def test_lists_and_objects_are_compared() -> None:
    part = {"type": "text", "text": "a"}
    values: list[Any] = [
        [], {}, [[]], [part], [part, part], [{**part, "text": "b"}], {"content": [part], "role": "user"},
        {"role": "user", "content": [part]}, {"role": "user", "content": "a"}, {"a": None}, {"b": None}, [{}, 1],
    ]  # fmt: skip
    template = "{{ x == y }} {{ x != y }} {{ [x] == [y] }} {{ x in [y, 1] }} {{ {'k': x} == {'k': y} }}"
    pairs = [{"x": x, "y": y} for x in values for y in values]
    for given, (expected, found) in zip(pairs, prompts(template, pairs), strict=True):
        assert found == expected, given


def test_variables_are_not_copied_for_each_item_of_a_loop() -> None:
    """Copying them takes longer than a rendering may. A loop with a condition has its own variables."""
    template = "{% for i in range(5000) %}{% if loop.last %}{{ i }}{% endif %}{% endfor %}{{ i }}"
    scoped = "{% set i = 7 %}{% for i in range(4) if i != a1 %}{{ i }}{% set a1 = 9 %}{% endfor %}{{ i }}{{ a1 }}"
    for text, n_variables in ((template, 5000), (scoped, 2)):
        ((expected, found),) = prompts(text, [{f"a{n}": n for n in range(n_variables)}])
        assert found == expected
