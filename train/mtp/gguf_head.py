"""MTP heads in GGUF files: read as the start of training, written as a file next to the target (`mtp-NAME.gguf`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from llama_eagle.convert import rows
from llama_eagle.convert.table import stored_type
from llama_eagle.convert.writer import gguf_output
from llama_eagle.errors import InputError
from llama_eagle.gguf import mtp
from llama_eagle.gguf.header import Header, read_model
from llama_eagle.gguf.names import HELD_OUT, TRAINED_LENGTH
from llama_eagle.gguf.tensors import read_rows
from numpy.typing import NDArray
from torch import Tensor

BLOCK = {row.source: row.target for row in (*rows.HYBRID_NORMS, *rows.GATED_ATTENTION, *rows.DENSE)}
HEAD = {f"layers.0.{name}": target for name, target in BLOCK.items()} | {row.source: row.target for row in rows.MTP}
SHARED = ("token_embd.weight", "output_norm.weight", "output.weight")  # of the target, which such a file contains too
TYPE = "q8_0"


def stored_head(parts: Sequence[Header]) -> dict[str, Tensor]:
    """Return the head of a model's files in a checkpoint's names and shapes, norms with their whole gain, if any."""
    return _read(parts, mtp.n_layers(parts[0]), HEAD) if mtp.has_head(parts) else {}


def earlier_head(path: Path) -> dict[str, Tensor]:
    """Return the head of a GGUF. Raises `InputError` if it has none."""
    found = stored_head(read_model(path)[1])
    if not found:
        raise InputError(f"--init {path}: it has no MTP head. Name a model with one, or an mtp-*.gguf.")
    return found


def last_attention_block(parts: Sequence[Header]) -> dict[str, Tensor]:
    """Return the last block with full attention, in the names and shapes it has in a head."""
    names = {name for header in parts for name in header.tensors}
    number = max(n for n in range(mtp.n_layers(parts[0])) if f"blk.{n}.attn_q.weight" in names)
    return _read(parts, number, {f"layers.0.{name}": target for name, target in BLOCK.items()})


def _read(parts: Sequence[Header], block: int, names: Mapping[str, str]) -> dict[str, Tensor]:
    found = {name: read_rows(parts, f"blk.{block}.{target}") for name, target in names.items()}
    return {
        name: torch.tensor(values.flatten() if "norm" in name else values)
        for name, values in found.items()
        if values is not None
    }


def write_head(
    tensors: Mapping[str, Tensor],
    parts: Sequence[Header],
    path: Path,
    acceptance: Sequence[float] = (),
    trained_length: int = 0,
) -> None:
    """Write a head with the target's keys, embeddings, norm and output matrix; all or nothing.

    tensors: in a checkpoint's names and shapes, norms with their whole gain. acceptance: rates by position on held-out
    data. trained_length: tokens of the longest training text; 0: unknown.
    """
    first = parts[0]
    n_layers, prefix = mtp.n_layers(first), f"{first.architecture}."
    with gguf_output(path, arch=first.architecture) as out:
        for name in first.keys:
            if not name.startswith(("split.", "general.architecture", "general.alignment", "general.file_type")):
                out.copy_key(first, name)
        out.key(f"{prefix}block_count", n_layers + 1)
        out.key(f"{prefix}nextn_predict_layers", 1)
        out.key(HELD_OUT, list(acceptance), "f32")
        if trained_length:
            out.key(TRAINED_LENGTH, trained_length)
        if recurrent := first.arch_key("attention.recurrent_layers"):
            out.key(f"{prefix}attention.recurrent_layers", [*recurrent[:n_layers], False])
        for name in SHARED:
            if (shape := _shape(parts, name)) is not None:
                out.tensor(name, shape, partial(_values, parts, name, shape), stored_type(name, shape, TYPE))
        for name, tensor in tensors.items():
            target = f"blk.{n_layers}.{HEAD[name]}"
            values = tensor.detach().cpu().float().numpy()
            out.tensor(target, values.shape, partial(np.asarray, values), stored_type(target, values.shape, TYPE))


def _shape(parts: Sequence[Header], name: str) -> tuple[int, ...] | None:
    """Return a tensor's shape in NumPy order; None if no file has it."""
    return next((tuple(reversed(h.tensors[name].shape)) for h in parts if name in h.tensors), None)


def _values(parts: Sequence[Header], name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    found = read_rows(parts, name)
    if found is None:
        raise InputError(f"{parts[0].path}: {name} has no data. Download it again.")
    return found.reshape(shape)
