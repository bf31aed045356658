"""native/tests/gpu_machine.py: a step that fails stops no other, and the page says what happened."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "native" / "tests"))
gpu_machine: Any = importlib.import_module("gpu_machine")
Failed, page, perform = gpu_machine.Failed, gpu_machine.page, gpu_machine.perform
Machine: Any = gpu_machine.Machine
Result: Any = gpu_machine.Result


def machine(folder: Path, minutes: float = 1) -> Machine:
    return Machine(
        "stand-in",
        folder,
        argparse.Namespace(quick=True, backend_library=None, minutes=minutes, steps=None, library=None),
    )


def fails(machine: Machine, result: Result) -> None:
    raise Failed("it | broke")


def breaks(machine: Machine, result: Result) -> None:
    result.data = {"a": int("no number")}


def prints(machine: Machine, result: Result) -> None:
    result.summary = machine.run("sh", "-c", "echo said; echo noise >&2")[1].strip()


def exits(machine: Machine, result: Result) -> None:
    machine.run("sh", "-c", "echo why >&2; exit 7")


def test_steps_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"fails": fails, "breaks": breaks, "prints": prints, "exits": exits}
    monkeypatch.setattr(gpu_machine, "STEPS", steps)
    found = {result.name: result for result in perform(machine(tmp_path))}
    assert {name: result.ok for name, result in found.items()} == {
        "fails": False, "breaks": False, "prints": True, "exits": False,
    }  # fmt: skip
    assert found["prints"].summary == "said"
    assert found["exits"].summary == "sh ended with 7: why"
    assert "noise" in (tmp_path / "prints.log").read_text()
    lines = page(machine(tmp_path), list(found.values())).splitlines()
    assert "| fails | NO | 0 | it   broke |" in lines
    assert "| prints | yes | 0 | said |" in lines


def test_no_time_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "STEPS", {"prints": prints})
    (result,) = perform(machine(tmp_path, minutes=0))
    assert (result.ok, result.summary) == (None, "no time was left")


def test_nothing_is_tested_that_was_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "STEPS", {"build": fails, "prints": prints})
    assert [result.name for result in perform(machine(tmp_path))] == ["build"]


def test_what_the_scripts_call_is_there() -> None:
    folder = gpu_machine.ROOT / "native" / "tests"
    called = [
        name
        for script in folder.glob("*.sh")
        for name in re.findall(r'(?:[$]tests|dirname "[$]0"\))/([\w.]+)', script.read_text())
    ]
    assert "from_debian.sh" in called
    assert [name for name in called if not (folder / name).exists()] == []
