"""Folders whose weights are not a model's yet: adapters, parts of training frameworks; each with its remedy.

FOLDER, BASE, ADAPTER and OUT in a remedy are names for the user's own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llama_eagle.convert.source.adapter_kinds import MERGE, kind_fault
from llama_eagle.convert.source.storage import read_json
from llama_eagle.errors import EagleError

_RANKS = (
    "its weights are the parts of several ranks (shard-*.safetensors, transformers' distributed_checkpoint=True). Join "
    'them: python -c "from transformers.distributed import consolidate_distributed_checkpoint as join; '
    "join('FOLDER')\""
)
_DCP = (
    "its weights are a distributed checkpoint of torch (.distcp, as FSDP saves it). Join them: accelerate "
    "merge-weights {} FOLDER"
)
_ZERO = (
    "its weights are the parts of several ranks (DeepSpeed ZeRO). Join them with the program in the folder: python "
    "zero_to_fp32.py . ."
)
_LITGPT = (
    "its weights have LitGPT's names (lit_model.pth). Convert them back: litgpt convert_from_litgpt FOLDER OUT, rename "
    "OUT/model.pth to pytorch_model.bin, and add config.json and the tokenizer's files"
)
_HQQ = (
    "its weights are a pickle of HQQ's own classes (qmodel.pt), which is not read. Convert the unquantized checkpoint "
    "and quantize the GGUF"
)
CHOICE = "--merge converts both as one model, --ignore-adapter the weights without it"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def names_of(folder: Path) -> list[str]:
    """Return the sorted names in a folder; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in folder.iterdir())
    return []


def adapter_kind(folder: Path) -> str | None:
    """Return the kind and the remedy of the adapter in a folder; None if there is no adapter_config.json."""
    if not (folder / "adapter_config.json").exists():
        return None
    config: dict[str, Any] = {}
    with contextlib.suppress(EagleError):  # of a damaged file, the folder's content is still known
        config = read_json(folder / "adapter_config.json")
    if fault := kind_fault(config):
        return f"{fault.what}, not a model. {fault.remedy}"
    return (
        f"a LoRA adapter, not a model. {MERGE}, or convert it for its model (--target MODEL.gguf) and use it by --lora"
    )


def adapter_next_to_weights(folder: Path) -> str | None:
    """Return the fault of a folder with an adapter next to base weights: transformers with peft loads both."""
    if not any((folder / name).exists() for name in ADAPTER_FILES) or adapter_kind(folder) is None:
        return None
    return (
        "an adapter (adapter_config.json) is next to the model's weights, and transformers with peft loads both. Move "
        f"it (adapter_*) to another folder, or merge it with peft. {CHOICE}"
    )


def training_kind(folder: Path) -> str | None:
    """Return the kind and the remedy of weights that a training framework saved in parts or under other names."""
    names = names_of(folder)
    if any(re.fullmatch(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors", name) for name in names):
        return _RANKS
    for name in ("", *names):
        if any(inner.endswith(".distcp") for inner in (names_of(folder / name) if name else names)):
            return _DCP.format(f"FOLDER/{name}".rstrip("/"))
    if "zero_to_fp32.py" in names or any(re.fullmatch(r"global_step\d+", name) for name in names):
        return _ZERO
    if "qmodel.pt" in names:
        return _HQQ
    return _LITGPT if "lit_model.pth" in names else None


def inner_folders(folder: Path) -> str | None:
    """Return a sentence about the checkpoints or adapters one level down; None without any."""
    for file, what in (("config.json", "checkpoints"), ("adapter_config.json", "adapters")):
        if found := list(_with_file(folder, file)):
            named = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
            remedy = f"Give one of them: {folder / found[0]}" if what == "checkpoints" else MERGE
            return f"its {what} are in folders ({named}). {remedy}"
    return None


def _with_file(folder: Path, file: str) -> Iterator[str]:
    yield from (name for name in names_of(folder) if (folder / name / file).exists())
