"""Where a conversion starts: a Hugging Face folder or hub id with its configuration, JSON files and tensors.

Tensors are found through model.safetensors, an index of shards, or pytorch_model.bin, in the order transformers
uses. What a folder says about itself is checked before it is used; every fault ends in one of llama_eagle.errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.source.storage import (
    FLOAT_DTYPES,
    StoredTensor,
    TensorInfo,
    open_npy,
    open_safetensors,
    open_torch,
    read_json,
)
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.hub import snapshot

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]

SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "d2t.*", "t2d.*"]
MAX_CONFIG_BYTES = 4 << 20
LOOSE_TENSORS = ("d2t", "t2d")  # some training folders keep the vocabulary map beside the weights

ADAPTER = (
    "a LoRA adapter, not a model. Merge it into its base model first (peft: merge_and_unload), or convert it with "
    "llama.cpp's convert_lora_to_gguf.py and load it with lora_path."
)

Opener = Callable[[Path], dict[str, StoredTensor]]


class Checkpoint:
    """One model folder. `source` is what the user named, `revision` the hub commit when it is known."""

    def __init__(self, path: Path, *, source: str, revision: str | None = None) -> None:
        self.path = path
        self.source = source
        self.revision = revision
        self.config = self._config()

    def names(self) -> list[str]:
        """All tensor names, sorted. The first call opens the weight files."""
        return sorted(self._tensors)

    def info(self, name: str) -> TensorInfo:
        return self._stored(name).info

    def read(self, name: str) -> np.ndarray:
        """The tensor as stored: BF16 as uint16 and F8 as uint8 bit patterns. Mapped, read-only; drop it early."""
        return self._stored(name).read()

    def read_f32(self, name: str) -> np.ndarray:
        """A floating-point tensor as float32 (a copy unless it is stored so)."""
        if self.info(name).dtype not in FLOAT_DTYPES:
            raise ConversionError(f"{self.path}: {name} is {self.info(name).dtype}; dequantize the checkpoint first")
        return to_f32(self.read(name))

    def json_file(self, name: str) -> dict[str, Any] | None:
        """A JSON object of the folder (tokenizer.json, generation_config.json, ...); None when it has no such file."""
        path = self.path / name
        return read_json(path) if path.exists() else None

    def _config(self) -> dict[str, Any]:
        path = self.path / "config.json"
        if not path.exists() and (self.path / "adapter_config.json").exists():
            raise ConfigError(f"{self.path}: {ADAPTER}")
        if not path.exists():
            raise ConfigError(f"{self.path}: no config.json; name the folder of a Hugging Face checkpoint")
        try:
            return read_json(path, MAX_CONFIG_BYTES)
        except ConversionError as error:
            raise ConfigError(str(error)) from None

    def _stored(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ConversionError(f"{self.path}: there is no tensor {name!r}") from None

    @cached_property
    def _tensors(self) -> dict[str, StoredTensor]:
        tensors = _open_weights(self.path)
        for stem in LOOSE_TENSORS:
            for suffix, opener in ((".npy", open_npy), (".pt", open_torch)):
                if stem not in tensors and (path := self.path / (stem + suffix)).exists():
                    tensors.update({stem: next(iter(opener(path).values()))})
        return tensors


def open_checkpoint(
    source: str | Path | Checkpoint, *, revision: str | None = None, weights: bool = True
) -> Checkpoint:
    """A local folder, or a hub id such as "org/name" or "org/name/subfolder", which is downloaded unless it is cached.
    An open one is itself.

    `weights=False` downloads configuration and tokenizer only. Raises ConfigError or ConversionError for what is
    wrong with the checkpoint, EnvironmentFailure when the hub cannot be reached.
    """
    if isinstance(source, Checkpoint):
        return source
    text = os.fspath(source)
    path = Path(text).expanduser()
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):
        raise ConfigError(f"{text[:200]!r} is not a usable path") from None
    if is_folder:
        return Checkpoint(path, source=text, revision=_snapshot_revision(path))
    if exists:
        raise ConfigError(f"{path}: a file; name the folder that holds config.json and the weights")
    named = re.fullmatch(r"(\w[\w.-]*/[\w.-]+)((?:/\w[\w.-]*)*)", text)
    if named is None:
        raise ConfigError(f"{text}: there is no such folder, and it is not a hub id (organisation/name)")
    subfolder = named[2].strip("/")
    path = _download(named[1], subfolder, revision, weights)
    return Checkpoint(path / subfolder, source=text, revision=_snapshot_revision(path) or revision)


def _snapshot_revision(path: Path) -> str | None:
    """The commit that a hub cache's folder name holds: .../snapshots/<40 hex digits>."""
    path = path.absolute()
    return path.name if path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", path.name) else None


