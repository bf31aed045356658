"""Limits of llama-server's interpreter of templates: time, bytes and levels are counted wherever a template makes them.

`native/tests/render_templates.cpp` leaves a template a part of a limit, so small templates reach it; without it each of
them is rendered.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from fixtures.programs import program

pytestmark = pytest.mark.native

TIME, BYTES, DEPTH = "more than 10 s", "more than 1024 MiB", "nested deeper than 1000"


def repeated(step: str) -> str:
    return "{% set n = namespace(t=[], s='') %}{% for i in range(40) %}" + step + "{% endfor %}"


NESTED = repeated("{% set n.t = [n.t] %}")
CASES: dict[str, tuple[str, str]] = {
    "loops": ("{% for a in range(3) %}{% for b in range(3) %}{{ a }}{% endfor %}{% endfor %}", TIME),
    "range": ("{% for a in range(1000) %}{% endfor %}", BYTES),
    "range down": ("{% for a in range(0, -1000, -1) %}{% endfor %}", BYTES),
    "product": ("{{ 'ab' * 40000 }}", BYTES),
    "product of nothing": ("{% set x %}{% endset %}{{ x * 200000 }}", BYTES),
    "longer text": (repeated("{% set n.s = n.s ~ 'x' * 200 %}"), BYTES),
    "longer lists": (repeated("{% set n.t = n.t + [1, 2, 3] %}"), BYTES),
    "replace": ("{{ 'aaaaaaaaaa' | replace('a', 'b' * 900) | replace('b', 'c' * 20) }}", BYTES),
    "replace nothing": ("{{ 'aaaaaaaaaa' | replace('', 'b' * 900) | replace('', 'c' * 20) }}", BYTES),
    "indent": ("{{ 'a' | indent(200000) }}", BYTES),
    "indented lines": ("{{ 'a\n\n\n\n\n\n\n\n\n\n' | indent(20000, blank=true) }}", BYTES),
    "join": ("{{ range(300) | join('a' * 400) }}", BYTES),
    "json": ("{{ [[[[1]]]] | tojson(indent=40000) }}", BYTES),
    "recursion": ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}", DEPTH),
    "nested lists as JSON": (NESTED + "{{ n.t | tojson }}", DEPTH),
    "elif": ("{% if 0 %}" + "{% elif 0 %}" * 40 + "{% endif %}", DEPTH),
}
LEFT = {TIME: {"seconds": 0}, BYTES: {"bytes": 100_000}, DEPTH: {"levels": 25}}


def render(template: str, left: dict[str, int]) -> dict[str, Any]:
    request = {"template": template, "variables": {}, "left": left}
    done = subprocess.run(
        program("render_templates"), input=json.dumps(request) + "\n", capture_output=True, encoding="utf-8", check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_of_a_limit_is_enough_or_named(name: str) -> None:
    template, limit = CASES[name]
    assert "text" in render(template, {})
    assert limit in render(template, LEFT[limit]).get("error", "")
