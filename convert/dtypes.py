"""Number formats of safetensors and GGUF, and fast exact conversions between them.

Inside the converter a NumPy array of dtype uint16 always contains BF16 bit patterns. FP8 arrives as uint8 and leaves
this module as float32. Every conversion goes through float32 and rounds as ggml does.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from llama_eagle.errors import ConversionError

# GGUF storage type -> (ggml type id, elements per block, bytes per block).
STORAGE: Final[dict[str, tuple[int, int, int]]] = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q8_0": (8, 32, 34),
    "i32": (26, 1, 4),
    "i64": (27, 1, 8),
    "bf16": (30, 1, 2),
}

# `general.file_type` by the type of the matrices, for types that are written without llama.cpp's quantizer.
FILE_TYPE: Final[dict[str, int]] = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}

# The type that keeps the precision of a safetensors type; FP8 and packed integers become BF16.
_KEPT: Final[dict[str, str]] = {"F16": "f16", "F32": "f32", "F64": "f32"}

QUANTIZATION_VERSION: Final = 2  # version of ggml's block formats


def kept_type(dtype: str) -> str:
    """Return the type of a file that keeps the precision of a stored matrix."""
    return _KEPT.get(dtype, "bf16")


def storage_bytes(shape: tuple[int, ...], outtype: str) -> int:
    """Return the bytes of a tensor of `shape` (NumPy order) in type `outtype`. Rows must consist of complete blocks."""
    _, block, size = STORAGE[outtype]
    count = int(np.prod(shape, dtype=np.int64))
    if block > 1 and (not shape or shape[-1] % block):
        raise ConversionError(f"a row of {shape[-1] if shape else 0} values is not a multiple of a {outtype} block")
    return count // block * size


def to_f32(values: np.ndarray) -> np.ndarray:
    """Convert BF16 bit patterns, floats or integers of any shape to float32; float32 is returned unchanged."""
    if values.dtype == np.float32:
        return values
    if values.dtype == np.uint16:
        bits = values.astype(np.uint32)
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)
    return values.astype(np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Convert any shape to BF16 bit patterns (uint16), rounded to nearest even. A NaN stays a (quiet) NaN."""
    if values.dtype == np.uint16:
        return values
    bits = np.ascontiguousarray(to_f32(values)).view(np.uint32)
    odd = bits >> 16
    np.bitwise_and(odd, 1, out=odd)
    odd += 0x7FFF
    odd += bits  # a finite value cannot overflow 32 bits; NaNs are repaired below
    np.right_shift(odd, 16, out=odd)
    rounded = odd.astype(np.uint16)
    nan = np.isnan(bits.view(np.float32))
    if nan.any():
        rounded[nan] = (bits[nan] >> 16).astype(np.uint16) | 64
    return rounded


