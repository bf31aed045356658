"""Progress of long jobs on stderr, on a terminal and in a file."""

from __future__ import annotations

import io
import queue
import re
import time
from functools import partial
from pathlib import Path

import pytest
import rich.console
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
    assert re.match(r"converting: 25%, 0:0\d", shown.splitlines()[0])


def test_a_quick_job_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress("converting") as show:
        show(1)
    assert capsys.readouterr().err == ""


def test_the_remaining_time_is_estimated_from_enough_work_and_counts_down() -> None:
    """The first pieces of a job may be slow (`quantize` announced 17 minutes with 11 seconds to go) or quick."""
    remaining = progress.Remaining()
    remaining.report(0.5, 100)
    remaining.report(0.52, 110)
    assert remaining.seconds(110) is None, "less than 5 % of the work"
    remaining.report(0.6, 110)
    assert [remaining.seconds(at) for at in (110, 111, 149)] == pytest.approx([40, 39, 1])
    assert remaining.seconds(150.1) is None, "the job is overdue"


def test_the_remaining_time_never_rises_while_it_is_shown() -> None:
    remaining, shown = progress.Remaining(), []
    remaining.report(0, 0)
    for fraction, at in ((0.5, 10), (0.55, 12), (0.56, 30), (0.57, 39), (0.58, 41), (0.9, 45)):
        remaining.report(fraction, at)
        shown.append(remaining.seconds(at))
    rest = 41 / 0.58 - 41
    assert shown == pytest.approx([10, 12 / 0.55 - 12, None, None, rest, 5])
    assert rest > 10, "a longer estimate is shown after ten seconds without one"


def test_the_bar_that_was_started_last_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one of the whole command appears after it."""
    events: list[str] = []

    class Drawing:
        def __init__(self, bar: progress.Bar) -> None:
            self.start, self.stop = (partial(events.append, f"{what} {bar.label}") for what in ("show", "hide"))

    monkeypatch.setattr(progress, "drawing", Drawing)
    monkeypatch.setattr(progress.console, "on_terminal", lambda: True)
    whole, part = progress.Bar("whole"), progress.Bar("part")
    whole.start(after_s=0.2)
    part.start()
    while len(progress.Bar._appeared) < 2:
        time.sleep(0.01)
    part.stop()
    whole.stop()
    assert events == ["show part", "hide part", "show whole", "hide whole"]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_bar_moves_each_second_and_never_backwards(clock: Clock) -> None:
    """Work that reports nothing for long moves its times; 100 % is the end of the work, which has another label."""
    bar = progress.Bar("converting", then="checking")
    lines = []
    bar.show(0.001)
    for at, fraction in ((1, 0.04), (2, 0.25), (3, None), (4, 0.2), (5, 0.9999), (6, 1.0), (7, 1.0), (8, None)):
        clock.now = at
        if fraction is not None:
            bar.show(fraction)
        lines.append(" ".join(filter(None, bar.parts())))
    assert lines == [
        "converting 4% 0:01",
        "converting 25% 0:02 about 0:06 left",
        "converting 25% 0:03 about 0:05 left",
        "converting 25% 0:04 about 0:04 left",
        "converting 99% 0:05 about 0:01 left",
        "checking 0:00",
        "checking 0:01",
        "checking 0:02",
    ]


def test_a_terminal_shows_the_latest_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar for a part of the work replaces that of the whole until the part ends."""
    monkeypatch.setattr(progress.console, "on_terminal", lambda: True)
    appeared: queue.Queue[tuple[str, str]] = queue.Queue()

    class Drawing:
        def __init__(self, bar: progress.Bar) -> None:
            self.label = bar.parts()[0]

        def start(self) -> None:
            appeared.put(("start", self.label))

        def stop(self) -> None:
            appeared.put(("stop", self.label))

    monkeypatch.setattr(progress, "drawing", Drawing)
    with progress.progress("converting", then="checking") as first, progress.progress_later("quantizing") as second:
        assert appeared.get(timeout=60) == ("start", "converting")
        second(0.5)
        assert [appeared.get(timeout=60) for _ in range(2)] == [("stop", "converting"), ("start", "quantizing")]
        first(1)
        second(1)
        assert [appeared.get(timeout=60) for _ in range(2)] == [("stop", "quantizing"), ("start", "checking")]
    assert appeared.get(timeout=60) == ("stop", "checking")
    assert appeared.empty()


def test_a_bar_started_again_while_it_appears_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the first start may have passed its delay. A bar that appears twice would stay after its end."""
    monkeypatch.setattr(progress.console, "on_terminal", lambda: True)
    monkeypatch.setattr(progress, "drawing", lambda _bar: pytest.fail("drawn"))
    bar = progress.Bar("reading")
    bar.start(after_s=60)
    bar._appear()  # in another thread than that of the start
    assert bar not in progress.Bar._appeared
    bar.stop()


def test_the_line_of_a_bar_is_drawn_anew(clock: Clock) -> None:
    """rich draws by the bar's own values, so that a bar whose work reports nothing moves as well."""
    bar = progress.Bar("converting", then="checking")
    drawn = progress.drawing(bar)

    def line() -> str:
        text = io.StringIO()
        rich.console.Console(file=text, width=100).print(drawn)
        return re.sub("[━╸╺ ]+", " ", text.getvalue()).strip()

    bar.show(0.1)
    clock.now = 10
    bar.show(0.55)
    first = line()
    clock.now = 12
    assert (first, line()) == ("converting 55% 0:10 about 0:10 left", "converting 55% 0:12 about 0:08 left")
    bar.show(1)
    assert line() == "checking 0:00"


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
