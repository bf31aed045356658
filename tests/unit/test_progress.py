"""Progress of long jobs on stderr, where it is a file."""

from __future__ import annotations

import time

import pytest
from llama_eagle import progress


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.01)
    monkeypatch.setattr(progress, "NEXT_LINE_S", 0.01)
    shown = ""
    with progress.progress("converting") as show:
        show(0.25)
        while shown.count("\n") < 2:
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert shown.splitlines()[0] == "converting: 25%, 0:00, about 0:00 left"


def test_a_quick_job_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress("converting") as show:
        show(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0, "reading: 0%, 1:05"), (0.5, "reading: 50%, 1:05, about 1:05 left")]
)
def test_a_line_estimates_the_time_left(fraction: float, text: str) -> None:
    assert progress.line("reading", fraction, 65.0) == text


def test_steps_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    say = progress.numbered(2)
    say("converting")
    say("measuring")
    assert capsys.readouterr().err.splitlines() == ["[1 of 2] converting", "[2 of 2] measuring"]
