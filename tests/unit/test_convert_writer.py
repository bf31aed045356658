"""GGUF files that we write, read back by gguf; and failures that must leave nothing behind."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from llama_eagle.convert import writer
from llama_eagle.convert.writer import PIECE, gguf_output
from llama_eagle.errors import ConversionError, EnvironmentFailure, InputError, UsageError
from llama_eagle.gguf.header import read_model

RANDOM = np.random.default_rng(7)
LARGE = RANDOM.standard_normal((9, PIECE // 4)).astype(np.float32)  # several pieces, the last one short


def fields(path: Path) -> dict[str, object]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_keys_have_the_types_that_llama_cpp_expects(tmp_path: Path) -> None:
    path = tmp_path / "keys.gguf"
    with gguf_output(path, arch="qwen35") as out:
        out.key("an.int", 7)
        out.key("a.float", 0.5)
        out.key("a.bool", True)
        out.key("a.string", "größer")
        out.key("ints", [1, -2])
        out.key("bools", [True, False])
        out.key("strings", ["a", "ß"])
        out.key("an.i32", -3, "i32")
        out.key("empty", [])
        out.key("an.int", 8)
    reader = gguf.GGUFReader(path)
    kinds = {name: [kind.name for kind in field.types] for name, field in reader.fields.items()}
    assert kinds["an.int"] == ["UINT32"] and kinds["ints"] == ["ARRAY", "INT32"] and kinds["an.i32"] == ["INT32"]
    found = fields(path)
    assert found["general.architecture"] == "qwen35"
    assert (found["an.int"], found["a.float"], found["a.bool"], found["a.string"]) == (8, 0.5, True, "größer")
    assert (found["ints"], found["bools"], found["strings"]) == ([1, -2], [True, False], ["a", "ß"])
    assert "empty" not in found


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_values_of_a_tensor_in_pieces(outtype: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with gguf_output(path, arch="x") as out:
        out.tensor("odd.weight", (3,), lambda: np.ones(3, np.float32), "f32")
        out.tensor("large.weight", LARGE.shape, lambda: LARGE, outtype)
        out.tensor("parts.weight", LARGE.shape, lambda: iter([LARGE[:2], LARGE[2:]]), outtype)
        out.tensor("ids", (2,), lambda: np.array([5, 6], np.int32), "i64")
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    expected = gguf.quants.quantize(LARGE, gguf.GGMLQuantizationType[outtype.upper()]).tobytes()
    assert tensors["large.weight"].data.tobytes() == expected
    assert tensors["parts.weight"].data.tobytes() == expected
    assert list(tensors["large.weight"].shape) == list(reversed(LARGE.shape))
    assert tensors["ids"].data.tolist() == [5, 6]


def test_split_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with gguf_output(path, arch="x", split_max_size=LARGE.nbytes + 10) as out:
        out.key("x.block_count", 2)
        for i in range(3):
            out.tensor(f"t{i}", LARGE.shape, lambda: LARGE, "f32")
    names = [f"model-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    assert sorted(p.name for p in tmp_path.iterdir()) == names == [p.name for p in out.written]
    for i, name in enumerate(names):
        found = fields(tmp_path / name)
        assert (found["split.no"], found["split.count"], found["split.tensors.count"]) == (i, 3, 3)
        assert ("x.block_count" in found) == (i == 0)


def test_splits_of_two_conversions_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with gguf_output(tmp_path / f"{name}.gguf", arch="x", split_max_size=LARGE.nbytes) as out:
            for i in range(2):
                out.tensor(f"t{i}", LARGE.shape, lambda: LARGE, "f32")
        assert len(read_model(tmp_path / f"{name}-00001-of-00002.gguf")[1]) == 2
    (tmp_path / "b-00002-of-00002.gguf").replace(tmp_path / "a-00002-of-00002.gguf")
    with pytest.raises(InputError, match="another conversion"):
        read_model(tmp_path / "a-00001-of-00002.gguf")


def test_half_of_a_character_pair(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="is not valid text"), gguf_output(tmp_path / "m.gguf", arch="x") as out:
        out.key("general.name", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    with gguf_output(tmp_path / "m.gguf", arch="x", progress=lambda *args: seen.append(args)) as out:
        out.tensor("t", LARGE.shape, lambda: LARGE, "bf16")
    assert seen[-1] == (LARGE.nbytes // 2, LARGE.nbytes // 2, "t")


def fail_with(error: BaseException) -> np.ndarray:
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConversionError("bad"), RuntimeError("our bug")])
def test_a_failing_source_leaves_nothing_and_spares_the_old_file(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("old")
    with pytest.raises(type(error)), gguf_output(path, arch="x") as out:
        out.tensor("good", LARGE.shape, lambda: LARGE, "f32")
        out.tensor("bad", (3,), lambda: fail_with(error), "f32")
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    assert path.read_text() == "old"


def test_a_failure_inside_the_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConversionError), gguf_output(tmp_path / "m.gguf", arch="x"):
        raise ConversionError("no")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_environment_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_write_all", full)
    with pytest.raises(EnvironmentFailure, match="no space left"), gguf_output(tmp_path / "m.gguf", arch="x") as out:
        out.tensor("t", (3,), lambda: np.ones(3, np.float32), "f32")
    assert not list(tmp_path.iterdir())


def test_more_than_the_disk_holds_fails_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="free"), gguf_output(tmp_path / "m.gguf", arch="x") as out:
        out.tensor("t", (1 << 30, 1 << 20), lambda: fail_with(AssertionError()), "f32")


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="does not exist"), gguf_output(tmp_path / "no" / "m.gguf", arch="x"):
        pass
    with pytest.raises(UsageError, match="is a folder"), gguf_output(tmp_path, arch="x"):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"), gguf_output(tmp_path / "pipe", arch="x"):
        pass


def test_declared_and_real_sizes_agree(tmp_path: Path) -> None:
    message = r"tensor t: it has 4 values, but its declared shape is \[2, 3\]"
    with pytest.raises(ConversionError, match=message), gguf_output(tmp_path / "m.gguf", arch="x") as out:
        out.tensor("t", (2, 3), lambda: np.ones(4, np.float32), "f32")
    with pytest.raises(ConversionError, match="two tensors"), gguf_output(tmp_path / "m.gguf", arch="x") as out:
        for _ in range(2):
            out.tensor("t", (3,), lambda: np.ones(3, np.float32), "f32")
    assert not list(tmp_path.iterdir())


MEASURE = """
import resource, threading
import numpy as np
from llama_eagle.cli import main
try:
    main(["convert", "/nowhere", "-o", "/nowhere/x.gguf"])
except SystemExit:
    pass
def work():
    for _ in range(50):
        kept = [np.ones(1 << 17, np.float32) for _ in range(3)]
def faults():
    thread = threading.Thread(target=work)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a property of glibc")
def test_the_command_keeps_the_pages_of_temporary_arrays() -> None:
    """50 times 1.5 MB are 19200 pages of 4 KB; one set of them is 384."""
    shown = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert int(shown.stdout) < 2000
