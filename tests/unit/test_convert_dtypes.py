"""Number formats against gguf's reference and torch."""

from __future__ import annotations

import gguf
import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from llama_eagle.convert.dtypes import encode, fp8_to_f32, storage_bytes, to_bf16, to_f32
from llama_eagle.errors import ConversionError

NORMAL = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@hypothesis.given(hnp.arrays(np.float32, (3, 64), elements=NORMAL))
def test_q8_0_equals_gguf(values: np.ndarray) -> None:
    hypothesis.assume(all(b == 0 or 1e-30 < b < 6e6 for b in np.abs(values.reshape(-1, 32)).max(axis=1)))
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    assert encode(values, "q8_0").tobytes() == expected.tobytes()


@hypothesis.given(hnp.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1)))
def test_bf16_of_any_bits_equals_gguf(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    assert encode(values, "bf16").tobytes() == expected.tobytes()


@hypothesis.given(hnp.arrays(np.uint16, 64))
def test_bf16_survives_the_way_through_f32(bits: np.ndarray) -> None:
    quiet = np.where((bits & 0x7FFF) > 0x7F80, bits | 64, bits)
    assert np.array_equal(to_bf16(to_f32(bits)), quiet)


@pytest.mark.parametrize(("name", "dtype"), [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)])
def test_fp8_values_equal_torch(name: str, dtype: torch.dtype) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    found = fp8_to_f32(codes, name, np.ones(1, np.float32), None)
    assert np.array_equal(found, torch.from_numpy(codes).view(dtype).float().numpy(), equal_nan=True)


def test_fp8_block_scales() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 120, (2, 5, 7), dtype=np.uint8)
    scale = random.random((2, 2, 3), dtype=np.float32)
    found = fp8_to_f32(codes, "F8_E4M3", scale, (4, 3))
    plain = fp8_to_f32(codes, "F8_E4M3", np.ones(1, np.float32), None)
    for e, i, j in np.ndindex(codes.shape):
        assert found[e, i, j] == plain[e, i, j] * scale[e, i // 4, j // 3]
    with pytest.raises(ConversionError, match=r"expected \[2, 2, 3\]"):
        fp8_to_f32(codes, "F8_E4M3", scale[:, :1], (4, 3))


def test_f16_refuses_what_it_cannot_hold() -> None:
    assert np.isinf(encode(np.array([np.inf, 1], np.float32), "f16")).sum() == 1
    with pytest.raises(ConversionError, match="65504"):
        encode(np.array([7e4], np.float32), "f16")


def test_q8_0_refuses_what_is_not_finite() -> None:
    values = np.ones(32, np.float32)
    values[3] = np.nan
    with pytest.raises(ConversionError, match="NaN"):
        encode(values, "q8_0")


def test_rows_hold_whole_blocks() -> None:
    assert storage_bytes((4, 64), "q8_0") == 4 * 2 * 34
    with pytest.raises(ConversionError, match="48 values"):
        storage_bytes((4, 48), "q8_0")
