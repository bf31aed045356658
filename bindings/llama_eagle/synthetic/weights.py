"""Seeded weight rows and a safetensors writer. Both work block by block, so that memory stays constant."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

POOL_SIZE = 4_194_319  # odd, so that rows of a power-of-two width are never aligned
BLOCK_VALUES = 1 << 24
SHARD_BYTES = 4 << 30

Array = NDArray[Any]
Rows = Callable[[int, int], Array]


class Noise:
    """Standard normal rows by name, as slices of one pool. Equal (name, row, width) give equal values."""

    def __init__(self, seed: int, stream: int, size: int = POOL_SIZE) -> None:
        pool = np.random.default_rng([seed, stream]).standard_normal(size, dtype=np.float32)
        self.size = size
        self.pool = np.concatenate([pool, pool[: 1 << 16]])  # for rows that start near the end

    def rows(self, name: str, index: Array, width: int) -> NDArray[np.float32]:
        """Return the rows of index [n]: values [n, width], float32."""
        starts = (zlib.crc32(name.encode()) + np.asarray(index, np.int64) * width) % self.size
        return self.slices(starts, width)

    def slices(self, starts: Array, width: int) -> NDArray[np.float32]:
        return np.lib.stride_tricks.sliding_window_view(self.pool, width)[starts]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint. `rows(lo, hi)` returns rows lo..hi-1, in any shape of the right size."""

    name: str
    shape: tuple[int, ...]
    rows: Rows
    dtype: str = "BF16"  # as safetensors spells it

    @property
    def n_bytes(self) -> int:
        return int(np.prod(self.shape)) * {"BF16": 2, "F32": 4, "I64": 8, "BOOL": 1}[self.dtype]


def bf16(values: Array) -> NDArray[np.uint16]:
    """Round float32 of any shape to bfloat16, ties to even; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def write_checkpoint(folder: Path, tensors: list[Tensor]) -> None:
    """Write model.safetensors, or shards of about SHARD_BYTES with an index."""
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(t.n_bytes for t in shards[-1]) + tensor.n_bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        _write_file(folder / "model.safetensors", tensors)
        return
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        _write_file(folder / name, shard)
        weight_map |= {tensor.name: name for tensor in shard}
    index = {"metadata": {"total_size": sum(t.n_bytes for t in tensors)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _write_file(path: Path, tensors: list[Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for t in tensors:
        header[t.name] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": [offset, offset + t.n_bytes]}
        offset += t.n_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for t in tensors:
            _write_tensor(file, t)


def _write_tensor(file: Any, tensor: Tensor) -> None:
    n_rows = tensor.shape[0]
    step = max(1, BLOCK_VALUES * n_rows // int(np.prod(tensor.shape)))
    for low in range(0, n_rows, step):
        values = tensor.rows(low, min(low + step, n_rows))
        file.write((bf16(values) if tensor.dtype == "BF16" else np.ascontiguousarray(values)).tobytes())
