"""Number of threads next to other programs."""

from __future__ import annotations

from llama_eagle.native.processor.adaptive import RETRY, AdaptiveThreads
from llama_eagle.native.processor.competition import Usage


class Machine:
    """A clock and the system's accounting. delayed: cores that the threads wait for, by their number."""

    def __init__(self, delayed: dict[int, float]) -> None:
        self.now, self.delay, self.delayed, self.n = 0.0, 0.0, delayed, 4

    def set_threads(self, n: int) -> None:
        self.n = n

    def adaptive(self) -> AdaptiveThreads:
        return AdaptiveThreads(self.n, self.set_threads, lambda: Usage(self.delay, 0.0), lambda: self.now)

    def run(self, adapted: AdaptiveThreads, seconds: float) -> list[int]:
        """Return the numbers of threads, without repetitions."""
        numbers = [self.n]
        for _ in range(int(seconds)):
            self.now += 1
            self.delay += self.delayed.get(self.n, 0.0)
            adapted.after_step()
            numbers += [self.n] if self.n != numbers[-1] else []
        return numbers


def test_an_idle_machine_keeps_all() -> None:
    machine = Machine({4: 0.1})
    assert machine.run(machine.adaptive(), 1000) == [4]


def test_cores_of_other_programs_are_left_to_them() -> None:
    """Each number is tried again after a time that doubles."""
    machine = Machine({4: 1.0, 3: 0.5})
    adapted = machine.adaptive()
    assert machine.run(adapted, RETRY - 5) == [4, 3, 2]
    assert machine.run(adapted, RETRY) == [2, 3, 2]
    assert machine.run(adapted, RETRY) == [2]
    assert machine.run(adapted, 2 * RETRY) == [2, 3, 2]
    machine.delayed = {}
    assert machine.run(adapted, 20 * RETRY) == [2, 3, 4]
    machine.delayed = {4: 1.0}
    assert machine.run(adapted, 2 * RETRY) == [4, 3, 4, 3]


def test_one_thread_is_the_least() -> None:
    machine = Machine(dict.fromkeys(range(5), 2.0))
    assert machine.run(machine.adaptive(), 60) == [4, 3, 2, 1]


def test_nothing_happens_without_an_accounting() -> None:
    machine = Machine({})
    assert machine.run(AdaptiveThreads(4, machine.set_threads, lambda: None, lambda: machine.now), 100) == [4]
