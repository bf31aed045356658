"""Importance matrices of llama.cpp, both its GGUF files and the older .dat ones: tensor name -> weight per column."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle.errors import InputError

_SUMS, _COUNTS = ".in_sum2", ".counts"


def read_imatrix(path: str | Path) -> dict[str, np.ndarray]:
    """float32 [n_columns] per tensor, or [n_experts * n_columns]: the mean square of each column's inputs.

    Raises InputError for a file that is neither of the two formats, or is cut off.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        entries = _read_gguf(path) if magic == b"GGUF" else _read_legacy(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Give an imatrix file of llama.cpp.") from error
    if not entries:
        raise InputError(f"{path}: holds no importance matrix. Make one with llama-imatrix.")
    for name, values in entries.items():
        if not np.isfinite(values).all():
            raise InputError(f"{path}: the weights of {name} are not finite. Make the importance matrix again.")
    return entries


def _read_gguf(path: Path) -> dict[str, np.ndarray]:
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        complete = "imatrix.chunk_count" in reader.fields
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise InputError(f"{path}: damaged GGUF ({error}). Make the importance matrix again.") from error
    names = [name.removesuffix(_SUMS) for name in tensors if name.endswith(_SUMS)]
    if not complete or any(name + _COUNTS not in tensors for name in names):
        raise InputError(f"{path}: a GGUF, but not an importance matrix. Make one with llama-imatrix.")
    return {name: _mean(tensors[name + _SUMS], tensors[name + _COUNTS]) for name in names}


def _mean(sums: Any, counts: Any) -> np.ndarray:
    """Sums over tokens [n_experts, n_columns] to means; an expert that was never used counts all columns alike."""
    counts = np.round(np.asarray(counts, dtype=np.float32)).reshape(-1, 1)
    table = np.asarray(sums, dtype=np.float32).reshape(len(counts), -1)
    return np.where(counts > 0, table / np.maximum(counts, 1), 1).astype(np.float32).reshape(-1)


def _read_legacy(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    entries: dict[str, np.ndarray] = {}
    try:
        (n_entries,) = struct.unpack_from("<i", data, 0)
        offset = 4
        for _ in range(n_entries):
            (length,) = struct.unpack_from("<i", data, offset)
            name = data[offset + 4 : offset + 4 + length].decode()
            offset += 4 + length
            n_calls, n_values = struct.unpack_from("<ii", data, offset)
            if length <= 0 or n_values <= 0:
                raise ValueError(f"entry {name!r} has {n_values} values")
            values = np.frombuffer(data, "<f4", n_values, offset + 8)
            entries[name] = values / np.float32(max(n_calls, 1))
            offset += 8 + 4 * n_values
    except (struct.error, ValueError) as error:
        raise InputError(f"{path}: not an imatrix file of llama.cpp, or cut off ({error}).") from error
    return entries
