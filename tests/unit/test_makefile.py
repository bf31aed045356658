"""The Makefile's set-up, with a stand-in for Python that records its calls."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

# `-m venv` copies it to .venv. BROKEN: the environment has no pip; OLD: the version check fails.
PYTHON = """#!/bin/sh
echo "$CMAKE_ARGS|$*" >> calls
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
    "-m pip --version") test ! -e BROKEN; code=$?; rm -f BROKEN; exit $code;;
    -c*) test ! -e OLD;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of the files that the set-up reads, in a folder with a space."""
    root = tmp_path / "a tree ö"
    (root / "native").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt", "native/UPSTREAM"):
        shutil.copyfile(ROOT / name, root / name)
    (root / "python").write_text(PYTHON)
    (root / "python").chmod(0o755)
    return root


def make(tree: Path, *arguments: str) -> tuple[int, list[str]]:
    """Return make's exit code and the recorded calls."""
    outside = {name: value for name, value in os.environ.items() if name not in ("CMAKE_ARGS", "MAKEFLAGS", "LOCKED")}
    command = ["make", "PYTHON=./python", *arguments]
    code = subprocess.run(command, cwd=tree, env=outside, capture_output=True, timeout=60).returncode
    calls = tree / "calls"
    return code, calls.read_text().splitlines() if calls.exists() else []


def test_a_second_install_does_nothing(tree: Path) -> None:
    code, calls = make(tree, "install")
    assert code == 0
    assert {call.partition("--no-compile ")[2] for call in calls} > {
        "--group dev",
        "--no-build-isolation --no-deps -e .",
    }
    assert make(tree, "install") == (0, calls)


@pytest.mark.parametrize("locked", [[], ["LOCKED=1"]])
def test_pip_does_not_keep_a_wheel_without_a_library(tree: Path, locked: list[str]) -> None:
    """pip 26.3's cache knows the source of a wheel, not CMAKE_ARGS: other environments would get it."""
    code, calls = make(tree, "install", *locked)
    made = [call for call in calls if call.startswith("-DLLAMA_BUILD=OFF|")]
    assert code == 0
    assert made
    assert all("--no-cache-dir" in call for call in made)


def test_what_is_edited_during_an_install_is_built_by_the_next(tree: Path) -> None:
    python = tree / "python"
    python.write_text(PYTHON.replace("esac", '    *"--no-deps -e .") sleep 0.1; touch CMakeLists.txt;;\nesac'))
    assert make(tree, "install")[0] == 0
    python.rename(tree / ".venv/bin/python").write_text(PYTHON)
    shutil.copy(tree / ".venv/bin/python", python)
    code, calls = make(tree, "install")
    assert code == 0 and [call.endswith("--no-deps -e .") for call in calls].count(True) == 2
    assert make(tree, "install") == (0, calls)


@pytest.mark.parametrize("part", ["--group dev", "--no-deps -e ."])
def test_each_half_of_an_install_can_fail(tree: Path, part: str) -> None:
    """They run at the same time. The next install repeats it."""
    python = tree / "python"
    python.write_text(PYTHON.replace("esac", f'    *"{part}") exit 1;;\nesac'))
    assert make(tree, "install")[0] == 2
    python.rename(tree / ".venv/bin/python").write_text(PYTHON)
    shutil.copy(tree / ".venv/bin/python", python)
    code, calls = make(tree, "install")
    assert code == 0 and calls[-1].endswith(part)


@pytest.mark.parametrize("args", ['-DCMAKE_CXX_FLAGS="-O2 -g"', "-DNAME='a b'", "-DNAME=$(x)"])
def test_options_with_quotes_reach_the_build(tree: Path, args: str) -> None:
    expected = args.replace("$(x)", "")  # make's own variable
    code, calls = make(tree, "install", f"CMAKE_ARGS={args}")
    assert code == 0
    (build,) = (call for call in calls if call.endswith("--no-deps -e ."))
    assert build.startswith(f"-DLLAMA_EAGLE_SERVER=ON -DLLAMA_EAGLE_TESTS=ON {expected}|")


def test_an_environment_without_pip_is_completed(tree: Path) -> None:
    (tree / ".venv/bin").mkdir(parents=True)
    shutil.copy(tree / "python", tree / ".venv/bin/python")
    (tree / "BROKEN").touch()
    code, calls = make(tree, "install")
    assert code == 0
    assert "|-m venv .venv" in calls


def test_an_old_python_makes_no_environment(tree: Path) -> None:
    (tree / "OLD").touch()
    code, _ = make(tree, "install")
    assert code == 2
    assert not (tree / ".venv").exists()
