"""Number of torch's threads next to other programs."""

from __future__ import annotations

import pytest
import torch
from llama_eagle.native.processor.competition import Usage
from llama_eagle.train import threads
from llama_eagle.train.threads import AdaptiveThreads


class Machine:
    """A clock and the system's accounting. delayed: cores that the threads wait for, by their number."""

    def __init__(self, delayed: dict[int, float]) -> None:
        self.now, self.delay, self.delayed = 0.0, 0.0, delayed

    def run(self, adapted: AdaptiveThreads, seconds: float) -> list[int]:
        """Return the numbers of threads, without repetitions."""
        numbers = [adapted.n]
        for _ in range(int(seconds)):
            self.now += 1
            self.delay += self.delayed.get(torch.get_num_threads(), 0.0)
            adapted.after_step()
            numbers += [adapted.n] if adapted.n != numbers[-1] else []
        return numbers


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    number = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: number.__setitem__(0, n))
    return Machine({})


def adaptive(machine: Machine) -> AdaptiveThreads:
    return AdaptiveThreads(lambda: Usage(machine.delay, 0.0), lambda: machine.now)


def test_an_idle_machine_keeps_all(machine: Machine) -> None:
    machine.delayed = {4: 0.1}
    assert machine.run(adaptive(machine), 1000) == [4]


def test_cores_of_other_programs_are_left_to_them(machine: Machine) -> None:
    """Each number is tried again after a time that doubles."""
    machine.delayed = {4: 1.0, 3: 0.5}
    adapted = adaptive(machine)
    assert machine.run(adapted, threads.RETRY - 5) == [4, 3, 2]
    assert machine.run(adapted, threads.RETRY) == [2, 3, 2]
    assert machine.run(adapted, threads.RETRY) == [2]
    assert machine.run(adapted, 2 * threads.RETRY) == [2, 3, 2]
    machine.delayed = {}
    assert machine.run(adapted, 20 * threads.RETRY) == [2, 3, 4]
    machine.delayed = {4: 1.0}
    assert machine.run(adapted, 2 * threads.RETRY) == [4, 3, 4, 3]


def test_one_thread_is_the_least(machine: Machine) -> None:
    machine.delayed = dict.fromkeys(range(5), 2.0)
    assert machine.run(adaptive(machine), 60) == [4, 3, 2, 1]


def test_nothing_happens_without_an_accounting(machine: Machine) -> None:
    adapted = AdaptiveThreads(lambda: None, lambda: machine.now)
    assert machine.run(adapted, 100) == [4]
