"""Output files: no source is overwritten, and no ending leaves a temporary file."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.tiny_gguf import write_target
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import EnvironmentFailure, InputError, UsageError
from llama_eagle.files import refuse_sources, temporary_next_to, write_whole
from llama_eagle.gguf.header import read_header
from llama_eagle.gguf.sidecars import peek_architecture
from llama_eagle.hub import hub_errors
from llama_eagle.quantize.imatrix import read_imatrix

HOLDER = """
import sys, time
from pathlib import Path
from llama_eagle.files import temporary_next_to
path = Path(sys.argv[1])
with (
    temporary_next_to(path) as (outer,),
    temporary_next_to(outer, 2) as (first, second),
    temporary_next_to(path) as (other,),
):
    other.write_bytes(b"the other half")
    second.write_bytes(b"half a file")
    second.replace(outer)
    print("ready", flush=True)
    time.sleep(60)
"""


def restore_signals() -> None:
    """Under nohup, or in a shell's background, these tests' processes would ignore them."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def start_holder(output: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, output], stdout=subprocess.PIPE, text=True, preexec_fn=restore_signals
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    process = start_holder(tmp_path / "out.gguf")
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(number)
    assert process.wait(10) == -number
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_cleaning_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, calls = shutil.rmtree, []

    def interrupted(*arguments: Any, **options: Any) -> None:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # it would end here, and the folder stay
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "out.gguf", lambda path: path.write_text("whole"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_the_next_run_clears_what_a_killed_one_has_left(tmp_path: Path) -> None:
    output, other = tmp_path / "out.gguf", tmp_path / "other.gguf"
    living, killed, of_another = start_holder(output), start_holder(output), start_holder(other)
    for process in (killed, of_another):
        process.kill()
        process.wait()
    assert len(list(tmp_path.iterdir())) == 6  # two each
    write_whole(output, lambda path: path.write_text("whole"))
    kept = sorted(path.name.split(".")[1] for path in tmp_path.iterdir() if path != output)
    for path in tmp_path.iterdir():  # a minute later
        os.utime(path, (0, 0))
    write_whole(output, lambda path: path.write_text("whole"))
    late = sorted(path.name.split(".")[1] for path in tmp_path.iterdir() if path != output)
    living.kill()
    living.wait()
    assert late == ["out", "out"]
    assert kept == [
        "other",
        "other",
        "out",
        "out",
    ]  # what may be new, and what is held
    assert output.read_text() == "whole"


def test_handlers_of_a_program_stay(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with temporary_next_to(tmp_path / "x") as (name,):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert name.parent.exists()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot write"):
        write_whole(tmp_path / ("x" * 250), lambda path: None)


def test_sources_are_refused(tmp_path: Path) -> None:
    """By name, by another name, through links; like a hub cache, whose files are links to blobs."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    (blobs / "abc").write_text("weights")
    (folder / "model.safetensors").symlink_to(Path("../blobs/abc"))
    (folder / "earlier.gguf").write_text("")
    (folder / "config.json").write_text("{}")
    os.link(folder / "config.json", tmp_path / "hard")
    (tmp_path / "soft").symlink_to(folder, target_is_directory=True)
    names = ["snapshot/model.safetensors", "blobs/abc", "hard", "soft/config.json", "snapshot/../hard"]
    for name in names:
        with pytest.raises(UsageError, match="name another output"):
            refuse_sources(tmp_path / name, [folder])
    for name in ("snapshot/earlier.gguf", "snapshot/new.gguf"):
        refuse_sources(tmp_path / name, [folder])
    with pytest.raises(UsageError):
        refuse_sources(folder / "earlier.gguf", [folder / "earlier.gguf"])


@pytest.mark.skipif("sys.platform == 'win32'", reason="Windows has no named pipes in folders")
def test_pipes_are_refused_as_models(tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer. This one has a writer and data, so that nothing waits."""
    path = tmp_path / "model.gguf"
    write_target(path)
    start = path.read_bytes()[:4096]
    assert peek_architecture(path) == "qwen35"
    path.unlink()
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    os.write(pipe, start)
    for read in (read_header, read_imatrix, lambda path: DraftingOptions(lookup_cache=path)):
        with pytest.raises(InputError, match=r"model\.gguf: not a regular file"):
            read(path)
    assert peek_architecture(path) == ""
    os.close(pipe)


def test_a_full_disk_behind_an_error_of_the_hub_is_named() -> None:
    with pytest.raises(EnvironmentFailure, match=r"^owner/name: no space left in /models"), hub_errors("owner/name"):
        raise RuntimeError("download failed") from OSError(errno.ENOSPC, "No space left on device", "/models")
