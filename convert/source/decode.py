"""Decoders of quantized weights: codes and their scales, as float32.

Scaled: FP8 or INT8 codes times scales, one per tensor, row, block or group of columns.
FP4: two codes a byte, the first in the lower half, times a scale per group and one per tensor (NVFP4, MXFP4).
FP6: four codes in three bytes, lowest bits first, times a scale per group (MXFP6).
INT4: two rows a byte, times a scale per group (ModelOpt's AWQ).
Integers: whole numbers in 32-bit words, lowest bits first, minus a zero point, times a scale per row or group of
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd

import numpy as np
from llama_eagle.convert.dtypes import FP4_PAIRS, FP6_VALUES, fp8_to_f32
from llama_eagle.convert.source.coded import Scheme
from llama_eagle.errors import ConversionError

_PIECE = 1 << 20  # elements decoded at once
_BLOCK = (128, 128)  # ModelOpt's, which its configuration does not state
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # place of each column in its word

Parts = Mapping[str, np.ndarray]  # scales as float32, other parts as stored
Shape = tuple[int, ...]


# --- FP8, INT8 ---------------------------------------------------------------------------------------------------


def scaled(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode FP8 or INT8 codes. The shape of the scales determines their kind; blocks have the configured size."""
    scale, zero = _in_order(parts["scale"], codes.shape, (32,)), parts.get("zero")
    if scale.ndim == 2 * codes.ndim == 4 and scale.shape[1::2] == (1, 1):  # ModelOpt: [rows, 1, columns, 1]
        scale = scale[:, 0, :, 0]
        return fp8_to_f32(codes, dtype, scale, scheme.block or _block_of(codes.shape, scale.shape))
    rows = codes.shape[0]
    if zero is None or not zero.any():
        if scale.size == 1 or (codes.ndim == 2 and scale.shape in ((rows,), (rows, 1))):
            return fp8_to_f32(codes, dtype, scale.reshape(-1), None)
    elif scale.size == zero.size == 1:
        scale, zero = (np.broadcast_to(part.reshape(1, 1), (rows, 1)) for part in (scale, zero))
    if codes.ndim == scale.ndim == 2 and scale.shape[0] == rows and not _are_blocks(scale, codes, scheme):
        return _grouped(codes, dtype, scale, zero)
    if zero is not None and zero.any():
        raise ConversionError(f"its zero points have shape {list(zero.shape)}, its scales {list(scale.shape)}")
    return fp8_to_f32(codes, dtype, scale, scheme.block)


def _are_blocks(scale: np.ndarray, codes: np.ndarray, scheme: Scheme) -> bool:
    return scheme.block is not None and scale.shape == _grid(codes.shape, scheme.block)


