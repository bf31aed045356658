"""The header reader: right on sound files, an InputError and nothing else on any other."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path
from unittest import mock

import gguf
import pytest
from fixtures.tiny_gguf import N_VOCAB, Variant, finish, write_draft, write_target
from llama_eagle.errors import InputError
from llama_eagle.gguf import header as headers
from llama_eagle.gguf.header import read_header, read_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("gguf") / "target.gguf")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_draft(tmp_path_factory.mktemp("gguf") / "draft.gguf")


def test_keys_and_tensors_equal_those_of_the_gguf_package(target: Path) -> None:
    header, reader = read_header(target), gguf.GGUFReader(target)
    assert header.architecture == "qwen35"
    assert header.n_vocab == N_VOCAB
    for name, key in reader.fields.items():
        if not name.startswith("GGUF."):
            assert header.value(name) == key.contents()
    assert [t.name for t in header.tensors.values()] == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        found = header.tensors[tensor.name]
        assert list(found.shape) == tensor.shape.tolist()
        assert found.n_bytes == tensor.n_bytes
        assert header.data_offset + found.offset == tensor.data_offset


def test_small_tensor_is_read(draft: Path) -> None:
    header = read_header(draft)
    n = header.tensors["d2t"].n_elements
    ids = struct.unpack(f"<{n}q", header.read_tensor_bytes("d2t"))
    assert ids[:3] == (65, 66, 67)


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 23, 24, 100, 5000])
def test_truncated_header(target: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(target.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"truncated|not a GGUF"):
        read_header(path)


def test_truncated_data_names_the_tensor(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(target.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"truncated: tensor blk\.3\."):
        read_header(path)


def test_missing_folder_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(InputError, match="is a folder"):
        read_header(tmp_path)
    (tmp_path / "text.gguf").write_text("It is a truth universally acknowledged, that")
    with pytest.raises(InputError, match="not a GGUF"):
        read_header(tmp_path / "text.gguf")


def test_mutated_headers_never_escape_as_other_errors(draft: Path, tmp_path: Path) -> None:
    """300 files with a few header bytes overwritten, often by huge counts."""
    sound = draft.read_bytes()
    rng = random.Random(5)
    path = tmp_path / "mutated.gguf"
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(4, 9000)
            data[at : at + 8] = rng.choice([b"\xff" * 8, rng.randbytes(8), b"\0" * 8, struct.pack("<Q", 1 << 40)])
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        try:
            header = read_header(path)
            for name in header.keys:
                header.value(name)
        except InputError as error:
            assert "\n" not in str(error)


def test_splits(target: Path, tmp_path: Path) -> None:
    names = [tmp_path / f"m-{i + 1:05d}-of-00002.gguf" for i in range(2)]
    for i, name in enumerate(names):
        writer = gguf.GGUFWriter(name, "qwen35")
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", 2)
        writer.add_tensor(f"t{i}", gguf.np.ones(4, gguf.np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    first, files = read_model(names[0])
    assert first.path == names[0]
    assert [list(file.tensors) for file in files] == [["t0"], ["t1"]]
    with pytest.raises(InputError, match="not the first split"):
        read_model(names[1])
    whole = names[1].read_bytes()
    for field, value in ((b"split.no", 0), (b"split.count", 3)):
        at = whole.index(field) + len(field) + 4
        names[1].write_bytes(whole[:at] + value.to_bytes(2, "little") + whole[at + 2 :])
        with pytest.raises(InputError, match="not split 2 of 2"):
            read_model(names[0])
    names[1].write_bytes(whole.replace(b"t1", b"t0"))
    with pytest.raises(InputError, match="tensor t0 is in"):
        read_model(names[0])
    names[1].write_bytes(whole[:-20])
    with pytest.raises(InputError, match="truncated"):
        read_model(names[0])
    names[1].unlink()
    with pytest.raises(InputError, match="missing split m-00002-of-00002"):
        read_model(names[0])


def test_variants_write_what_they_say(tmp_path: Path) -> None:
    header = read_header(write_draft(tmp_path / "d.gguf", Variant(hidden=32, target_layers=(0, 4))))
    assert header.arch_key("target_layers") == [0, 4]
    assert header.arch_key("embedding_length") == 32


def test_distinct_tokens_are_counted_as_llama_cpp_names_them(tmp_path: Path) -> None:
    """It reads each to its first zero, and names an empty one by its number."""
    for tokens, n in ((["a", "", "b", ""], 4), (["a", "", "[EMPTY_1]", "b"], 3), (["a", "b", "a\0c", "[EMPTY_1]"], 3)):
        writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
        writer.add_token_list(tokens)
        header = read_header(finish(writer, tmp_path / "t.gguf"))
        assert header.count_distinct(header.keys["tokenizer.ggml.tokens"]) == n


def test_a_file_is_parsed_again_after_a_change_only(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was just written may change without another time."""
    path, parsed = Path(shutil.copy(target, tmp_path)), mock.Mock(side_effect=headers._parse)
    monkeypatch.setattr(headers, "_parse", parsed)
    for settled_s, n in ((60.0, 2), (-60.0, 3)):
        monkeypatch.setattr(headers, "SETTLED_S", settled_s)
        read_header(path).keys.clear()
        assert read_header(path).keys and parsed.call_count == n
    os.utime(path, ns=(0, 0))
    read_header(path)
    assert parsed.call_count == 4


def test_types_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert theirs.items() <= headers.QUANT_TYPES.items()
    assert set(headers.QUANT_TYPES) - set(theirs) <= {42}, "Q2_0 is newer than the package"
