"""Quantized weights of MLX: words of codes, and a scale for each group of columns.

affine: integers of 1 to 8 bits, times the scale, plus the bias. mxfp4, nvfp4, mxfp8: floats times the scale.
transformers' Metal stores MLX's integers, with other names.
"""

from __future__ import annotations

import functools

import numpy as np
from llama_eagle.convert.dtypes import FP4_PAIRS, rounded_as, scale_to_f32, to_bf16, to_f32
from llama_eagle.convert.source.coded import MLX_BITS, Scheme
from llama_eagle.convert.source.decode import Parts, Shape, by_group, unpack
from llama_eagle.errors import ConversionError

_FLOATS = {(4, 16): "F8_E4M3", (4, 32): "F8_E8M0", (8, 32): "F8_E8M0"}  # (bits, group) -> type of the scales
_SCALE_TYPES = (np.uint8, np.uint16, np.float16, np.float32)  # as stored; uint16 is BF16
_PAIRS = FP4_PAIRS.view(np.uint64).reshape(-1)  # looked up at once
_LOWEST_EXACT = 27  # exponent 2^-100: every product with an FP8 or FP4 code is a normal BF16 number
_NVFP4_TOP = np.float32(448 * 6)  # largest scale times largest code


def fits(codes: Shape, wanted: Shape) -> bool:
    """Return True if words [..., rows, words] can hold a weight: its columns determine the bits."""
    *rows, n_words = codes
    return len(codes) > 1 and any(wanted == (*rows, 32 * n_words // n) for n in MLX_BITS if 32 * n_words % n == 0)


def decode(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode words [rows, words] with scales [rows, groups]; the parts are as stored.

    Returns BF16 bit patterns, float16 or float32, as the scales have it, for integers, and float32 for floats.
    """
    columns, scales, biases = shape[-1], parts["scales"], parts.get("biases", parts.get("qbiases"))
    bits = 32 * codes.shape[-1] // columns
    n_groups = scales.shape[-1] if scales.ndim == codes.ndim == 2 and len(scales) == len(codes) else 0
    if not n_groups or columns % n_groups or scales.dtype not in _SCALE_TYPES:
        raise ConversionError(f"its scales have shape {list(scales.shape)}, expected groups of {columns} columns")
    if scales.dtype == np.uint8:
        return _floats(codes, bits, columns // n_groups, scales, parts.get("factor"))
    if biases is None:
        raise ConversionError("it has scales and no biases, which integers need; download it again")
    if biases.shape != scales.shape or biases.dtype != scales.dtype:
        raise ConversionError(f"its biases have shape {list(biases.shape)}, its scales {list(scales.shape)}")
    values = unpack(codes, bits, columns).astype(np.float32).reshape(*scales.shape, -1)
    may_split = _may_split(scales, biases)
    values *= to_f32(scales)[:, :, None]
    if "biases" in parts:  # MLX's kernels round the product, too
        values = _narrow(values) if may_split else to_f32(rounded_as(values, scales.dtype))
    values += to_f32(biases)[:, :, None]
    values = values.reshape(len(codes), columns)
    return _upper_halves(_narrow(values)) if may_split else rounded_as(values, scales.dtype)


def _floats(codes: np.ndarray, bits: int, size: int, scales: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
    kind = _FLOATS.get((bits, size))
    if kind is None:
        raise ConversionError(f"it has floats of {bits} bits in groups of {size}, which is none of MLX's modes")
    raw = np.ascontiguousarray(codes).view(np.uint8)
    if factor is None and (kind == "F8_E4M3" or scales.min() >= _LOWEST_EXACT):
        pairs = (scales.astype(np.uint16) << 8)[:, :, None] | raw.reshape(*scales.shape, -1)
        return _products(kind, bits).take(pairs).view(np.uint16).reshape(len(codes), -1)
    scale = scale_to_f32(scales, kind)
    if factor is not None:  # one per expert of a fused layer
        scale = scale * (to_f32(factor).reshape(()) / _NVFP4_TOP)
    if bits == 8:
        return by_group(scale_to_f32(raw, "F8_E4M3"), scale)
    return by_group(_PAIRS[raw].view(np.float32), scale)


@functools.cache
def _products(kind: str, bits: int) -> np.ndarray:
    """Return the BF16 patterns of a byte's one or two values by 256 * scale + byte. All are exact."""
    every = np.arange(256, dtype=np.uint8)
    values = scale_to_f32(every, "F8_E4M3")[:, None] if bits == 8 else FP4_PAIRS
    with np.errstate(over="ignore"):
        products = to_bf16(scale_to_f32(every, kind)[:, None, None] * values)
    return products.view(f"u{16 // bits}").reshape(-1)


def _may_split(*parts: np.ndarray) -> bool:
    """Return True for BF16 patterns of at most 2^100."""
    return all(part.dtype == np.uint16 and (part & 0x7FFF).max() <= 227 << 7 for part in parts)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Round float32 to the precision of BF16 in place, to nearest even, by Veltkamp's splitting.

    Values must not overflow (_may_split). Subnormal ones stay: sums and products of BF16 are multiples of its smallest.
    """
    split = values * np.float32((1 << 16) + 1)
    np.subtract(split, values, out=values)
    return np.subtract(split, values, out=values)


def _upper_halves(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)
