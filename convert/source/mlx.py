"""Quantized weights of MLX: words of codes, and a scale for each group of columns.

affine: integers of 1 to 8 bits, times the scale, plus the bias. mxfp4, nvfp4, mxfp8: floats times the scale.
transformers' Metal stores MLX's integers, with other names.
"""

from __future__ import annotations

import numpy as np
from llama_eagle.convert.dtypes import FP4_PAIRS, scale_to_f32, to_f32
from llama_eagle.convert.source.coded import MLX_BITS, Scheme
from llama_eagle.convert.source.decode import Parts, Shape, by_group, unpack
from llama_eagle.errors import ConversionError

_FLOATS = {(4, 16): "F8_E4M3", (4, 32): "F8_E8M0", (8, 32): "F8_E8M0"}  # (bits, group) -> type of the scales
_SCALE_TYPES = (np.uint8, np.uint16, np.float16, np.float32)  # as stored; uint16 is BF16
_PAIRS = FP4_PAIRS.view(np.uint64).reshape(-1)  # looked up at once
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
    values *= to_f32(scales)[:, :, None]
    if "biases" in parts:  # MLX's kernels round the product, too
        values = to_f32(_rounded(values, scales.dtype))
    values += to_f32(biases)[:, :, None]
    values = _rounded(values, scales.dtype).reshape(len(codes), columns)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if scales.dtype == np.uint16 else values


def _floats(codes: np.ndarray, bits: int, size: int, scales: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
    kind = _FLOATS.get((bits, size))
    if kind is None:
        raise ConversionError(f"it has floats of {bits} bits in groups of {size}, which is none of MLX's modes")
    scale, raw = scale_to_f32(scales, kind), codes.view(np.uint8)
    if factor is not None:  # one per expert of a fused layer
        scale = scale * (to_f32(factor).reshape(()) / _NVFP4_TOP)
    if bits == 8:
        return by_group(scale_to_f32(raw, "F8_E4M3"), scale)
    return by_group(_PAIRS[raw].view(np.float32), scale)


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round float32 to the type of the scales; to BF16 in place. NaNs of BF16 scales stay NaNs."""
    if dtype != np.uint16:
        return values.astype(dtype, copy=False)
    bits = values.view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    bits += odd
    bits &= 0xFFFF0000
    return values
