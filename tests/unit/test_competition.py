"""The line about other programs that hold the cores, with times and accounting of a machine made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from llama_eagle.native.processor.competition import Competition, Usage, read_usage


@dataclass
class Machine:
    """A clock and accounting that advance with the rounds. Two cores, unless said otherwise."""

    n_cores: float = 2
    has_accounting: bool = True
    now: float = 0.0
    delay: float = 0.0
    cpu: float = 0.0
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.competition = Competition(self.told.append, self.n_cores, self.usage, lambda: self.now)

    def usage(self) -> Usage | None:
        return Usage(self.delay, self.cpu) if self.has_accounting else None

    def rounds(
        self, seconds: float, each: float, *, delayed: float = 0.0, cpu: float = 1.0, n_rows: int = 1, pause: float = 0
    ) -> None:
        """`seconds` of rounds of `each` second; shares of them that threads wait for a core, and compute."""
        until = self.now + seconds
        while self.now < until:
            self.now += each + pause
            self.delay += (each + pause) * delayed
            self.cpu += each * cpu
            self.competition.note(n_rows, each)


def test_rounds_that_wait_for_cores_are_reported_once() -> None:
    machine = Machine()
    machine.rounds(5, 0.02, cpu=2.0)
    machine.rounds(2, 0.1, delayed=0.5)
    assert not machine.told
    machine.rounds(20, 0.1, delayed=0.5)
    assert len(machine.told) == 1
    assert machine.told == ["other programs occupy the processor: rounds take about 5.0 times as long"]


def test_a_machine_that_was_busy_from_the_start() -> None:
    """There is no quick round to compare with: what threads waited says it."""
    machine = Machine()
    machine.rounds(6, 0.5, delayed=0.9, cpu=0.6)
    assert machine.told == ["other programs occupy the processor: threads wait for a core 60% of the time"]


def test_two_threads_with_half_a_core_each() -> None:
    """Their delays are those of two threads: half of the time, not all of it."""
    machine = Machine()
    machine.rounds(6, 0.5, delayed=1.0, cpu=1.0)
    assert machine.told == ["other programs occupy the processor: threads wait for a core 50% of the time"]


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda m: m.rounds(20, 0.2, cpu=0.1), id="disk"),
        pytest.param(lambda m: [m.rounds(0.5, 0.02 * 1.05**i, cpu=2.0) for i in range(100)], id="long context"),
        pytest.param(lambda m: [m.rounds(0.5, 0.02 * 1.01**i, delayed=0.35) for i in range(300)], id="and some load"),
        pytest.param(lambda m: m.rounds(20, 0.2, delayed=3.0, cpu=2.0), id="too many threads of its own"),
        pytest.param(lambda m: m.rounds(20, 0.04, delayed=0.5), id="twice as long"),
        pytest.param(lambda m: m.rounds(2.5, 0.2, delayed=0.8), id="short"),
        pytest.param(lambda m: m.rounds(20, 0.2, delayed=0.1, n_rows=9), id="other rows"),
        pytest.param(lambda m: m.rounds(60, 0.02, delayed=0.9, pause=5), id="a user who types"),
        pytest.param(
            lambda m: [(m.rounds(2, 0.2, delayed=0.8), m.rounds(2, 0.02, cpu=2.0)) for _ in range(5)], id="bursts"
        ),
    ],
)
def test_nothing_is_said_of(use: Callable[[Machine], object]) -> None:
    machine = Machine()
    machine.rounds(5, 0.02, cpu=2.0)
    use(machine)
    assert not machine.told


def test_nothing_is_said_where_the_system_counts_nothing() -> None:
    machine = Machine(has_accounting=False)
    machine.rounds(5, 0.02)
    machine.rounds(20, 0.5, delayed=0.9)
    assert not machine.told


def test_a_quota_that_its_own_threads_use_up() -> None:
    machine = Machine(n_cores=0.5)
    machine.rounds(20, 0.2, delayed=0.9, cpu=0.5)
    assert not machine.told


def test_threads_are_added_up(tmp_path: Path) -> None:
    """One that has just ended, or whose line is not understood, is left out."""
    for number, text in enumerate(["1000000000 2000000000 5", "500000000 0 1", "", "x y z"]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(text)
    (tmp_path / "gone").mkdir()
    assert read_usage(tmp_path) == Usage(2.0, 1.5)
    assert read_usage(tmp_path / "none") is None


def test_this_machine_counts() -> None:
    first = read_usage()
    if first is None:
        pytest.skip("this system counts no delays")
    second = read_usage()
    assert second is not None
    assert second.cpu >= first.cpu >= 0
