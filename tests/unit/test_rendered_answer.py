"""Work of the rendered answer: it grows with the length of the answer, not with its square."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from llama_eagle.cli import answer
from llama_eagle.cli.answer import RenderedAnswer

WIDTH, HEIGHT = 40, 12
LINES = {
    "a block of code": ("```\n", "x = 1\n"),
    "a list": ("", "- an item\n"),
    "a list with empty lines": ("", "- an item\n\n"),
    "a paragraph": ("", "a line\n"),
    "empty lines": ("", "\n"),
    "a block of code after a long paragraph": ("word " * 100 + "\n```\n", "x = 1\n"),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> RenderedAnswer:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", str(HEIGHT))
    monkeypatch.setattr("rich.live.Live.start", lambda _: None)  # no thread: the tests render
    monkeypatch.setattr("rich.live.Live.stop", lambda _: None)
    return RenderedAnswer()


@pytest.mark.parametrize("begin, line", LINES.values(), ids=LINES)
def test_a_long_block_is_parsed_a_few_times(
    rendered: RenderedAnswer, monkeypatch: pytest.MonkeyPatch, begin: str, line: str
) -> None:
    n_parsed, parser = 0, answer._parser

    class Counting:
        def parse(self, text: str) -> Any:
            nonlocal n_parsed
            n_parsed += len(text)
            return parser().parse(text)

    monkeypatch.setattr(answer, "_parser", Counting)
    monkeypatch.setattr(answer, "SHORT", 200)
    rendered.write(begin)
    for _ in range(10_000 // len(line)):
        rendered.write(line)
    assert n_parsed < 15 * 10_000


def test_only_the_end_of_a_long_block_is_wrapped(rendered: RenderedAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.text import Text

    wrapped, wrap = [], Text.wrap

    def counting(text: Text, *arguments: Any, **options: Any) -> Any:
        wrapped.append(len(text))
        return wrap(text, *arguments, **options)

    monkeypatch.setattr(Text, "wrap", counting)
    for i in range(5000):
        rendered.think(f" word{i}")
    tail = str(rendered._tail())
    assert wrapped[-1] < 2 * WIDTH * HEIGHT
    assert len(rendered._block.last(WIDTH * HEIGHT)) < 2 * WIDTH * HEIGHT / len(" word")
    assert tail.endswith("word4999") and tail.count("\n") == HEIGHT - 2


def test_the_shown_lines_of_a_paragraph_stay_as_they_are(rendered: RenderedAnswer) -> None:
    """They are wrapped again from their beginning, which moves once a screen."""
    beginnings = set()
    for i in range(4 * WIDTH * HEIGHT // 5):
        rendered.think("word ")
        if i * 5 > 2 * WIDTH * HEIGHT:
            size = len(rendered._block.text())
            beginnings.add(size - sum(len(text) for text, _ in rendered._block.last(WIDTH * HEIGHT)))
    assert len(beginnings) <= 3


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_a_block_of_code_is_rendered_when_it_closes(rendered: RenderedAnswer, fence: str) -> None:
    rendered.write(f"{fence}python\n")
    for _ in range(1000):
        rendered.write("``\n    ````\n~~~ x\n")
    assert rendered._block.pieces
    for piece in (fence[:2], fence[2:], "\n"):
        rendered.write(piece)
    assert not rendered._block.pieces
    rendered.write("After it.\n")
    assert rendered._block.text() == "After it.\n"
