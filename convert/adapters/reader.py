"""Pairs of a peft adapter: names, ranks and scales, as peft 0.21.2 applies them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.dtypes import require_finite, to_f32
from llama_eagle.convert.source.adapter_kinds import BY_PEFT, adapter_faults, is_whole
from llama_eagle.convert.source.storage import FLOAT_DTYPES, StoredTensor, open_safetensors, open_torch, read_json
from llama_eagle.convert.source.unmerged import ADAPTER_FILES
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.files import expand_home
from llama_eagle.hub import snapshot

_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.default)?(?P<bias>\.bias)?(?:\.weight)?"
)
_EMBEDDING = "embedding_"
MAX_ALPHA = 1e6
SWAPPED_BEFORE = (0, 19)  # versions of peft in which the pairs of a parameter of three dimensions are transposed


@dataclass(frozen=True)
class Pair:
    """An update of one module's weight: scale * b @ a, in the shape of the stored weight.

    module: peft's name of it. a: [rank, in], for a parameter of experts [experts * rank, in]. b: [out, rank] or [out,
    rank * experts]. magnitude: DoRA's norm of each row. bias: of b.
    """

    module: str
    a: np.ndarray
    b: np.ndarray
    magnitude: np.ndarray | None = None
    bias: np.ndarray | None = None


@dataclass(frozen=True)
class Adapter:
    """An adapter folder. whole: trained tensors that replace those of the base model, by peft's names."""

    where: str
    config: Mapping[str, Any]
    pairs: list[Pair]
    whole: dict[str, StoredTensor] = field(default_factory=dict)

    def alpha(self, key: str, rank: int) -> float:
        """Return the alpha by which alpha / rank is peft's scale. key: name of the module, or parameter of experts."""
        name = re.sub(r"\.base_layer\b", "", key).removeprefix("base_model.model.")
        patterns = self.config.get("alpha_pattern") or {}
        found = next((patterns[each] for each in patterns if re.match(rf"(.*\.)?({each})$", name)), None)
        alpha = self.config.get("lora_alpha", 8) if found is None else found
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) < MAX_ALPHA:
            raise ConfigError(f"{self.where}: adapter_config.json: the alpha of {name} is {alpha!r}, expected a number")
        return float(alpha) * (math.sqrt(rank) if self.config.get("use_rslora") else 1.0)

    @property
    def is_swapped(self) -> bool:
        """True if the pairs of experts have the order of peft before 0.19, where shapes permit both."""
        numbers = re.match(r"(\d+)\.(\d+)", str(self.config.get("peft_version") or "0.0"))
        return numbers is not None and (int(numbers[1]), int(numbers[2])) < SWAPPED_BEFORE


def find_adapter(folder: Path) -> Path | None:
    """Return the file with the adapter's weights; None if the folder has no adapter."""
    if not (folder / "adapter_config.json").exists():
        return None
    return next((folder / name for name in ADAPTER_FILES if (folder / name).exists()), None)


def adapter_folder(source: str, revision: str | None = None) -> Path | None:
    """Return the folder of an adapter without a model: a local one, or that of a hub id, which is downloaded."""
    path = expand_home(source)
    if not path.exists() and re.fullmatch(r"\w[\w.-]*/[\w.-]+", source):
        path = snapshot(source, ["adapter_config.json", "config.json", "model*.json"], revision)
        if (path / "adapter_config.json").exists() and not any(path.glob("model*.json")):
            return snapshot(source, ["adapter_config.json", *ADAPTER_FILES], revision)
    has_model = any(path.glob("model*.safetensors")) or any(path.glob("pytorch_model*.bin"))
    return path if (path / "adapter_config.json").exists() and not has_model else None


def read_adapter(folder: Path, *, merging: bool = False) -> Adapter:
    """Read an adapter folder.

    merging: accept what can be merged, but not be held by a GGUF adapter. Raises ConfigError or ConversionError.
    """
    path = find_adapter(folder)
    if path is None:
        raise ConfigError(
            f"{folder}: no adapter (adapter_config.json with adapter_model.safetensors). Give its folder."
        )
    config = read_json(folder / "adapter_config.json")
    stored = (open_torch if path.suffix == ".bin" else open_safetensors)(path)
    for fault in adapter_faults(config, stored):
        if not (merging and fault.merges):
            verb = "cannot be merged by `convert`" if merging else "cannot be held by a GGUF adapter"
            raise ConversionError(f"{folder}: {fault.what}, which {verb}. {fault.remedy}.")
    whole = {name: tensor for name, tensor in stored.items() if is_whole(name) and not _PART.fullmatch(name)}
    pairs = list(_pairs(folder, stored))
    if not pairs and not whole:
        raise ConversionError(f"{folder}: the adapter contains no tensors; download it again")
    return Adapter(str(folder), config, pairs, whole)


def _pairs(folder: Path, stored: Mapping[str, StoredTensor]) -> Iterator[Pair]:
    parts: dict[str, dict[str, str]] = {}
    for name in stored:
        if found := _PART.fullmatch(name):
            part = found["part"] + (found["bias"] or "")
            parts.setdefault(found["module"], {})[part.replace(_EMBEDDING, "")] = name
    for module, names in parts.items():
        yield _pair(folder, module, {part: (name, stored[name]) for part, name in names.items()})


def _pair(folder: Path, module: str, parts: Mapping[str, tuple[str, StoredTensor]]) -> Pair:
    for part, other in (("lora_A", "lora_B"), ("lora_B", "lora_A")):
        if part not in parts:
            lacking = parts.get(other, next(iter(parts.values())))[0]
            raise ConversionError(f"{folder}: the pair of {lacking} is missing ({part}); download the adapter again")
    values = {part: _values(folder, *named) for part, named in parts.items()}
    a, b = values["lora_A"], values["lora_B"]
    if a.ndim != 2 or b.ndim != 2:
        raise ConversionError(
            f"{folder}: {module} has pairs of {max(a.ndim, b.ndim)} dimensions (a convolution's), which a GGUF adapter "
            "cannot hold; leave the module out of the training"
        )
    if a.shape[0] != b.shape[1] or not a.shape[0]:
        raise ConversionError(
            f"{folder}: the ranks of {module} differ: lora_A has {a.shape[0]}, lora_B has {b.shape[1]}; download the "
            "adapter again"
        )
    if _EMBEDDING in parts["lora_A"][0]:  # its values are a transposed update
        a, b = b.T, a.T
        if "lora_magnitude_vector" in values:
            raise ConversionError(f"{folder}: DoRA of embeddings ({module}) is not merged. {BY_PEFT}.")
    return Pair(module, a, b, values.get("lora_magnitude_vector"), values.get("lora_B.bias"))


def _values(folder: Path, name: str, tensor: StoredTensor) -> np.ndarray:
    if tensor.info.dtype not in FLOAT_DTYPES:
        raise ConversionError(f"{folder}: {name} has dtype {tensor.info.dtype}, expected {' or '.join(FLOAT_DTYPES)}")
    try:
        return to_f32(require_finite(tensor.read()))
    except ConversionError as error:
        raise ConversionError(f"{folder}: {name}: {error}") from None
