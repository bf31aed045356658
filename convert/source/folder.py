"""A Hugging Face folder or hub id with its configuration, JSON files and tensors.

Tensors are found through model.safetensors, an index of shards, or pytorch_model.bin, in the order of transformers.
Facts in a folder are checked before use; every fault raises one of llama_eagle.errors.
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
from llama_eagle.convert.source.unmerged import ADAPTER_FILES, adapter_kind, inner_folders, training_kind
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.file_kinds import FOLDER, is_not
from llama_eagle.files import expand_home
from llama_eagle.hub import snapshot

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]

SMALL_FILES = ["README.md", "*.json", "*.jinja", "*.txt", "*.model", "d2t.*", "t2d.*"]
MAX_CONFIG_BYTES = 4 << 20
LOOSE_TENSORS = ("d2t", "t2d")  # some training folders store the vocabulary map in separate files


class UnmergedError(ConversionError):
    """A folder holds an adapter, or the parts of a training framework, instead of a model."""


Opener = Callable[[Path], dict[str, StoredTensor]]


class Checkpoint:
    """One model folder.

    source: as given by the user. revision: the hub commit if it is known. ignores_adapter: the weights count alone,
    without an adapter next to them.
    """

    def __init__(self, path: Path, *, source: str, revision: str | None = None, ignores_adapter: bool = False) -> None:
        self.path = path
        self.changes: Any = None  # an adapter to merge: convert.adapters.merge.Merge
        self.ignores_adapter = ignores_adapter
        self.source = source
        self.revision = revision
        self.config = self._config()

    def names(self) -> list[str]:
        """Return all tensor names, sorted. The first call opens the weight files."""
        return sorted(self._tensors)

    def info(self, name: str) -> TensorInfo:
        return self._stored(name).info

    def read(self, name: str) -> np.ndarray:
        """Return the tensor in its shape as stored: BF16 as uint16 and F8 as uint8 bit patterns.

        Mapped, read-only; free it early.
        """
        return self._stored(name).read()

    def read_f32(self, name: str) -> np.ndarray:
        """Return a floating-point tensor in its shape as float32 (a copy unless it is stored in that type)."""
        if self.info(name).dtype not in FLOAT_DTYPES:
            raise ConversionError(f"{self.path}: {name} is {self.info(name).dtype}; dequantize the checkpoint first")
        return to_f32(self.read(name))

    def json_file(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object of the folder (tokenizer.json, ...); None if it has no such file."""
        path = self.path / name
        return read_json(path) if path.exists() else None

    def _config(self) -> dict[str, Any]:
        path = self.path / "config.json"
        if not path.exists():
            kind = next(filter(None, (find(self.path) for find in (adapter_kind, training_kind, inner_folders))), None)
            raise ConfigError(f"{self.path}: {kind or 'no config.json; give the folder of a Hugging Face checkpoint'}")
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
    source: str | Path | Checkpoint, *, revision: str | None = None, weights: bool = True, ignore_adapter: bool = False
) -> Checkpoint:
    """Open a local folder, or a hub id such as "org/name" or "org/name/subfolder", which is downloaded unless cached.

    An open checkpoint is returned unchanged. `weights=False` downloads configuration and tokenizer only.
    `ignore_adapter=True` accepts an adapter next to the weights, which is not read. Raises ConfigError or
    ConversionError for a fault of the checkpoint, EnvironmentFailure if the hub cannot be reached.
    """
    if isinstance(source, Checkpoint):
        return source
    text = os.fspath(source)
    path = expand_home(text)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError):
        raise ConfigError(f"{text[:200]!r} is not a usable path") from None
    if is_folder:
        return Checkpoint(path, source=text, revision=_snapshot_revision(path), ignores_adapter=ignore_adapter)
    if exists:
        raise ConfigError(is_not(path, FOLDER))
    named = re.fullmatch(r"(\w[\w.-]*/[\w.-]+)((?:/\w[\w.-]*)*)", text)
    if named is None:
        raise ConfigError(f"{text}: there is no such folder, and it is not a hub id (organisation/name)")
    subfolder = named[2].strip("/")
    path = _download(named[1], subfolder, revision, weights)
    revision = _snapshot_revision(path) or revision
    return Checkpoint(path / subfolder, source=text, revision=revision, ignores_adapter=ignore_adapter)


def _snapshot_revision(path: Path) -> str | None:
    """Return the commit in the name of a hub cache's folder: .../snapshots/<40 hex digits>."""
    path = path.absolute()
    return path.name if path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", path.name) else None


def _download(repo: str, subfolder: str, revision: str | None, weights: bool) -> Path:
    """Return the snapshot's folder.

    Raises `ConfigError` before the weights are downloaded if there is no checkpoint.
    """
    prefix = f"{subfolder}/" if subfolder else ""
    small = [prefix + pattern for pattern in SMALL_FILES]
    path = snapshot(repo, small, revision)
    if not (path / subfolder / "config.json").exists():
        _refuse_without_config(repo, subfolder, path)
    if weights:
        _download_weights(repo, path / subfolder, prefix, revision)
    return path


