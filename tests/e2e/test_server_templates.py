"""Chat templates that take for ever, or all memory, when a message asks for it: that request ends, the server goes on.

llama.cpp's interpreter has no bounds of its own; `serve` tries a template with one message, and this one is fine then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import write_target

pytestmark = pytest.mark.native

TIME, BYTES, DEPTH = "more than 10 s", "more than 1024 MiB", "nested deeper than 1000"


def repeated(step: str, n: int = 60) -> str:
    return "{% set n = namespace(t=['x'], s='x') %}{% for i in range(" + str(n) + ") %}" + step + "{% endfor %}"


BOMBS = {
    "loops": ("{% for a in range(1000) %}" * 3 + "{% endfor %}" * 3, TIME),
    "range": ("{% for a in range(10000000000) %}{% endfor %}", BYTES),
    "range down": ("{% for a in range(0, -10000000000, -1) %}{% endfor %}", BYTES),
    "product": ("{{ 'ab' * 100000000000 }}", BYTES),
    "product of nothing": ("{% set x %}{% endset %}{{ x * 100000000000 }}", BYTES),
    "doubled text": (repeated("{% set n.s = n.s ~ n.s %}"), f"{TIME}|{BYTES}"),
    "doubled lists": (repeated("{% set n.t = n.t + n.t %}"), BYTES),
    "replace": ("{{ ('a' * 100000) | replace('a', 'b' * 100000) }}", BYTES),
    "replace nothing": ("{{ ('a' * 100000) | replace('', 'b' * 100000) }}", BYTES),
    "indent": ("{{ 'a' | indent(100000000000) }}", BYTES),
    "indented lines": ("{{ ('a\n' * 100000) | indent(100000) }}", BYTES),
    "join": ("{{ range(100000) | join('a' * 100000) }}", BYTES),
    "json": ("{{ [[[[1]]]] | tojson(indent=2000000000) }}", BYTES),
    "lists of lists": (repeated("{% set n.t = [n.t, n.t] %}") + "{{ n.t | tojson }}", f"{TIME}|{BYTES}"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DEPTH),
    "a list within itself": ("{% set n = namespace() %}{% set n.t = n %}{{ n | tojson }}", DEPTH),
    "printed lists of lists": (repeated("{% set n.t = [n.t, n.t] %}") + "{{ n.t }}", f"{TIME}|{BYTES}"),
    "a list within itself, compared": ("{% set n = namespace() %}{% set n.t = n %}{{ n == n }}", DEPTH),
    "a printed list within itself": ("{% set n = namespace() %}{% set n.t = n %}{{ n }}", DEPTH),
}
# Of what a request may take, which renders its last turn more than once.
HALF = (
    "{%- if asked == 'half' or messages[0].content == 'half' %}{%- for i in range(6) %}"
    "{%- set x = 'a' * 1000000 %}{%- endfor %}{%- endif %}"
)
SLOW = {"doubled text", "lists of lists", "printed lists of lists"}  # as slow as the limit, and the loops are
TEMPLATE = (
    "{%- set asked = messages[-1].content %}"
    + "".join(f"{{%- if asked == '{name}' %}}{text}{{%- endif %}}" for name, (text, _) in BOMBS.items())
    + HALF
    + "{%- for message in messages %}{{ message.content }}{%- endfor %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("model")
    write_target(folder / "target.gguf")
    (folder / "template.jinja").write_text(TEMPLATE)
    given = ("-m", folder / "target.gguf", "-d", "none", "-c", 2048, "-t", 1, "--parallel", 2)
    with serve(*given, "--", "--chat-template-file", folder / "template.jinja") as running:
        yield running


def chat(server: Served, *contents: str) -> tuple[int, str]:
    messages = [{"role": "user", "content": content} for content in contents]
    status, answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2, "temperature": 0})
    return status, str(answer)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in BOMBS])
def test_bombs(server: Served, name: str) -> None:
    status, answer = chat(server, name)
    assert status == 400 and re.search(BOMBS[name][1], answer)
    assert server.process.poll() is None
    assert chat(server, "abc")[0] == 200


def test_all_renderings_of_a_request_share_its_limits(server: Served) -> None:
    status, answer = chat(server, "half")
    assert status == 400 and re.search(BYTES, answer)


def test_long_conversations_are_within_the_limits(server: Served) -> None:
    """The template's limits allow them; this prompt is longer than the context."""
    status, answer = chat(server, *["abc " * 100] * 2000)
    assert status == 400 and "context" in answer


def test_a_template_whose_reader_recurses(tmp_path: Path) -> None:
    """Over each elif: it is refused before the server listens. llama-server may end before it logs the cause."""
    write_target(tmp_path / "target.gguf")
    (tmp_path / "template.jinja").write_text("{% if 0 %}" + "{% elif 0 %}" * 100_000 + "{% endif %}")
    given = ("-m", tmp_path / "target.gguf", "-d", "none", "--", "--chat-template-file", tmp_path / "template.jinja")
    reason = "(the supplied chat template|failed to apply template: the chat template calls itself)"
    with pytest.raises(AssertionError, match=f"refuses its arguments: {reason}"), serve(*given):
        pass


def test_the_turns_before_the_last_are_rendered_once(server: Served) -> None:
    status, answer = chat(server, "half", "abc", "def")
    assert status == 200, answer
