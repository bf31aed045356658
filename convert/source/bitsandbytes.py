"""Quantized weights of bitsandbytes: NF4 and FP4 codes in blocks of a flat matrix, and INT8 rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from llama_eagle.convert.dtypes import to_f32
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.convert.source.decode import Parts, Shape
from llama_eagle.errors import ConversionError

_PIECE = 1 << 17  # bytes decoded at once


def state(part: np.ndarray) -> dict[str, Any]:
    """Return the settings of a 4-bit weight: blocksize, shape, and nested_blocksize, nested_offset of its scales."""
    try:
        found = json.loads(part.tobytes())
        sizes = [
            found["blocksize"],
            *found["shape"],
            *([found["nested_blocksize"]] if "nested_offset" in found else []),
        ]
        if not all(type(size) is int and size > 0 for size in sizes) or found["quant_type"] not in ("nf4", "fp4"):
            raise ValueError
        float(found.get("nested_offset", 0))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConversionError("its quant_state is not that of a 4-bit weight; download the file again") from None
    return found


def four_bits(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode bytes of two codes, the first in the upper half; blocks of the scales may cross rows."""
    raw, settings = codes.reshape(-1).view(np.uint8), state(parts["state"])
    values, scale, size = parts["table"].reshape(-1), _scales(parts, settings), settings["blocksize"]
    count = int(np.prod(shape, dtype=np.int64))
    if raw.size != -(-count // 2) or values.size != 16 or scale.size != -(-count // size) or size % 2:
        raise ConversionError(
            f"{raw.size} bytes, {scale.size} scales and a table of {values.size} values do not fit {list(shape)} in "
            f"blocks of {size}"
        )
    pairs = np.stack([np.repeat(values, 16), np.tile(values, 16)], axis=1).astype(np.float32).view(np.uint64)
    out = np.empty(2 * raw.size, np.float32)
    step = max(1, _PIECE // (size // 2))
    for start in range(0, scale.size, step):
        part = out[start * size : (start + step) * size]
        part[:] = pairs.take(raw[start * size // 2 : (start + step) * size // 2]).view(np.float32)
        whole = part[: part.size // size * size].reshape(-1, size)
        whole *= scale[start : start + len(whole), None]
        part[whole.size :] *= scale[-1]
    return out[:count].reshape(shape)


def _scales(parts: Parts, settings: dict[str, Any]) -> np.ndarray:
    """Return the scale of each block. Double quantization stores codes of a table, with scales of their own."""
    scale = parts["scales"].reshape(-1)
    if scale.dtype != np.uint8:
        return to_f32(scale)
    nested, table = parts.get("nested"), parts.get("nested_table")
    size = settings.get("nested_blocksize", 0)
    if nested is None or table is None or "nested_offset" not in settings:
        raise ConversionError(
            "its scales are quantized, and theirs are missing (nested_absmax); download the file again"
        )
    if nested.size != -(-scale.size // size) or table.size != 256:
        raise ConversionError(f"{nested.size} scales of scales do not fit {scale.size} in blocks of {size}")
    each = np.repeat(to_f32(nested).reshape(-1), size)[: scale.size]
    return to_f32(table).reshape(-1)[scale] * each + np.float32(settings["nested_offset"])


def eight_bits(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode INT8 rows: weight * SCB / 127."""
    scale, layout = parts["scale"].reshape(-1), parts.get("layout")
    if codes.ndim != 2 or len(scale) != len(codes):
        raise ConversionError(f"its scales have shape {list(parts['scale'].shape)}, expected one for each of its rows")
    if layout is not None and layout.any():
        raise ConversionError("its weight_format is not `row`: convert the unquantized checkpoint")
    out = codes.astype(np.float32)
    out *= scale[:, None]
    out *= np.float32(1 / 127)
    return out