def _download(repo: str, subfolder: str, revision: str | None, weights: bool) -> Path:
    """The snapshot's folder. Raises `ConfigError` before the weights are downloaded if there is no checkpoint."""
    prefix = f"{subfolder}/" if subfolder else ""
    small = [prefix + pattern for pattern in SMALL_FILES]
    path = snapshot(repo, small, revision)
    if not any((path / subfolder / name).exists() for name in ("config.json", "adapter_config.json")):
        _refuse_without_config(repo, subfolder, path)
    if weights:
        snapshot(repo, [*small, f"{prefix}*.safetensors"], revision)
        if not any((path / subfolder).glob("*.safetensors")):
            snapshot(repo, [*small, f"{prefix}*.bin"], revision)
    return path


def _refuse_without_config(repo: str, subfolder: str, path: Path) -> None:
    found = sorted(file.parent.relative_to(path).as_posix() for file in path.rglob("config.json"))
    if subfolder:
        raise ConfigError(f"{repo}: no checkpoint (config.json) in its folder {subfolder}. Name another one.")
    if found:
        raise ConfigError(f"{repo}: its checkpoints are in folders ({', '.join(found)}). Name one: {repo}/{found[0]}")


# --- weight files of a folder -----------------------------------------------------------------------------------


def _open_weights(folder: Path) -> dict[str, StoredTensor]:
    for stem, suffix, opener in (("model", ".safetensors", open_safetensors), ("pytorch_model", ".bin", open_torch)):
        if (single := folder / (stem + suffix)).exists():
            return opener(single)
        if (index := folder / f"{stem}{suffix}.index.json").exists():
            return _open_index(index, suffix, opener)
        if files := sorted(p for p in folder.glob(f"*{suffix}") if not p.name.startswith(("adapter_", "training_"))):
            return _merge({file: opener(file) for file in _all_parts(files)})
    if (folder / "adapter_config.json").exists():
        raise ConversionError(f"{folder}: {ADAPTER}")
    hint = (
        "; training_state.pt alone is not a model, export it first" if (folder / "training_state.pt").exists() else ""
    )
    raise ConversionError(f"{folder}: no model.safetensors, no index of shards and no pytorch_model.bin{hint}")


def _open_index(index: Path, suffix: str, opener: Opener) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConversionError(f"{index}: no weight_map")
    for name in weight_map.values():
        # Links may leave the folder (a hub cache is made of them); names may not.
        plain = isinstance(name, str) and name == Path(name).name and not set(name) & {"\\", "\0"}
        if not plain or not name.endswith(suffix):
            raise ConversionError(f"{index}: names {str(name)[:200]!r}; only plain {suffix} file names are accepted")
    files = [index.parent / name for name in sorted(set(weight_map.values()))]
    opened = {file: opener(file) for file in files}
    for tensor, name in weight_map.items():
        if tensor not in opened[index.parent / name]:
            raise ConversionError(f"{index}: says {tensor[:200]!r} is in {name}, but it is not; fetch the shards again")
    return _merge(opened)


def _all_parts(files: list[Path]) -> list[Path]:
    """The files, provided that every part of a set named x-00001-of-00003 is there."""
    for file in files:
        if match := re.search(r"-(\d{5})-of-(\d{5})\.", file.name):
            parts = [p for p in files if f"-of-{match[2]}." in p.name]
            if len(parts) != int(match[2]):
                raise ConversionError(f"{file.parent}: {len(parts)} of {int(match[2])} shards; fetch the missing ones")
    return files


def _merge(opened: dict[Path, dict[str, StoredTensor]]) -> dict[str, StoredTensor]:
    merged: dict[str, StoredTensor] = {}
    for path, tensors in opened.items():
        if duplicate := next((name for name in tensors if name in merged), None):
            raise ConversionError(f"{path}: tensor {duplicate[:200]!r} is in another shard too; which one is meant?")
        merged.update(tensors)
    return merged
