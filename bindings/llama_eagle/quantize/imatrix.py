"""Importance matrices of llama.cpp, both its GGUF files and the older .dat ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle.errors import InputError
from llama_eagle.file_kinds import is_not, known_kind
from llama_eagle.files import refuse_special

_SUMS, _COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True)
class Imatrix:
    """entries: tensor name -> float32 [n_columns] or [n_experts * n_columns], the mean square of each column's inputs.
    n_chunks: of the text, 0: unknown. unused_experts: name -> (experts that were never chosen, all experts); each
    column of such an expert has weight 1."""

    entries: dict[str, np.ndarray]
    n_chunks: int = 0
    unused_experts: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_imatrix(path: str | Path) -> Imatrix:
    """Read the statistics; a tensor whose inputs were never counted has no entry.

    Raises InputError for a file that is neither of the two formats, or is cut off.
    """
    path = Path(path)
    refuse_special(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        found = _read_gguf(path) if magic == b"GGUF" else Imatrix(_read_legacy(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Give an imatrix file of llama.cpp.") from error
    if not found.entries:
        raise InputError(f"{path}: holds no importance matrix. Make one with `llama-eagle imatrix`.")
    for name, values in found.entries.items():
        if not np.isfinite(values).all():
            raise InputError(f"{path}: the weights of {name} are not finite. Make the importance matrix again.")
    return found


def _read_gguf(path: Path) -> Imatrix:
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        n_chunks = reader.fields.get("imatrix.chunk_count")
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise InputError(f"{path}: damaged GGUF ({error}). Make the importance matrix again.") from error
    names = [name.removesuffix(_SUMS) for name in tensors if name.endswith(_SUMS)]
    if n_chunks is None or any(name + _COUNTS not in tensors for name in names):
        raise InputError(f"{path}: a GGUF, but not an importance matrix. Make one with `llama-eagle imatrix`.")
    counts = {name: np.round(np.asarray(tensors[name + _COUNTS], dtype=np.float32)).reshape(-1, 1) for name in names}
    counts = {name: values for name, values in counts.items() if (values > 0).any()}
    unused = {name: (int((values <= 0).sum()), len(values)) for name, values in counts.items() if (values <= 0).any()}
    entries = {name: _mean(tensors[name + _SUMS], values) for name, values in counts.items()}
    return Imatrix(entries, int(n_chunks.contents()), unused)


def _mean(sums: Any, counts: np.ndarray) -> np.ndarray:
    """Turn sums over tokens [n_experts, n_columns] into means; for an unused expert all columns count alike."""
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
        if known_kind(path):
            raise InputError(is_not(path, "an importance matrix")) from None
        raise InputError(f"{path}: not an imatrix file of llama.cpp, or cut off ({error}).") from error
    return entries