def rounded_as(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round any shape to the type of an array: BF16 bit patterns for uint16, float16 or float32."""
    return to_bf16(values) if dtype == np.uint16 else values.astype(dtype, copy=False)


def to_f16(values: np.ndarray) -> np.ndarray:
    """Convert any shape to float16. A finite value out of range is an error, because it would become infinity."""
    if values.dtype == np.float16:
        return values
    if values.dtype == np.uint16:
        return _bf16_to_f16(values)
    wide = to_f32(values)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(np.float16)
    if np.isinf(narrow).any() and np.isfinite(wide[np.isinf(narrow)]).any():
        raise ConversionError(_BEYOND_F16)
    return narrow


_BEYOND_F16: Final = "it contains values beyond the range of f16 (65504): convert with --outtype bf16 or f32"
_BF16_MAX_IN_F16: Final = 0x477F  # 65280; the next BF16 number is 65536
_BF16_INFINITY: Final = 0x7F80


@functools.cache
def _f16_of_bf16() -> np.ndarray:
    """Return the float16 value of every BF16 pattern."""
    with np.errstate(over="ignore", invalid="ignore"):
        return to_f32(np.arange(1 << 16, dtype=np.uint16)).astype(np.float16)


def _bf16_to_f16(patterns: np.ndarray) -> np.ndarray:
    """Convert by table, which is six times as fast as through float32."""
    size = patterns & 0x7FFF
    if size.size and size.max() > _BF16_MAX_IN_F16 and ((size > _BF16_MAX_IN_F16) & (size < _BF16_INFINITY)).any():
        raise ConversionError(_BEYOND_F16)
    return np.take(_f16_of_bf16(), patterns)


def to_q8_0(values: np.ndarray) -> np.ndarray:
    """Convert [n], n a multiple of 32, to Q8_0 blocks [n / 32 * 34] of bytes, rounded as ggml's reference."""
    blocks = to_f32(values).reshape(-1, 32)
    peak = np.abs(blocks)
    for half in (16, 8, 4, 2, 1):  # ten times as fast as NumPy's maximum over such a short axis
        peak = np.maximum(peak[:, :half], peak[:, half:])
    peak = peak[:, 0]
    if not np.isfinite(peak).all():
        raise ConversionError("it contains infinities or NaNs and cannot be quantized")
    scale = peak / np.float32(127)
    inverse = np.zeros_like(scale)
    # A subnormal scale has no finite inverse; it is zero in the file's f16 anyway.
    np.divide(np.float32(1), scale, out=inverse, where=scale >= np.finfo(np.float32).tiny)
    scaled = blocks * inverse[:, None]
    # Round half away from zero, exactly: the whole part, plus one when the (exact) rest is at least one half.
    whole = np.trunc(scaled)
    scaled -= whole
    scaled *= 2
    whole += np.trunc(scaled, out=scaled)
    out = np.empty((len(blocks), 34), dtype=np.uint8)
    out[:, :2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    out[:, 2:] = whole.astype(np.int8).view(np.uint8)
    return out.reshape(-1)


def encode(values: np.ndarray, outtype: str) -> np.ndarray:
    """Convert [n] to the bytes [n_bytes] of `outtype`; return a view if nothing changes. Blocks must be complete."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if outtype == "f32":
        return to_f32(flat)
    if outtype == "bf16":
        return to_bf16(flat)
    if outtype == "f16":
        return to_f16(flat)
    if outtype == "q8_0":
        return to_q8_0(flat)
    return flat.astype({"i32": np.int32, "i64": np.int64}[outtype], copy=False)


_EXPONENT: Final = {np.dtype(np.uint16): 0x7F80, np.dtype(np.float16): 0x7C00}


def require_finite(piece: np.ndarray) -> np.ndarray:
    """Return values of any shape. Raises ConversionError for an infinity or a NaN: an exponent of all ones."""
    if piece.dtype == np.float64:
        with np.errstate(over="ignore"):
            piece = piece.astype(np.float32)
    mask = _EXPONENT.get(piece.dtype)
    if mask is None:
        finite = piece.dtype.kind != "f" or bool(np.isfinite(piece).all())
    else:
        finite = not piece.size or int((piece.view(np.uint16) & mask).max()) != mask
    if not finite:
        raise ConversionError("it contains infinities or NaNs; the checkpoint is damaged")
    return piece


def _fp8_table(exponent_bits: int, has_infinity: bool) -> np.ndarray:
    """Return the 256 values of an 8-bit float with the given exponent width, as float32."""
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    code = np.arange(256)
    exponent = (code >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (code & (2**mantissa_bits - 1)) / 2**mantissa_bits
    magnitude = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - float(bias)))
    if has_infinity:
        top = exponent == 2**exponent_bits - 1
        magnitude = np.where(top, np.where(mantissa == 0, np.inf, np.nan), magnitude)
    else:
        magnitude = np.where((code & 0x7F) == 0x7F, np.nan, magnitude)
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


_VALUES: Final = {
    "F8_E4M3": _fp8_table(4, has_infinity=False),
    "F8_E5M2": _fp8_table(5, has_infinity=True),
    "I8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32),
}


_MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
FP4_VALUES: Final = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], np.float32)  # E2M1
FP4_PAIRS: Final = np.stack([np.tile(FP4_VALUES, 16), np.repeat(FP4_VALUES, 16)], axis=1)  # of a byte, lower half first
FP6_VALUES: Final = np.array(
    [sign * (m / 8 if not e else (1 + m / 8) * 2 ** (e - 1)) for sign in (1, -1) for e in range(4) for m in range(8)],
    np.float32,
)  # E2M3


def scale_to_f32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert scales of any shape to float32. F8_E8M0, which some store as U8, is an exponent alone."""
    if dtype in ("F8_E8M0", "U8"):
        return np.where(values == 255, np.float32("nan"), np.ldexp(np.float32(1), values.astype(np.int32) - 127))
    if dtype in _VALUES:
        return _VALUES[dtype][values.view(np.uint8)]
    return to_f32(values)


def fp8_to_f32(codes: np.ndarray, dtype: str, scale: np.ndarray, block: tuple[int, int] | None) -> np.ndarray:
    """Dequantize FP8 or INT8 codes [..., R, C].

    scale [..., ceil(R / block[0]), ceil(C / block[1])] has one factor per block. Without block sizes, scale is one
    factor, or one per row ([R] or [R, 1]).
    """
    table, codes = _VALUES[dtype], codes.view(np.uint8)
    scale = to_f32(scale)
    if block is None:
        factor = scale.reshape(-1, *(1,) * (codes.ndim - 1)) if scale.ndim < codes.ndim else scale
        if any(n not in (1, m) for n, m in zip(factor.shape, codes.shape, strict=True)):
            raise ConversionError(f"its scales have shape {list(scale.shape)}, and config.json has no block size")
        return table[codes] * factor
    grid = (*codes.shape[:-2], -(-codes.shape[-2] // block[0]), -(-codes.shape[-1] // block[1]))
    if scale.shape != grid:
        raise ConversionError(f"its scales have shape {list(scale.shape)}, expected {list(grid)} for blocks of {block}")
    out = np.empty(codes.shape, dtype=np.float32)
    for lead in np.ndindex(codes.shape[:-2]):
        for i in range(grid[-2]):
            rows = slice(i * block[0], (i + 1) * block[0])
            factors = np.repeat(scale[lead][i], block[1])[: codes.shape[-1]]
            np.multiply(table[codes[lead][rows]], factors, out=out[lead][rows])
    return out
