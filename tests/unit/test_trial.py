"""The trial of `check`: llama.cpp builds a model's graphs in a child process, once for each file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import llama_eagle
from fixtures.tiny_gguf import write_sliding_window_target
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import cache_dir
from llama_eagle.native.trials import decode, trial
from unit.test_check import rewritten

pytestmark = pytest.mark.native
SHELL = pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for the child")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose architecture has no table of ours."""
    monkeypatch.setenv("LLAMA_EAGLE_CACHE", str(tmp_path / "cache"))
    return write_sliding_window_target(tmp_path / "model.gguf", window=8)


def test_a_valid_file_is_tried_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial.graph_problem([model]) == ""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it is tried again")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", refuse)
        assert trial.graph_problem([model]) == ""
        os.utime(model, (1, 1))
        with pytest.raises(AssertionError, match="tried again"):
            trial.graph_problem([model])
    (cache_dir() / "trials").rename(cache_dir() / "old")
    (cache_dir() / "trials").write_text("no folder")  # a cache that cannot be written
    assert trial.graph_problem([model]) == ""


def test_check_reports_what_llama_cpp_refuses(model: Path, tmp_path: Path) -> None:
    bad = rewritten(model, tmp_path / "bad.gguf", drop="blk.1.ffn_up.weight")
    done = llama_eagle("check", bad, "--json")
    assert done.code == 5
    found = done.json
    assert not found["compatible"]
    assert [finding["file"] for finding in found["findings"]] == [str(bad)]
    (problem,) = found["problems"]
    assert "could not load it" in problem and "blk.1.ffn_up.weight" in problem


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a program that runs instead of the child."""
    child = folder / "child"
    child.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    return child


@SHELL
def test_a_child_that_ends_with_an_assertion(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = stand_in(tmp_path, monkeypatch)
    child.write_text("#!/bin/sh\necho 'loading' >&2\necho 'a.cpp:7: GGML_ASSERT(n > 0) failed' >&2\nkill -ABRT $$\n")
    expected = "llama.cpp ends the process while it builds the model's graph (GGML_ASSERT(n > 0) failed)"
    assert trial.graph_problem([model]) == f"{expected}. Convert or download it again"
    text = child.read_text().replace("#!/bin/sh\n", '#!/bin/sh\n[ "$4" = off ] && echo \'{"problem": ""}\' && exit\n')
    child.write_text(text)
    os.utime(model, (3, 3))
    assert trial.graph_problem([model]) == f"{expected} with flash attention. Run it with --flash-attn off"
    child.write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(trial, "MAX_SECONDS", 0.1)
    os.utime(model, (2, 2))
    assert trial.graph_problem([model]) == ""  # a slow machine says nothing about the file
    monkeypatch.setattr(decode, "MAX_SECONDS", 0.1)
    with pytest.raises(EnvironmentFailure, match="more than 0 s at the first decode"):
        decode.decode_logits(model, [1])


@SHELL
def test_a_killed_child_says_nothing_about_the_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch).write_text("#!/bin/sh\nkill -KILL $$\n")
    assert trial.graph_problem([model]) == ""
    with pytest.raises(EnvironmentFailure, match="killed at the first decode, presumably for lack of memory"):
        decode.decode_logits(model, [1])
