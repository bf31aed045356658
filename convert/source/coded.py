"""Quantized checkpoints: storage and decoding of FP8, INT8 and packed integer weights with their scales.

FP8 (transformers, compressed-tensors "float-quantized", ModelOpt): codes times scales, one per tensor, row or block.
INT8 (compressed-tensors "int-quantized"): the same.
Integers (compressed-tensors "pack-quantized"): whole numbers in 32-bit words, lowest bits first, shifted by half their
range; minus a zero point, times a scale per row or per group of columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_eagle.convert.dtypes import fp8_to_f32, to_f32
from llama_eagle.errors import ConfigError, ConversionError

FP8_DTYPES = ("F8_E4M3", "F8_E5M2")
SCALED_DTYPES = (*FP8_DTYPES, "I8")
_PIECE = 1 << 20  # elements decoded at once
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")  # formats of compressed-tensors


@dataclass(frozen=True)
class Scheme:
    """Facts that only config.json states. block: rows and columns of one FP8 scale. bits: of packed integers."""

    block: tuple[int, int] | None = None
    bits: int = 4


def read_scheme(config: dict[str, Any], *, strict: bool = True) -> Scheme:
    """Return the scheme of a checkpoint. Raises ConfigError for an unsupported one.

    With strict=False, return the default instead: a draft's configuration may be a copy of its target's, and its
    tensors decide.
    """
    inner = (config.get(key) for key in ("text_config", "transformer_layer_config"))
    keys = ("quantization_config", "compression_config")  # the second is older
    stated = (part.get(key) for part in (config, *inner) if isinstance(part, dict) for key in keys)
    found = next(filter(None, stated), None)
    if found is None:
        return Scheme()
    method = found.get("quant_method") if isinstance(found, dict) else found
    if method == "fp8":
        return Scheme(block=_pair(found.get("weight_block_size"), "weight_block_size"))
    if method == "compressed-tensors" and (weights := _weight_arguments(found)):
        bits = weights.get("num_bits")
        return Scheme(_pair(weights.get("block_structure"), "block_structure"), bits if type(bits) is int else 4)
    if (method == "modelopt" and str(found.get("quant_algo")).startswith("FP8")) or not strict:
        return Scheme()
    kind = found.get("format") or found.get("quant_algo") if isinstance(found, dict) else None
    raise ConfigError(
        f"the checkpoint is quantized with {method!r}{f' ({kind})' if kind else ''}; only FP8, INT8 and packed "
        "integers of compressed-tensors can be read: convert the unquantized checkpoint and quantize the GGUF"
    )


def _weight_arguments(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return compressed-tensors' arguments for weights; None if its groups differ or the format is not supported."""
    groups = found.get("config_groups")
    if not isinstance(groups, dict):
        return None
    each = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
    formats = {found.get("format"), *(group.get("format") for group in groups.values() if isinstance(group, dict))}
    same = len(each) == len(groups) and all(weights == each[0] for weights in each)
    return each[0] if each and isinstance(each[0], dict) and same and formats - {None} <= set(_FORMATS) else None


def _pair(value: Any, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, str):  # "128x128" in older files
        value = [int(n) for n in value.split("x") if n.isdecimal()]
    if not (isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)):
        raise ConfigError(f"config.json: {name} is {value!r}, expected two positive numbers such as [128, 128]")
    return value[0], value[1]


@dataclass(frozen=True)
class Packed:
    """Packed integers of shape (R, C).

    words: [R, ceil(C * bits / 32)] int32. scale: [R, groups]. zero: [ceil(R * bits / 32), groups] int32 or None. group:
    [C], groups of columns that are not in order, or None.
    """

    words: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    group: np.ndarray | None
    shape: tuple[int, int]
    bits: int

    def to_f32(self) -> np.ndarray:
        """Return float32 [R, C]. Raises ConversionError for parts that do not fit together."""
        rows, columns = self.shape
        if self.bits not in (2, 4, 8):
            raise ConversionError(f"its integers have {self.bits} bits; 2, 4 and 8 can be read")
        scale = to_f32(self.scale).reshape(rows, -1) if self.scale.size % rows == 0 else self.scale
        n_groups = scale.shape[-1]
        if self.words.shape != (rows, -(-columns * self.bits // 32)) or scale.ndim != 2 or columns % n_groups:
            raise ConversionError(
                f"words {list(self.words.shape)} and scales {list(self.scale.shape)} do not fit {rows} x {columns}"
            )
        group = np.arange(columns) // (columns // n_groups) if self.group is None else self.group
        if group.shape != (columns,) or group.min() < 0 or group.max() >= n_groups:
            raise ConversionError(f"its columns belong to groups that do not exist ({n_groups} have scales)")
        zero = self._zero_points(n_groups)
        out = np.empty(self.shape, np.float32)
        step = max(1, _PIECE // columns)
        for some in (slice(start, start + step) for start in range(0, rows, step)):
            out[some] = _unpack(self.words[some], self.bits, columns)
            if zero is not None:
                out[some] -= zero[some][:, group]
            out[some] *= scale[some][:, group]
        return out

    def _zero_points(self, n_groups: int) -> np.ndarray | None:
        """Return int16 [R, groups]; they are packed along the rows."""
        rows = self.shape[0]
        if self.zero is None:
            return None
        if self.zero.shape != (-(-rows * self.bits // 32), n_groups):
            raise ConversionError(f"its zero points have shape {list(self.zero.shape)}, {n_groups} groups")
        return _unpack(np.ascontiguousarray(self.zero.T), self.bits, rows).T


def _unpack(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return int16 [n, count]: the integers in each row's words, from -2**(bits-1)."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (words.view(np.uint32)[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return values.reshape(len(words), -1)[:, :count].astype(np.int16) - np.int16(1 << (bits - 1))


def decode_fp8(codes: np.ndarray, dtype: str, scale: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Return float32 values of FP8 or INT8 codes.

    The shape of the scales determines their kind; blocks have the configured size.
    """
    rows = codes.shape[0]
    one = scale.size == 1
    if one or (codes.ndim == 2 and scale.shape in ((rows,), (rows, 1))):
        return fp8_to_f32(codes, dtype, scale.reshape(-1) if one else scale, None)
    return fp8_to_f32(codes, dtype, scale, scheme.block)
