"""Our parts of builds for AMD's and Moore Threads' GPUs: call sites in ggml-cuda's dispatch, without our kernels."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.programs import ROOT, program
from llama_eagle.native.build import BUILD_INFO

pytestmark = pytest.mark.native

NATIVE = ROOT / "native"
TOOLS = Path(sys.executable).parent
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(two_backends LANGUAGES CXX)
set(EAGLE_NATIVE {native})
set(LLAMA_CPP_DIR ${{CMAKE_SOURCE_DIR}}/llama.cpp)
add_subdirectory(llama.cpp)
include({native}/cmake/EagleSources.cmake)
"""
BACKENDS = """
foreach (name HIP MUSA)
    string(TOLOWER ggml-${{name}} target)
    add_library(${{target}} SHARED dispatch.cpp)
    target_compile_definitions(${{target}} PRIVATE GGML_USE_${{name}})
    target_include_directories(${{target}} PRIVATE {emulator}/include {emulator} {ggml}/include {ggml}/src)
endforeach()
"""


def added_to_dispatch() -> str:
    """Return the lines that our patches add to ggml-cuda.cu."""
    found = []
    for patch in sorted((NATIVE / "patches").glob("*.patch")):
        _, *files = re.split(r"^--- a/", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for text in files:
            if text.startswith("ggml/src/ggml-cuda/ggml-cuda.cu\n"):
                found += re.findall(r"^\+(?!\+\+ )(.*)$", text, re.MULTILINE)
    return "\n".join(found)


def dispatch() -> str:
    """The headers that ggml-cuda.cu includes of us, and the functions that it calls."""
    added = added_to_dispatch()
    includes = re.findall(r'^#include "eagle_\w+\.cuh"$', added, re.MULTILINE)
    functions = sorted(set(re.findall(r"\beagle_\w+(?=\()", added)))
    assert includes and len(functions) > 4
    used = ", ".join(f"(const void *) {name}" for name in functions)
    return "\n".join(['#include "ggml-cuda/common.cuh"', *includes, f"const void * const used[] = {{{used}}};", ""])


def test_call_sites_compile(tmp_path: Path) -> None:
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(native=NATIVE))
    ggml = program(BUILD_INFO).parents[1] / "upstream" / "ggml"
    (folder / "CMakeLists.txt").write_text(BACKENDS.format(emulator=NATIVE / "tests/emulator", ggml=ggml))
    (folder / "dispatch.cpp").write_text(dispatch())
    ninja = f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}"
    run(TOOLS / "cmake", "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja", ninja)
    run(TOOLS / "cmake", "--build", tmp_path / "build")


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
