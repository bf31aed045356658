"""Tensors of a GGUF as NumPy arrays, of every type that gguf can dequantize."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_eagle.errors import InputError
from llama_eagle.gguf.header import Header


def read_rows(parts: Iterable[Header], name: str, rows: Any = slice(None)) -> NDArray[np.float32] | None:
    """Return rows [n, columns] of a model's tensor in float32. None if no file of the model has it with its data.

    rows: an index of the first dimension. Raises `InputError` for a type that gguf cannot read.
    """
    from gguf import GGMLQuantizationType, dequantize

    for header in parts:
        tensor = header.tensors.get(name)
        if tensor is None or not tensor.n_bytes:
            continue
        n_rows = tensor.n_elements // tensor.shape[0]
        start = header.data_offset + tensor.offset
        stored = np.memmap(header.path, np.uint8, "r", start, (n_rows, tensor.n_bytes // n_rows))
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # of scales in a damaged file
                return np.asarray(dequantize(stored[rows], GGMLQuantizationType(tensor.type_id)), np.float32)
        except (NotImplementedError, ValueError):  # the second: a type that this version of gguf does not know
            raise InputError(f"{header.path}: {name} is {tensor.type_name}, cannot be read here") from None
    return None
