"""Plugin of pytest for mutants.py: records which tests reach the places of changes, then runs these for each change.

MUTANTS_PLAN names a JSON file, number of a change -> tests. The tests of each run in a fork of one process that has
imported and collected everything, until one fails. Without it all tests run, with all changes switched off.
"""

from __future__ import annotations

import json
import multiprocessing.forkserver
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import mutant_switches
import psutil
import pytest

PLAN = "MUTANTS_PLAN"
TIMES = mutant_switches.FOLDER / "times"  # of the recorded tests
RESULTS = mutant_switches.FOLDER / "results"
PROGRESS = mutant_switches.FOLDER / "progress"
PATIENCE_S, TICK_S = 100.0, 0.05  # a change may make a test endless


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if PLAN not in os.environ:
        mutant_switches.current().write_text(item.nodeid)
    mutant_switches.test = item.nodeid
    yield
    mutant_switches.test = ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if PLAN in os.environ:
        if report.failed:
            _tell("failed", report.nodeid)
            time.sleep(PATIENCE_S)  # until it is killed: it may have started servers
    elif mutant_switches.WORKER not in os.environ:
        with TIMES.open("a") as file:
            print(json.dumps([report.nodeid, report.when == "setup", report.failed, report.duration]), file=file)


def _tell(*words: str) -> None:
    with PROGRESS.open("a") as file:
        print(json.dumps(words), file=file)


def _told() -> list[str] | None:
    lines = PROGRESS.read_text().split("\n")[:-1]
    return json.loads(lines[-1]) if lines else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if PLAN not in os.environ:
        return None
    items = {item.nodeid: item for item in session.items}
    servers = _start_servers()
    plan = json.loads(Path(os.environ[PLAN]).read_text())
    for number, names in ((int(number), names) for number, names in plan.items()):
        left = [items[name] for name in names if name in items]
        while (test := _first_failure(number, left, servers)) and not _is_caught(number, items[test], servers):
            left.remove(items[test])
        with RESULTS.open("a") as file:
            print(number, test, file=file)
    for server in servers:
        server.kill()
    return True


def _is_caught(number: int, test: pytest.Item, servers: Sequence[psutil.Process]) -> bool:
    """Return True if this test fails on its own, too, and passes without the change."""
    return bool(_first_failure(number, [test], servers)) and not _first_failure(mutant_switches.OFF, [test], servers)


def _start_servers() -> list[psutil.Process]:
    """Start the processes that fork for tests, once for all changes."""
    from fixtures import forks

    for command in ("generate", "train"):
        forks.address([command], os.environ)
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(forks.IN_POOLS))
    server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    server.ensure_running()
    server.ensure_running = lambda: None  # it would look for a child, which it is not in a fork
    return [psutil.Process(pid) for pid in (*(each.pid for each in forks._servers), server._forkserver_pid)]


def _first_failure(number: int, items: Sequence[pytest.Item], servers: Sequence[psutil.Process]) -> str:
    """Run tests in a fork with this change. Return the first that fails, ends the process or takes too long."""
    mutant_switches.ACTIVE.write_text(str(number))
    PROGRESS.write_text("")
    pid = os.fork()
    if pid == 0:
        _run(items)
    ticks, told, has_ended = 0, ["runs", ""], False
    while told[0] == "runs" and not has_ended and ticks * TICK_S < PATIENCE_S:
        time.sleep(TICK_S)  # ticks are counted, because all processes may be stopped for a while
        has_ended = bool(os.waitpid(pid, os.WNOHANG)[0])
        before, told = told, _told() or told
        ticks = ticks + 1 if told == before else 0
    if not has_ended:
        _kill(psutil.Process(pid))
        os.waitpid(pid, 0)
    for server in servers:
        _kill(*server.children(recursive=True))
    return "" if told[0] == "passed" else told[1]


def _kill(*processes: psutil.Process) -> None:
    for process in processes:
        with_children = [process, *process.children(recursive=True)] if process.is_running() else []
        for each in with_children:
            if each.is_running():
                each.kill()


def _run(items: Sequence[pytest.Item]) -> NoReturn:
    try:
        os.setsid()
        for item, following in zip(items, [*items[1:], None], strict=True):
            _tell("runs", item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        _tell("passed", "")
    finally:
        sys.stdout.flush()
        os._exit(0)
