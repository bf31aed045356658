"""Opening checkpoints: files as they should be, as they are in a hub cache, and as an attacker would make them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import ConfigError, ConversionError, EagleError, EnvironmentFailure
from safetensors.torch import save_file

TENSORS = {
    "bf16": torch.randn(3, 4).bfloat16(),
    "f16": torch.randn(5).half(),
    "f32": torch.randn(2, 2),
    "f8": torch.randn(4).to(torch.float8_e4m3fn),
    "i64": torch.arange(-2, 3),
    "i32": torch.arange(3, dtype=torch.int32),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.zeros(0, 3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def pack(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def fails(folder: Path, match: str, error: type[EagleError] = ConversionError) -> None:
    with pytest.raises(error, match=match) as caught:
        open_checkpoint(folder).names()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_values(suffix: str, folder: Path) -> None:
    if suffix == ".bin":
        torch.save(TENSORS, folder / "pytorch_model.bin")
    else:
        save_file(TENSORS, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert checkpoint.info(name).shape == tuple(tensor.shape)
    assert checkpoint.info("bf16").dtype == "BF16"
    np.testing.assert_array_equal(checkpoint.read("bf16"), TENSORS["bf16"].view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(checkpoint.read("f8"), TENSORS["f8"].view(torch.uint8).numpy())
    for name in ("bf16", "f16", "f32"):
        np.testing.assert_array_equal(checkpoint.read_f32(name), TENSORS[name].float().numpy())
    for name in ("i64", "i32", "flags", "empty"):
        np.testing.assert_array_equal(checkpoint.read(name), TENSORS[name].numpy())
    with pytest.raises(ConversionError, match="dequantize"):
        checkpoint.read_f32("f8")
    with pytest.raises(ConversionError, match="no tensor"):
        checkpoint.read("absent")


def test_a_bin_archive_is_reopened_now_and_then(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_eagle.convert.source.storage.RELOAD_BYTES", 10)
    torch.save(TENSORS, folder / "pytorch_model.bin")
    checkpoint = open_checkpoint(folder)
    for _ in range(3):
        np.testing.assert_array_equal(checkpoint.read("f32"), TENSORS["f32"].numpy())


def test_hub_cache_links_are_followed(tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / revision
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    save_file({"a": torch.ones(2)}, blobs / "x")
    (blobs / "y").write_text("{}")
    (blobs / "z").write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    for name, blob in {
        "model-00001-of-00001.safetensors": "x",
        "config.json": "y",
        "model.safetensors.index.json": "z",
    }.items():
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.names() == ["a"]
    assert checkpoint.revision == revision


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\\b.safetensors", "\0.safetensors", 3, "x.bin"],
)
def test_index_names_stay_in_the_folder(name: Any, folder: Path) -> None:
    save_file({"a": torch.ones(2)}, folder.parent / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    fails(folder, "plain .safetensors file names")


def test_shards(folder: Path) -> None:
    save_file({"a": torch.ones(2)}, folder / "model-00001-of-00002.safetensors")
    fails(folder, "1 of 2 shards")
    index = folder / "model.safetensors.index.json"
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    fails(folder, "cannot be read")
    save_file({"a": torch.ones(2)}, folder / "model-00002-of-00002.safetensors")
    fails(folder, "'b' is not in")
    save_file({"a": torch.ones(2), "b": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")
    fails(folder, "another shard")
    save_file({"b": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")
    assert open_checkpoint(folder).names() == ["a", "b"]
    index.unlink()
    assert open_checkpoint(folder).names() == ["a", "b"]
    index.write_text('{"weight_map": {}}')
    fails(folder, "no weight_map")


A4 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BAD_SAFETENSORS = {
    "empty": (b"", "an empty file"),
    "short": (b"\x01\x00\x00", "not a safetensors file"),
    "header beyond the end": (struct.pack("<Q", 100) + b"{}", "truncated"),
    "enormous header": (struct.pack("<Q", 2**63) + b"{}", "not a safetensors file"),
    "not JSON": (pack(b"{"), "not valid JSON"),
    "not UTF-8": (pack(b'{"\xff": 1}'), "not valid JSON"),
    "nested": (pack(b"[" * 100_000), "nested too deeply|not valid JSON"),
    "huge number": (pack(b'{"a": ' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "an array": (pack([]), "expected a JSON object"),
    "entry is no object": (pack({"a": 3}, b"0000"), "no valid dtype"),
    "no offsets": (pack({"a": {"dtype": "F32", "shape": [1]}}, b"0000"), "no valid dtype"),
    "unknown type": (pack({"a": {**A4, "dtype": "F33"}}, b"0000"), "unknown type"),
    "type is a list": (pack({"a": {**A4, "dtype": ["F32"]}}, b"0000"), "unknown type"),
    "negative size": (pack({"a": {**A4, "shape": [-1]}}, b"0000"), "impossible"),
    "boolean size": (pack({"a": {**A4, "shape": [True]}}, b"0000"), "impossible"),
    "absurd size": (pack({"a": {**A4, "shape": [2**61, 2**61]}}, b"0000"), "takes"),
    "lying size": (
        pack({"a": A4, "b": {**A4, "shape": [2], "data_offsets": [4, 8]}}, b"00000000"),
        "takes 8 bytes, by its offsets 4",
    ),
    "reversed offsets": (pack({"a": {**A4, "data_offsets": [4, 0]}}, b"0000"), "takes"),
    "overlap": (pack({"a": A4, "b": A4}, b"0000"), "starts at byte 0, expected 4"),
    "hole": (pack({"a": {**A4, "data_offsets": [4, 8]}}, b"00000000"), "expected 0"),
    "truncated data": (pack({"a": A4}, b"00"), "its header describes"),
    "more data": (pack({"a": A4}, b"000000"), "its header describes"),
    "many dimensions": (pack({"a": {**A4, "shape": [1] * 100}}, b"0000"), "impossible"),
}


@pytest.mark.parametrize("fault", BAD_SAFETENSORS)
def test_bad_safetensors(fault: str, folder: Path) -> None:
    data, message = BAD_SAFETENSORS[fault]
    (folder / "model.safetensors").write_bytes(data)
    fails(folder, message)


class Evil:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("pwned",)


def test_code_in_pickles_is_never_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    torch.save({"a": torch.ones(1), "b": Evil()}, folder / "pytorch_model.bin")
    fails(folder, "code or objects")
    assert not (folder / "pwned").exists()


def test_bad_archives(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    fails(folder, "not a torch archive")
    torch.save({"a": torch.ones(100)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    fails(folder, "not a torch archive")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    fails(folder, "implausible")
    torch.save({"a": torch.ones(1).expand(2**40)}, path)
    fails(folder, "not a plain dense tensor")
    torch.save({"a": torch.ones(3).to_sparse()}, path)
    fails(folder, "not a plain dense tensor|refused")
    torch.save([1, 2], path)
    fails(folder, "no named tensors")


def test_wrapped_state(folder: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, folder / "pytorch_model.bin")
    assert open_checkpoint(folder).names() == ["a"]


def test_loose_maps_beside_the_weights(folder: Path) -> None:
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    np.save(folder / "d2t.npy", np.arange(3))
    torch.save(torch.tensor([True]), folder / "t2d.pt")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == ["a", "d2t", "t2d"]
    np.testing.assert_array_equal(checkpoint.read("d2t"), np.arange(3))
    np.save(folder / "d2t.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    fails(folder, "not a plain .npy array")
    with (folder / "d2t.npy").open("wb") as file:
        np.savez(file, np.arange(3))  # an archive of arrays under the name of one
    fails(folder, "not a plain .npy array")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"\udcff"', "[" * 100_000])
def test_bad_config(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    fails(folder, "config.json", ConfigError)


def test_files_of_other_kinds(folder: Path) -> None:
    (folder / "config.json").unlink()
    fails(folder, "no config.json", ConfigError)
    os.mkfifo(folder / "config.json")
    fails(folder, "not a regular file", ConfigError)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text("{}")
    fails(folder, "no model.safetensors")
    (folder / "training_state.pt").write_bytes(b"x")
    fails(folder, "export it first")
    os.mkfifo(folder / "model.safetensors")
    fails(folder, "not a regular file")


def test_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (folder / "absent", "./absent", "no such thing", "a\0b", "x" * 5000):
        with pytest.raises(ConfigError):
            open_checkpoint(source)
    with pytest.raises(ConfigError, match="Give the folder"):
        open_checkpoint(folder / "config.json")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentFailure, match="HF_HUB_OFFLINE"):
        open_checkpoint("organisation/absent-model")


@pytest.mark.parametrize("subfolder", ["", "/draft"])
def test_a_download_is_refused_before_the_weights(
    subfolder: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration comes first; PyTorch's weights are downloaded if there are no others."""
    asked: list[list[str]] = []
    snapshot = tmp_path / "snapshots" / ("a1" * 20)
    monkeypatch.setattr("llama_eagle.convert.source.folder.snapshot", lambda *given: asked.append(given[1]) or snapshot)
    (snapshot / "draft").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"org/model: no checkpoint \(config.json\) in "):
        open_checkpoint(f"org/model{subfolder}")
    assert len(asked) == 1 and f"{'draft/' if subfolder else ''}*.safetensors" not in asked[0]
    (snapshot / "other").mkdir()
    shutil.copy(folder / "config.json", snapshot / "other")
    with pytest.raises(ConfigError, match="in its folder draft" if subfolder else "Choose one: org/model/other"):
        open_checkpoint(f"org/model{subfolder}")
    shutil.copy(folder / "config.json", f"{snapshot}{subfolder}")
    asked.clear()
    found = open_checkpoint(f"org/model{subfolder}")
    assert (found.path, found.revision) == (Path(f"{snapshot}{subfolder}"), snapshot.name)
    prefix = "draft/" if subfolder else ""
    names = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.bin")
    assert [patterns[-1] for patterns in asked[1:]] == [prefix + name for name in names]
    (found.path / "model.safetensors").touch()
    asked.clear()
    open_checkpoint(f"org/model{subfolder}")
    assert asked[1:] == [[f"{prefix}model*.safetensors"]]
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "head.safetensors"}}
    (found.path / "model.safetensors.index.json").write_text(json.dumps(index))
    asked.clear()
    open_checkpoint(f"org/model{subfolder}")
    assert asked[1:] == [[f"{prefix}head.safetensors", f"{prefix}model-1.safetensors"]]
    asked.clear()
    open_checkpoint(f"org/model{subfolder}", weights=False)
    assert len(asked) == 1
