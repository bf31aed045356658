"""GGUF files, read without trusting them: keys and tensor descriptions, a tensor's bytes on demand.

Keys stay as the bytes they are stored in, so that copying a tokenizer of 150000 tokens costs nothing.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.storage import require_file
from llama_eagle.errors import ConversionError

# GGUF value type -> struct format; 8 is a string, 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MAX_COUNT = 1 << 20  # keys or tensors; the largest published models have a few thousand


@dataclass(frozen=True)
class GGUFTensor:
    """Shape in NumPy order; kind is the ggml type id; start and n_bytes locate the data in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    n_bytes: int


class GGUFFile:
    """One GGUF file. `raw` maps a key to its stored bytes, type tag included."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        size = require_file(self.path)
        try:
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self.raw, self.tensors = _parse(data, size)
        except (struct.error, ValueError, IndexError, OverflowError, OSError) as error:
            reason = " ".join(str(error).split())[:120]
            raise ConversionError(f"{self.path}: not a readable GGUF file ({reason}); fetch it again") from None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key: bool, int, float, str, or a list of them."""
        return _decode(self.raw[key]) if key in self.raw else default

    @cached_property
    def arch(self) -> str:
        return str(self.get("general.architecture", ""))

    def arch_key(self, name: str, default: Any = None) -> Any:
        """The value of `<architecture>.<name>`."""
        return self.get(f"{self.arch}.{name}", default)

    def read(self, name: str) -> np.ndarray:
        """Values of a tensor: float32 (dequantized if need be), or integers as stored."""
        shape = self.tensors[name].shape
        return self.rows(name, np.arange(math.prod(shape[:-1]))).reshape(shape)

    def rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """The rows `ids` of a tensor seen as a matrix, as `read` gives them."""
        from gguf import GGMLQuantizationType, dequantize

        tensor = self.tensors[name]
        n_rows = math.prod(tensor.shape[:-1])
        if not tensor.n_bytes or tensor.n_bytes % n_rows:
            raise ConversionError(f"{self.path}: {name} has type {tensor.kind}, which cannot be read here")
        data = np.memmap(self.path, np.uint8, "r", tensor.start, (n_rows, tensor.n_bytes // n_rows))[ids]
        kind = GGMLQuantizationType(tensor.kind)
        if kind.name in ("I8", "I16", "I32", "I64", "F64"):
            return data.view({"I": "i", "F": "f"}[kind.name[0]] + str(int(kind.name[1:]) // 8))
        try:
            return dequantize(data, kind)
        except NotImplementedError:
            raise ConversionError(f"{self.path}: {name} has type {kind.name}, which cannot be read here") from None


def _parse(data: mmap.mmap, size: int) -> tuple[dict[str, bytes], dict[str, GGUFTensor]]:
    magic, version, n_tensors, n_keys = struct.unpack_from("<4sIQQ", data, 0)
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"magic {magic!r}, version {version}")
    if n_tensors > MAX_COUNT or n_keys > MAX_COUNT:
        raise ValueError(f"{n_keys} keys and {n_tensors} tensors")
    raw: dict[str, bytes] = {}
    at = 24
    for _ in range(n_keys):
        name, at = _string(data, at)
        end = _value_end(data, at, size)
        raw[name] = data[at:end]
        at = end
    alignment = _decode(raw["general.alignment"]) if "general.alignment" in raw else 32
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise ValueError(f"alignment {alignment!r}")
    infos = []
    for _ in range(n_tensors):
        info, at = _tensor_info(data, at)
        infos.append(info)
    return raw, dict(_located(infos, -(-at // alignment) * alignment, size))


def _string(data: mmap.mmap | bytes, at: int) -> tuple[str, int]:
    (n,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + n
    if end > len(data):
        raise ValueError("a text runs past the end")
    return data[at + 8 : end].decode("utf-8", "replace"), end


def _value_end(data: mmap.mmap, at: int, size: int) -> int:
    """Where the value that starts at `at` with its type tag ends."""
    (kind,) = struct.unpack_from("<I", data, at)
    at += 4
    count = 1
    if kind == ARRAY:
        kind, count = struct.unpack_from("<IQ", data, at)
        at += 12
    if kind in SCALARS:
        at += count * struct.calcsize("<" + SCALARS[kind])
    elif kind == STRING and count <= size // 8:
        for _ in range(count):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
    else:
        raise ValueError(f"value type {kind} of {count}")
    if at > size:
        raise ValueError("a value runs past the end")
    return at


def _decode(value: bytes) -> Any:
    (kind,) = struct.unpack_from("<I", value, 0)
    if kind == STRING:
        return _string(value, 4)[0]
    if kind in SCALARS:
        return struct.unpack_from("<" + SCALARS[kind], value, 4)[0]
    kind, count = struct.unpack_from("<IQ", value, 4)
    if kind in SCALARS:
        return list(struct.unpack_from(f"<{count}{SCALARS[kind]}", value, 16))
    return list(_texts(value, 16, count))


def _texts(value: bytes, at: int, count: int) -> Iterator[str]:
    for _ in range(count):
        text, at = _string(value, at)
        yield text


def _tensor_info(data: mmap.mmap, at: int) -> tuple[tuple[str, tuple[int, ...], int, int], int]:
    name, at = _string(data, at)
    (n_dims,) = struct.unpack_from("<I", data, at)
    if not 0 < n_dims <= 4:
        raise ValueError(f"tensor {name[:64]!r} has {n_dims} dimensions")
    *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", data, at + 4)
    return (name, tuple(reversed(dims)), kind, offset), at + 4 + 8 * n_dims + 12


def _located(
    infos: list[tuple[str, tuple[int, ...], int, int]], start: int, size: int
) -> Iterator[tuple[str, GGUFTensor]]:
    from gguf import GGML_QUANT_SIZES

    sizes = {int(kind): value for kind, value in GGML_QUANT_SIZES.items()}
    for name, shape, kind, offset in infos:
        # Types newer than the gguf package are listed without a size: `check` needs only their shapes.
        block, n_block = sizes.get(kind, (1, 0))
        n_bytes = math.prod(shape) // block * n_block
        if start + offset + n_bytes > size:
            raise ValueError(f"tensor {name[:64]!r} runs past the end")
        yield name, GGUFTensor(name, shape, kind, start + offset, n_bytes)
