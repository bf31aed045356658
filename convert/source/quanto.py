"""Quantized weights of optimum-quanto: 8-bit codes by row, and 4- or 2-bit codes of a grouped matrix.

Values are rounded to the type of the scales after each operation, as in Quanto's own tensors.
"""

from __future__ import annotations

from math import prod

import numpy as np
from llama_eagle.convert.dtypes import fp8_to_f32, rounded_as, to_f32
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.convert.source.decode import Parts, Shape
from llama_eagle.errors import ConversionError


def eight_bits(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode INT8 or FP8 codes: data * scale."""
    scale = parts["scales"]
    if codes.ndim != 2 or scale.shape not in ((len(codes), 1), (1,), ()):
        raise ConversionError(f"its scales have shape {list(scale.shape)}, expected one for each of its rows")
    return rounded_as(fp8_to_f32(codes, dtype, to_f32(scale).reshape(-1), None), scale.dtype)


def fits(codes: Shape, wanted: Shape) -> bool:
    """Return True if bytes of the grouped matrix can hold a weight of this shape, in 4 or in 2 bits."""
    return len(codes) == 2 and any(0 <= n * codes[0] * codes[1] - prod(wanted) < n * codes[1] for n in (2, 4))


def few_bits(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode bytes [n / 2, size] or [n / 4, size]: the lowest bits are of the first rows, and so on.

    Each row has a scale and a shift, which is subtracted from the product, or is an integer zero point.
    """
    scale, shift = parts["scales"], parts.get("shift")
    n = scale.size
    if (
        shift is None
        or codes.ndim != 2
        or scale.shape != (n, 1)
        or shift.shape != (n, 1)
        or n * codes.shape[1] != prod(shape)
    ):
        raise ConversionError(f"scales {list(scale.shape)} and bytes {list(codes.shape)} do not fit {list(shape)}")
    per_byte = next((k for k in (2, 4) if -(-n // k) == len(codes)), 0)
    if not per_byte:
        raise ConversionError(f"{len(codes)} rows of bytes do not hold {n} rows of 4 or of 2 bits")
    bits = 8 // per_byte
    mask = np.uint8((1 << bits) - 1)
    values = np.concatenate([codes >> np.uint8(bits * i) & mask for i in range(per_byte)])[:n].astype(np.float32)
    if shift.dtype.kind == "i":
        values -= shift
        return rounded_as(values * to_f32(scale), scale.dtype).reshape(shape)
    values = to_f32(rounded_as(values * to_f32(scale), scale.dtype))
    return rounded_as(values - to_f32(shift), scale.dtype).reshape(shape)
