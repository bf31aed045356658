"""Files under a model's name that are something else: each is named, with its remedy."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import ConversionError, EagleError, InputError
from llama_eagle.file_kinds import FOLDER, GGUF, SAFETENSORS, is_not, known_kind
from llama_eagle.gguf.header import read_header
from llama_eagle.quantize.imatrix import read_imatrix
from safetensors.numpy import save

MODEL = b"GGUF" + bytes(2000)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 4920739232\n"
PAGE = b"<!DOCTYPE html>\n<html class=''>\n<head><title>model.gguf \xc2\xb7 org/model at main</title></head></html>"
MANIFEST = {
    "schemaVersion": 2,
    "layers": [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:aa"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:bb"},
    ],
}


def zipped(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, MODEL)
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("model.gguf")
        entry.size = len(MODEL)
        archive.addfile(entry, io.BytesIO(MODEL))
    return file.getvalue()


def saved(*, zip_format: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.ones(3)}, file, _use_new_zipfile_serialization=zip_format)
    return file.getvalue()


# content, parts of the message for a file that should be a GGUF
FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("an empty file", "Download it again")),
    "zeros": (bytes(9000), ("unfinished download", "Download it again")),
    "page": (PAGE, ("a web page", "'model.gguf \u00b7 org/model at main'", "Download the file itself", "/resolve/")),
    "page with a mark": (b"\xef\xbb\xbf\n  " + PAGE.lower(), ("a web page",)),
    "page as XML": (b'<?xml version="1.0"?>\n' + PAGE, ("a web page",)),
    "page of UTF-16": (PAGE.decode().encode("utf-16"), ("a web page",)),
    "error of a store": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', ("XML", "AccessDenied")),
    "error of a server": (b'{"error":"Invalid username or password."}', ("Invalid username", "Download it again")),
    "error of the hub": (b"Entry not found", ("'Entry not found'", "Download it again")),
    "text": (("caf\u00e9 " * 2000).encode(), ("a text file", "...'")),
    "LFS": (LFS, ("a Git LFS pointer", "4920739232 bytes", "git lfs pull")),
    "annex": (b"/annex/objects/SHA256E-s123--ab.gguf\n", ("a git-annex pointer",)),
    "manifest": (json.dumps(MANIFEST).encode(), ("an Ollama manifest", "sha256-bb")),
    "broken manifest": (b'{"layers": ["vnd.ollama.image', ("an Ollama manifest", "the model's blob")),
    "Modelfile": (b"# mine\nFROM ./x.gguf\nPARAMETER temperature 1\n", ("Modelfile", "FROM")),
    "config": (b'{\n  "architectures": ["LlamaForCausalLM"]}', ("settings of a checkpoint", "llama-eagle convert")),
    "safetensors": (save({"w": np.ones(3)}), ("a safetensors file", "llama-eagle convert FOLDER")),
    "torch": (saved(zip_format=True), ("a PyTorch checkpoint", "llama-eagle convert FOLDER")),
    "old torch": (saved(zip_format=False), ("pickle", "llama-eagle convert FOLDER")),
    "pickle": (pickle.dumps({"a": 1}, 4), ("pickle",)),
    "zip": (zipped("model.gguf"), ("a ZIP archive", "Unpack it")),
    "gzip": (gzip.compress(MODEL, mtime=0), ("a gzip archive", "Unpack it")),
    "bzip2": (bz2.compress(MODEL), ("a bzip2 archive",)),
    "xz": (lzma.compress(MODEL), ("an xz archive",)),
    "tar": (tarred(), ("a tar archive", "Unpack it")),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4", ("a 7z archive",)),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\x01", ("a zstd archive",)),
    "ONNX": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x80\x01\n", ("an ONNX model", "Hugging Face checkpoint")),
    "TFLite": (b"\x1c\0\0\0TFL3\x14\0\x20", ("TensorFlow Lite",)),
    "GGJT": (struct.pack("<II", 0x67676A74, 3) + bytes(100), ("GGJT", "Download a GGUF")),
    "GGML": (struct.pack("<II", 0x67676D6C, 3) + bytes(100), ("GGML",)),
    "GGMF": (struct.pack("<II", 0x67676D66, 1) + bytes(100), ("GGMF",)),
    "GGLA": (struct.pack("<II", 0x67676C61, 1) + bytes(100), ("GGLA",)),
    "llamafile": (b"MZqFpD='\n" + bytes(100), ("a llamafile", "unzip")),
    "random": (b"\x91\x02\xff\xfe" + os.urandom(64), ("an unknown kind",)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_model(name: str, tmp_path: Path) -> None:
    content, parts = FILES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_header(path)
    assert_message(error.value, path, *parts, "not a GGUF file")


def assert_message(error: EagleError, path: Path, *parts: str) -> None:
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < 500
    for part in parts:
        assert part in text


@pytest.mark.parametrize("name", [*FILES, "model"])
def test_weights_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    """The same kinds under the name of a .safetensors. A cut file of the right kind is damaged."""
    content, parts = FILES.get(name, (MODEL, ("a GGUF file", "Give a safetensors file")))
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    path.write_bytes(content[: len(content) - 1] if name == "safetensors" else content)
    with pytest.raises(ConversionError) as error:
        open_checkpoint(tmp_path).names()
    if name == "safetensors":
        assert_message(error.value, path, "download the file again")
    else:
        assert_message(error.value, path, parts[0], "not a safetensors file")
        assert "llama-eagle convert" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (LFS, ("a Git LFS pointer", "git lfs pull")),
        (PAGE, ("a web page",)),
        (save({"w": np.ones(3)}), ("Give the folder that contains it",)),
        (MODEL, ("needs no conversion", "llama-eagle quantize")),
        (b'{"model_type": "llama"}', ("Give the folder that contains it",)),
        (gzip.compress(MODEL, mtime=0), ("Unpack it",)),
    ],
)
def test_a_file_in_place_of_a_checkpoint(content: bytes, parts: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(EagleError) as error:
        open_checkpoint(path)
    assert_message(error.value, path, *parts, FOLDER)


PARTS: list[tuple[str, Callable[[Path], object]]] = [
    ("config.json", lambda folder: open_checkpoint(folder)),
    ("tokenizer.json", lambda folder: open_checkpoint(folder).json_file("tokenizer.json")),
    ("pytorch_model.bin", lambda folder: open_checkpoint(folder).names()),
    ("imatrix.dat", lambda folder: read_imatrix(folder / "imatrix.dat")),
]


@pytest.mark.parametrize(("content", "part"), [(LFS, "a Git LFS pointer"), (PAGE, "a web page")])
@pytest.mark.parametrize(("name", "read"), PARTS, ids=[name for name, _ in PARTS])
def test_every_other_file(name: str, read: Callable[[Path], object], content: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EagleError) as error:
        read(tmp_path)
    assert_message(error.value, tmp_path / name, part)


def test_a_template_is_no_pointer(tmp_path: Path) -> None:
    """A chat template is any text, but not the rest of a failed download."""
    from llama_eagle.convert.source.storage import read_text

    path = tmp_path / "chat_template.jinja"
    path.write_text("<|im_start|>{{ messages[0].content }}<html>")
    assert read_text(path).startswith("<|im_start|>")
    path.write_bytes(LFS)
    with pytest.raises(ConversionError, match="Git LFS pointer"):
        read_text(path)


def test_right_kinds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(MODEL)
    assert known_kind(path) is not None
    assert "damaged or truncated" in is_not(path, GGUF)
    path.write_bytes(save({"w": np.ones(3)})[:12])
    assert "damaged or truncated" in is_not(path, SAFETENSORS)
