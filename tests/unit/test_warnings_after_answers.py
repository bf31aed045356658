"""Warnings wait for the end of an answer: those about busy cores, and those of a draft."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from pathlib import Path

import pytest
from llama_eagle import cli, console
from llama_eagle.cli.answer import PlainAnswer, RenderedAnswer, make_answer

WARNING = "warning: busy\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_answer() -> None:
    """End an answer that another test of this process has left."""
    console.end_answer()


def one_stream(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    """Put stdout and stderr on one stream, which each test does itself: pytest replaces them after its fixtures."""
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_before_an_answer_it_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_stream(monkeypatch, io.StringIO())
    console.warn_after_answer("busy")
    assert screen.getvalue() == WARNING


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (["one "], ["two", " three\nfour"], f"one two three\nfour\n{WARNING}"),
        (["one\n"], ["two"], f"one\ntwo\n{WARNING}"),
        (["one"], ["\n\n"], f"one\n\n\n{WARNING}"),
        ([], ["one"], f"{WARNING}one\n"),
    ],
)
def test_a_plain_answer(before: list[str], after: list[str], shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_stream(monkeypatch, io.StringIO())
    answer = make_answer(plain=True)
    assert isinstance(answer, PlainAnswer)
    for piece in before:
        answer.write(piece)
    console.warn_after_answer("busy")
    for piece in after:
        answer.write(piece)
    answer.end()
    assert screen.getvalue() == shown


def test_warnings_of_the_library_wait_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a draft whose memory begins to slide."""
    screen = one_stream(monkeypatch, io.StringIO())
    answer = make_answer(plain=True)
    answer.think("let me\n")
    cli._show_warning("busy", UserWarning)
    answer.think("see")
    answer.end_thinking()
    answer.write("yes")
    answer.end()
    assert screen.getvalue() == f"let me\nsee\n\nyes\n{WARNING}"


def test_an_error_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_stream(monkeypatch, io.StringIO())
    answer = make_answer(plain=True)
    answer.write("one")
    console.warn_after_answer("busy")
    answer.close()
    assert screen.getvalue().endswith(WARNING)


def test_a_rendered_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_stream(monkeypatch, Terminal())
    monkeypatch.setattr("rich.live.Live.start", lambda _: None)
    monkeypatch.setattr("rich.live.Live.stop", lambda _: None)
    monkeypatch.setenv("TERM", "xterm")
    answer = RenderedAnswer()
    answer.write("one ")
    console.warn_after_answer("busy")
    answer.write("two\n\nthree")
    assert "busy" not in screen.getvalue() and "two" in screen.getvalue()
    answer.end()
    assert screen.getvalue().split()[-3:] == ["three", "warning:", "busy"]


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_commands_that_answer_wait(name: str) -> None:
    """`run` chats by the code of `chat`."""
    source = Path(str(import_module(f"llama_eagle.cli.commands.{name}").__file__)).read_text("utf-8")
    assert "report_to(console.warn_after_answer)" in source