def _grid(shape: Shape, block: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _block_of(shape: Shape, grid: Shape) -> tuple[int, int]:
    """Return the size of blocks that fit a grid: the usual one, or complete blocks."""
    if _grid(shape, _BLOCK) == grid:
        return _BLOCK
    if shape[0] % grid[0] or shape[1] % grid[1]:
        raise ConversionError(f"its scales have shape {list(grid)}, which do not divide {list(shape)} into blocks")
    return shape[0] // grid[0], shape[1] // grid[1]


def _grouped(codes: np.ndarray, dtype: str, scale: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """Decode codes with one scale per row and group of columns."""
    (rows, n_groups), columns = scale.shape, codes.shape[1]
    if columns % n_groups or (zero is not None and zero.shape != scale.shape):
        zeros = f", its zero points {list(zero.shape)}" if zero is not None else ""
        raise ConversionError(f"its scales have shape {list(scale.shape)}{zeros}, expected groups of {columns} columns")
    out = fp8_to_f32(codes, dtype, np.ones(1, np.float32), None).reshape(rows, n_groups, -1)
    if zero is not None:
        out -= zero.astype(np.float32)[:, :, None]
    out *= scale[:, :, None]
    return out.reshape(codes.shape)


# --- FP4, FP6, INT4 ----------------------------------------------------------------------------------------------


def in_bytes(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode FP4 [rows, columns / 2], FP6 [rows, columns * 3 / 4] or INT4 codes [rows / 2, columns].

    factor: multiplies the scales. divisor: divides them.
    """
    rows, columns = shape
    scale, factor, divisor = parts["scale"], parts.get("factor"), parts.get("divisor")
    if rows != codes.shape[0]:  # `factor` is of ModelOpt's W4A8: the kernel's, in which INT4 weights become FP8
        out = np.stack([codes & 15, codes >> 4], axis=1).reshape(rows, columns).view(np.int8)
        return by_group(((out ^ 8) - np.int8(8)).astype(np.float32), scale)
    if any(part is not None and part.size != 1 for part in (factor, divisor)):
        raise ConversionError("it has more than one global scale")
    scale = _in_order(scale, (rows, columns), (16, 32))
    if factor is not None:
        scale = scale * factor.reshape(())
    if divisor is not None:
        scale = scale / divisor.reshape(())
    if columns != 2 * codes.shape[1]:
        return by_group(FP6_VALUES[unpack(codes, 6, columns)], scale)
    if scale.ndim != 2 or columns not in (16 * scale.shape[1], 32 * scale.shape[1]):
        raise ConversionError(
            f"its scales have shape {list(scale.shape)}, expected {columns} columns in groups of 16 or 32"
        )
    return by_group(FP4_PAIRS[codes].reshape(rows, columns), scale)


def in_bytes_shape(codes: Shape, parts: Mapping[str, Shape]) -> Shape:
    """Return the shape of a weight. Scales of two rows a byte are INT4's; 24 bytes a group are FP6's."""
    *more, rows, width = codes
    scale = parts.get("scale", ())
    if len(scale) == len(codes):
        if scale[-2] == 2 * rows and 0 < 8 * scale[-1] <= width and not width % scale[-1]:
            return *more, 2 * rows, width
        if scale[-2] == rows and width == 24 * scale[-1]:
            return *codes[:-1], width // 3 * 4
    return *codes[:-1], 2 * width


def by_group(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Multiply values [rows, columns] by scales [rows, groups], in place."""
    rows, columns = values.shape
    if scale.ndim != 2 or scale.shape[0] != rows or not scale.shape[1] or columns % scale.shape[1]:
        raise ConversionError(f"its scales have shape {list(scale.shape)}, expected groups of {columns} columns")
    values.reshape(rows, scale.shape[1], -1)[...] *= scale[:, :, None]
    return values


def _in_order(scale: np.ndarray, shape: Shape, sizes: Shape) -> np.ndarray:
    """Return scales of groups by row and column, if they have the order of NVIDIA's tensor cores.

    shape: of the weight. sizes: possible sizes of a group. That order has tiles of 128 rows and 4 groups, filled up and
    stored as [32, 16].
    """
    if len(shape) != 2 or scale.ndim != 2:
        return scale
    (rows, columns), tiles = shape, -(-shape[0] // 128)
    fitting = [size for size in sizes if scale.shape == (32 * tiles, 16 * -(-columns // (4 * size)))]
    if not fitting:
        return scale
    if len(fitting) > 1:
        raise ConversionError(f"its scales {list(scale.shape)} may be of groups of 16 or of 32 columns")
    tiled = scale.reshape(tiles, -1, 32, 4, 4)
    return tiled.transpose(0, 3, 2, 1, 4).reshape(128 * tiles, -1)[:rows, : columns // fitting[0]]


# --- integers in words -------------------------------------------------------------------------------------------


def packed(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode compressed-tensors' words [rows, ceil(columns * bits / 32)], signed by half their range.

    Zero points are packed along the rows, [ceil(rows * bits / 32), groups].
    """
    rows, columns = shape
    bits, scale = packed_bits(codes.shape, columns, scheme), parts["scale"]
    scale = scale.reshape(rows, -1) if scale.size % rows == 0 else scale
    if scale.ndim != 2 or not scale.size:
        raise ConversionError(f"words {list(codes.shape)} and scales {list(scale.shape)} do not fit {rows} x {columns}")
    zero: np.ndarray = np.full((1, 1), 1 << (bits - 1))
    if (words := parts.get("zero")) is not None:
        if words.shape != (-(-rows * bits // 32), scale.shape[1]):
            raise ConversionError(f"its zero points have shape {list(words.shape)}, {scale.shape[1]} groups")
        zero = unpack(np.ascontiguousarray(words.T), bits, rows).T
    return _affine((rows, columns), lambda some: unpack(codes[some], bits, columns), scale, zero, parts.get("group"))


def packed_bits(shape: Shape, columns: int, scheme: Scheme) -> int:
    """Return the number of bits that the number of words implies, with the configured ones first."""
    possible = [bits for bits in range(1, 9) if len(shape) == 2 and -(-columns * bits // 32) == shape[1]]
    stated = [bits for bits in possible if bits in scheme.bits]
    if stated or len(possible) == 1:
        return (stated or possible)[0]
    raise ConversionError(f"words {list(shape)} do not fit rows of {columns} integers of {scheme.bits} bits")


def words(codes: np.ndarray, dtype: str, parts: Parts, scheme: Scheme, shape: Shape) -> np.ndarray:
    """Decode GPTQ's words [columns * bits / 32, rows], or AWQ's [columns, rows / 8].

    Zero points are [groups, rows * bits / 32], and scales [groups, rows].
    """
    rows, columns = shape
    scale, zero = parts["scale"].T, parts["zero"]
    if zero.shape[1] == codes.shape[1]:
        return _affine((rows, columns), lambda some: _awq_rows(codes, some), scale, _unpack_awq(zero).T, None)
    bits = codes.shape[0] * 32 // columns
    shifted = _shifted(zero, bits, rows, scheme)
    by_row = np.ascontiguousarray(codes.T)
    return _affine(
        (rows, columns), lambda some: unpack(by_row[some], bits, columns), scale, shifted.T, parts.get("group")
    )


def _shifted(zero: np.ndarray, bits: int, rows: int, scheme: Scheme) -> np.ndarray:
    """Return GPTQ's zero points, uint8 [groups, rows]."""
    if scheme.carries and 32 % bits == 0:  # GPTQModel shifts those of 3 bits alone
        ones = np.uint32(scheme.zero_shift * sum(1 << i for i in range(0, 32, bits)))
        return unpack(zero.view(np.uint32) + ones, bits, rows)
    return (unpack(zero, bits, rows) + np.uint8(scheme.zero_shift)) & np.uint8((1 << bits) - 1)


def words_shape(codes: Shape, parts: Mapping[str, Shape]) -> Shape:
    """Return rows and columns. GPTQ's number of bits follows from the packed zero points."""
    zero, scale = parts["zero"], parts["scale"]
    if len(codes) == len(zero) == len(scale) == 2 and zero[0] == scale[0] > 0 < scale[1]:
        bits, rest = divmod(32 * zero[1], scale[1])
        is_awq = codes[1] == zero[1] and bits == 4
        if not rest and (is_awq or (codes[1] == scale[1] and 2 <= bits <= 8 and not 32 * codes[0] % bits)):
            return scale[1], codes[0] if is_awq else 32 * codes[0] // bits
    raise ConversionError(
        f"words {list(codes)}, zero points {list(zero)} and scales {list(scale)} are not GPTQ's of 2 to 8 bits, nor "
        "AWQ's of 4 bits"
    )


def _awq_rows(words: np.ndarray, some: slice) -> np.ndarray:
    """Return the integers of rows whose words hold eight each."""
    first = some.start // 8
    values = _unpack_awq(words[:, first : -(-some.stop // 8)])
    return values[:, some.start - 8 * first : some.stop - 8 * first].T


def _unpack_awq(words: np.ndarray) -> np.ndarray:
    """Return uint8 [n, 8 * words]."""
    in_words = unpack(np.ascontiguousarray(words), 4, 8 * words.shape[1]).reshape(*words.shape, 8)
    return in_words[:, :, _AWQ_ORDER].reshape(len(words), -1)


def _affine(
    shape: tuple[int, int],
    ints: Callable[[slice], np.ndarray],
    scale: np.ndarray,
    zero: np.ndarray,
    group: np.ndarray | None,
) -> np.ndarray:
    """Return (integers - zero) * scale, in pieces of rows.

    ints: returns the integers of some rows. scale, zero: [rows, groups], or one zero for all. group: [columns], for
    groups whose columns are not in order.
    """
    rows, columns = shape
    n_groups = scale.shape[1]
    if scale.shape[0] != rows or (group is None and columns % n_groups):
        raise ConversionError(f"its scales have shape {list(scale.shape)}, expected groups of {columns} columns")
    if group is None:
        group = np.arange(columns) // (columns // n_groups)
    if group.shape != (columns,) or group.min() < 0 or group.max() >= n_groups:
        raise ConversionError(f"its columns belong to groups that do not exist ({n_groups} have scales)")
    out = np.empty(shape, np.float32)
    step = max(1, _PIECE // columns)
    for some in (slice(start, start + step) for start in range(0, rows, step)):
        out[some] = ints(some)
        out[some] -= zero[some][:, group] if zero.size > 1 else zero
        out[some] *= scale[some][:, group]
    return out


def unpack(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return uint8 [n, count]: integer i of a row begins at bit i * bits of its words.

    The fewest integers that fill whole bytes are put in as many bytes, whose halves are moved apart until each integer
    has its own.
    """
    n, size = len(words), 8 // gcd(8, bits)
    lanes = _lanes(words, bits * size // 8, size, -(-count // size))
    for half in (half for half in (4, 2, 1) if half < size):
        upper = lanes & sum(((1 << half * bits) - 1) << start + half * bits for start in range(0, 8 * size, 16 * half))
        lanes ^= upper
        upper <<= half * (8 - bits)
        lanes |= upper
    return lanes.view(np.uint8).reshape(n, -1)[:, :count]


def _lanes(words: np.ndarray, width: int, size: int, count: int) -> np.ndarray:
    """Return integers of `size` bytes [n, count], each of `width` bytes of a row; what a row lacks is zero."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if raw.shape[1] < count * width:
        raw = np.pad(raw, ((0, 0), (0, count * width - raw.shape[1])))
    if width in (1, 2, 4):
        return raw[:, : count * width].copy().view(f"<u{width}").astype(f"<u{size}")
    flat = np.append(raw, np.zeros(size, np.uint8))  # the last integer is read with bytes behind it
    lanes = np.ndarray((len(words), count), f"<u{size}", flat, strides=(raw.shape[1], width)).copy()
    lanes &= (1 << 8 * width) - 1
    return lanes
