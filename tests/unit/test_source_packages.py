"""The source distribution and the preparation of llama.cpp in places without a home."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = (".ci/", ".github/")
UPSTREAM = ROOT / "native/cmake/upstream.py"
BUILD = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(tried C)
include("{}")
file(WRITE ${{CMAKE_BINARY_DIR}}/launcher "${{CMAKE_C_COMPILER_LAUNCHER}}")
"""


@pytest.mark.extended
def test_the_source_distribution_has_every_file(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("needs git's list of files and scikit-build-core")
    files = {name for name in listed.stdout.splitlines() if not name.startswith(LEFT_OUT) and (ROOT / name).exists()}
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert not files - packed
    assert not {name for name in packed - files if (ROOT / name).is_file() and name.startswith(LEFT_OUT)}


@pytest.mark.native
def test_the_package_has_the_licences_of_what_it_contains() -> None:
    files = distribution("llama-eagle").files or []
    names = {file.name for file in files if "licenses" in file.parts}
    assert {"LICENSE", "LICENSE-django", "LICENSE-jsonhpp"} <= names
    (notice,) = (file for file in files if file.parts[-4:] == ("llama_eagle", "lib", "licenses", "LICENSE"))
    assert "The ggml authors" in notice.locate().read_text(encoding="utf-8")


@pytest.mark.parametrize(("home", "is_used"), [("file/home", False), ("home", True)])
def test_downloads_are_kept_where_it_is_possible(tmp_path: Path, home: str, is_used: bool) -> None:
    """A packager's build has no home, or one that cannot be written."""
    (tmp_path / "file").touch()
    tree = tmp_path / "tree/native/cmake"
    tree.mkdir(parents=True)
    (tree / UPSTREAM.name).write_text(UPSTREAM.read_text(encoding="utf-8"), encoding="utf-8")
    unset = ("LLAMA_EAGLE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA")
    outside = {name: value for name, value in os.environ.items() if name not in unset}
    command = [sys.executable, "-c", "import upstream; print(upstream.cache_dir())"]
    done = subprocess.run(
        command, cwd=tree, env=outside | {"HOME": str(tmp_path / home)}, capture_output=True, text=True, check=True
    )
    expected = tmp_path / "home/.cache/llama-eagle/upstream" if is_used else tmp_path / "tree/build/downloads"
    assert Path(done.stdout.strip()) == expected
    assert expected.is_dir()


@pytest.mark.skipif("sys.platform == 'win32'", reason="the stand-in for ccache is a shell script")
@pytest.mark.parametrize(
    ("script", "disabled", "is_used"),
    [('exec "$@"', "", True), ('exec "$@"', "1", False), ("echo no home >&2; exit 1", "", False)],
)
def test_a_ccache_that_fails_or_is_disabled_is_not_used(
    tmp_path: Path, script: str, disabled: str, is_used: bool
) -> None:
    programs, source, build = (tmp_path / name for name in ("programs", "source", "build"))
    programs.mkdir()
    source.mkdir()
    (programs / "ccache").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "ccache").chmod(0o755)
    (source / "CMakeLists.txt").write_text(PROJECT.format((ROOT / "native/cmake/Ccache.cmake").as_posix()))
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake is not None
    outside = {name: value for name, value in os.environ.items() if not name.endswith("_COMPILER_LAUNCHER")}
    outside |= {"PATH": f"{programs}:{outside['PATH']}", "CCACHE_DISABLE": disabled}
    subprocess.run([cmake, "-S", source, "-B", build], env=outside, check=True, capture_output=True)
    launcher = (build / "launcher").read_text()
    assert launcher == (str(programs / "ccache") if is_used else "")
