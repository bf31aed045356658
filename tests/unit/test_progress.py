"""Progress of long jobs on stderr, where it is a file."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from llama_eagle import progress
from llama_eagle.quantize import collect


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


def test_the_remaining_time_is_estimated_from_enough_work_and_never_rises() -> None:
    """The first pieces of a job may be slow (`quantize` announced 17 minutes with 11 seconds to go) or quick."""
    remaining = progress.Remaining(done=0.5)
    assert remaining.seconds(0.5, 10) is None
    assert remaining.seconds(0.52, 10) is None, "less than 5 % of the work"
    shown = [remaining.seconds(*at) for at in ((0.6, 10), (0.7, 21), (0.75, 60), (0.8, 60), (0.9, 65), (0.99, 66))]
    assert shown == pytest.approx([40, 31.5, None, 31.5, 16.25, 66 / 49])


def test_progress_of_llama_imatrix_is_read_from_a_growing_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in waits in the middle of a line for the progress up to there."""
    program, seen = tmp_path / "llama-imatrix", tmp_path / "seen"
    program.write_text(f"""#!/bin/sh
printf '0.01 I compute_imatrix: computing over 4 chunks\\n[1]5.5,[2]6.5,'
for i in $(seq 1000); do test -e {seen} && break; sleep 0.01; done
test -e {seen} || exit 1
printf '[3]7.5,[4]8.5,\\n0.02 E load: a complaint\\nFinal estimate: PPL = 8.5000 +/- 0.1\\n'
""")
    program.chmod(0o755)
    monkeypatch.setattr(collect, "find_program", lambda name, remedy: program)
    told: list[float] = []

    def on_progress(share: float) -> None:
        told.append(share)
        seen.touch()

    found = collect._run(iter(["--model", "m.gguf"]), False, collect.CollectOptions(progress=on_progress))
    assert told == [0.5, 1.0]
    assert (found.status, found.perplexity, list(found.complaints)) == (0, 8.5, ["a complaint"])


def test_steps_are_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    say = progress.numbered(2)
    say("converting")
    say("measuring")
    assert capsys.readouterr().err.splitlines() == ["[1 of 2] converting", "[2 of 2] measuring"]