def _download_weights(repo: str, folder: Path, prefix: str, revision: str | None) -> None:
    """Download the weights that `_open_weights` reads: some repositories have them in a second form, too."""
    extra = ADAPTER_FILES if adapter_kind(folder) else ()  # refused next to a model's weights
    for stem, suffix in (("model", ".safetensors"), ("", ".safetensors"), ("pytorch_model", ".bin"), ("", ".bin")):
        index = folder / f"{stem}{suffix}.index.json"
        names = sorted(set(_weight_map(index).values())) if index.exists() else [f"{stem}*{suffix}"]
        snapshot(repo, [prefix + name for name in (*names, *extra)], revision)
        if any(folder.glob(f"{stem}*{suffix}")):
            return


def _refuse_without_config(repo: str, subfolder: str, path: Path) -> None:
    if kind := adapter_kind(path / subfolder):
        raise ConfigError(f"{repo}: {kind}")
    found = sorted(file.parent.relative_to(path).as_posix() for file in path.rglob("config.json"))
    if subfolder:
        raise ConfigError(f"{repo}: no checkpoint (config.json) in its folder {subfolder}. Choose another one.")
    if found:
        raise ConfigError(f"{repo}: its checkpoints are in folders ({', '.join(found)}). Choose one: {repo}/{found[0]}")
    raise ConfigError(f"{repo}: no checkpoint (config.json) in this repository. Name another one.")


# --- weight files of a folder -----------------------------------------------------------------------------------


def _open_weights(folder: Path) -> dict[str, StoredTensor]:
    for stem, suffix, opener in (("model", ".safetensors", open_safetensors), ("pytorch_model", ".bin", open_torch)):
        single, index = folder / (stem + suffix), folder / f"{stem}{suffix}.index.json"
        if index.exists() and (not single.exists() or _names_more(index, single.name)):
            return _open_index(index, opener)
        if single.exists():
            return opener(single)
        others = ("adapter_", "training_", "shard-")
        files = sorted(p for p in folder.glob(f"*{suffix}") if not p.name.startswith(others))
        files = [p for p in files if p.name.startswith(stem)] or files  # Mistral's and accelerate's have other names
        if files:
            return _merge({file: opener(file) for file in _all_parts(files)})
    if kind := adapter_kind(folder) or training_kind(folder):
        raise UnmergedError(f"{folder}: {kind}")
    hint = (
        "; training_state.pt alone is not a model, export it first" if (folder / "training_state.pt").exists() else ""
    )
    raise ConversionError(f"{folder}: no model.safetensors, no index of shards and no pytorch_model.bin{hint}")


def _names_more(index: Path, name: str) -> bool:
    """Return True if an index lists other files in addition to this one, as for a head that llm-compressor adds."""
    files = read_json(index).get("weight_map")
    return isinstance(files, dict) and name in files.values() and any(file != name for file in files.values())


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor by an index of shards."""
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConversionError(f"{index}: no weight_map")
    for name in weight_map.values():
        # Links may point outside of the folder (a hub cache consists of them); names must not.
        plain = isinstance(name, str) and name == Path(name).name and not set(name) & {"\\", "\0"}
        if not plain or not name.endswith(suffix):
            raise ConversionError(f"{index}: names {str(name)[:200]!r}; only plain {suffix} file names are accepted")
    return weight_map


def _open_index(index: Path, opener: Opener) -> dict[str, StoredTensor]:
    weight_map = _weight_map(index)
    files = [index.parent / name for name in sorted(set(weight_map.values()))]
    opened = {file: opener(file) for file in files}
    for tensor, name in weight_map.items():
        if tensor not in opened[index.parent / name]:
            raise ConversionError(f"{index}: {tensor[:200]!r} is not in {name} as listed; download the shards again")
    return _merge(opened)


def _all_parts(files: list[Path]) -> list[Path]:
    """Return the files, after checking that every set named x-00001-of-00003 is complete."""
    for file in files:
        if match := re.search(r"-(\d{5})-of-(\d{5})\.", file.name):
            parts = [p for p in files if f"-of-{match[2]}." in p.name]
            if len(parts) != int(match[2]):
                raise ConversionError(
                    f"{file.parent}: {len(parts)} of {int(match[2])} shards; download the missing ones"
                )
    return files


def _merge(opened: dict[Path, dict[str, StoredTensor]]) -> dict[str, StoredTensor]:
    merged: dict[str, StoredTensor] = {}
    for path, tensors in opened.items():
        if duplicate := next((name for name in tensors if name in merged), None):
            raise ConversionError(f"{path}: tensor {duplicate[:200]!r} is in another shard too; remove one of them")
        merged.update(tensors)
    return merged
