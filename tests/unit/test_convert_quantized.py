"""Quantized weights have the values that their producers' formulas give, written here from the producers' sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.source.coded import read_scheme
from llama_eagle.convert.source.weights import Weights
from llama_eagle.errors import ConfigError, ConversionError
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
Case = tuple[Tensors, torch.Tensor, dict[str, Any]]  # stored by the end of its name, meaning, quantization_config
ROWS, COLUMNS = 96, 128
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
RANDOM = torch.Generator().manual_seed(1)


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=RANDOM)


def floats(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=RANDOM) * 0.1 + 0.01


def words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Dense words of each row, the first integer in the lowest bits; slow and plain."""
    rows = []
    for row in values.tolist():
        number = sum(value << (bits * i) for i, value in enumerate(row))
        rows.append([(number >> (32 * w)) & 0xFFFFFFFF for w in range(-(-len(row) * bits // 32))])
    return torch.from_numpy(np.array(rows, np.uint32).view(np.int32))


def spread(values: torch.Tensor, size: int) -> torch.Tensor:
    """One column per element instead of one per group."""
    return values.repeat_interleave(size, 1)


# --- GPTQ, AWQ ---------------------------------------------------------------------------------------------------


def gptq(
    bits: int, *, v2: bool = False, shuffled: bool = False, method: str = "gptq", carries: bool = False
) -> Callable[[], Case]:
    """GPTQModel 7.7.0, TorchLinear.dequantize_weight: scales[g_idx] * (weight - zeros[g_idx]), transposed.

    Format "gptq" stores zeros less one, modulo 2**bits; "gptq_v2" as they are. carries: GPTQModel's own conversion from
    "gptq_v2" to "gptq", which subtracts from whole words.
    """

    def make() -> Case:
        codes = integers(0, 1 << bits, COLUMNS, ROWS)
        zeros, scales = integers(0, 1 << bits, COLUMNS // 32, ROWS), floats(COLUMNS // 32, ROWS).half()
        order = torch.randperm(COLUMNS, generator=RANDOM) if shuffled else torch.arange(COLUMNS)
        group = torch.arange(COLUMNS)[order] // 32
        stored = {
            ".qweight": words(codes.T, bits).T,
            ".qzeros": words(zeros if v2 else (zeros - 1) % (1 << bits), bits),
            ".scales": scales,
            ".g_idx": group.int(),
        }
        config: dict[str, Any] = {"quant_method": method, "bits": bits, "group_size": 32, "desc_act": shuffled}
        if carries:
            stored[".qzeros"] = words(zeros, bits) - sum(1 << i for i in range(0, 32, bits))
            config["meta"] = {"quantizer": ["gptqmodel:7.7.0"]}
        if method == "gptq":
            config |= {"checkpoint_format": "gptq_v2"} if v2 else {}
        else:
            config["packing_format"] = "auto_round" if v2 else "auto_round:auto_gptq"
        return stored, (scales.float()[group] * (codes - zeros[group])).T, config

    return make


def awq(**config: Any) -> Callable[[], Case]:
    """AutoAWQ 0.2.9, WQLinear_GEMM: nibble i of a word holds column [0, 2, 4, 6, 1, 3, 5, 7][i] of its eight."""

    def pack(values: torch.Tensor) -> torch.Tensor:
        in_order = values.reshape(len(values), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return words(in_order.reshape(len(values), -1), 4)

    def make() -> Case:
        codes, zeros = integers(0, 16, COLUMNS, ROWS), integers(0, 16, COLUMNS // 32, ROWS)
        scales = floats(COLUMNS // 32, ROWS).half()
        each = [part.repeat_interleave(32, 0) for part in (zeros, scales.float())]
        stored = {".qweight": pack(codes), ".qzeros": pack(zeros), ".scales": scales}
        return stored, ((codes - each[0]) * each[1]).T, {"quant_method": "awq", "bits": 4, **config}

    return make


# --- compressed-tensors 0.20.0 -----------------------------------------------------------------------------------


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "format": kind}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


def int_groups(zero: bool) -> Callable[[], Case]:
    """ "int-quantized" with groups (W4A8): int8 codes, (codes - zero) * scale."""

    def make() -> Case:
        codes, scale = integers(-8, 8, ROWS, COLUMNS).to(torch.int8), floats(ROWS, 4).bfloat16()
        zeros = integers(-8, 8, ROWS, 4).to(torch.int8) if zero else torch.zeros(ROWS, 4, dtype=torch.int8)
        stored = {".weight": codes, ".weight_scale": scale, **({".weight_zero_point": zeros} if zero else {})}
        meant = (codes.float() - spread(zeros.float(), 32)) * spread(scale.float(), 32)
        return stored, meant, compressed("int-quantized", num_bits=4, type="int", strategy="group", group_size=32)

    return make


def pack_quantized(bits: int) -> Callable[[], Case]:
    def make() -> Case:
        low, high = -(1 << (bits - 1)), 1 << (bits - 1)
        codes, scale, zeros = integers(low, high, ROWS, 96), floats(ROWS, 3).bfloat16(), integers(low, high, ROWS, 3)
        stored = {
            ".weight_packed": words(codes - low, bits),
            ".weight_scale": scale,
            ".weight_zero_point": words((zeros - low).T, bits).T,
            ".weight_shape": torch.tensor([ROWS, 96]),
        }
        meant = (codes - spread(zeros, 32)) * spread(scale.float(), 32)
        return stored, meant, compressed("pack-quantized", num_bits=bits, type="int", symmetric=False)

    return make


def fp4_codes() -> tuple[torch.Tensor, torch.Tensor]:
    codes = integers(0, 16, ROWS, COLUMNS)
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]


def nvfp4() -> Case:
    """weight_global_scale divides the scales."""
    packed, values = fp4_codes()
    scale, whole = floats(ROWS, COLUMNS // 16).mul(100).to(torch.float8_e4m3fn), torch.tensor([37.0])
    stored = {".weight_packed": packed, ".weight_scale": scale, ".weight_global_scale": whole}
    stored[".input_global_scale"] = torch.ones(1)
    meant = values * spread(scale.float() / whole, 16)
    return stored, meant, compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16)


def mxfp4() -> Case:
    """Scales are exponents, 2 ** (n - 127)."""
    packed, values = fp4_codes()
    scale = integers(110, 130, ROWS, COLUMNS // 32).to(torch.uint8)
    meant = values * spread(2.0 ** (scale.float() - 127), 32)
    config = compressed("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32)
    return {".weight_packed": packed, ".weight_scale": scale}, meant, config


def mxfp6() -> Case:
    """E2M3: four codes of six bits in three bytes."""
    codes = integers(0, 64, ROWS, COLUMNS)
    word = sum(codes[:, i::4] << 6 * i for i in range(4))
    packed = torch.stack([word >> 8 * i & 255 for i in range(3)], -1).reshape(ROWS, -1).to(torch.uint8)
    exponent, mantissa = codes >> 3 & 3, codes & 7
    values = torch.where(exponent == 0, mantissa / 8, (1 + mantissa / 8) * 2.0 ** (exponent - 1)) * (
        1 - (codes >> 5) * 2
    )
    scale = integers(110, 130, ROWS, COLUMNS // 32).to(torch.uint8)
    meant = values * spread(2.0 ** (scale.float() - 127), 32)
    config = compressed("mxfp6-pack-quantized", num_bits=6, type="float", group_size=32)
    return {".weight_packed": packed, ".weight_scale": scale}, meant, config


def mxfp8() -> Case:
    codes = (floats(ROWS, COLUMNS) * 100).to(torch.float8_e4m3fn)
    scale = integers(110, 130, ROWS, COLUMNS // 32).to(torch.uint8)
    meant = codes.float() * spread(2.0 ** (scale.float() - 127), 32)
    config = compressed("mxfp8-quantized", num_bits=8, type="float", group_size=32)
    return {".weight": codes, ".weight_scale": scale}, meant, config


# --- ModelOpt 0.47.0, transformers 5.24, torchao 0.18 --------------------------------------------------------------


def modelopt_nvfp4() -> Case:
    """weight_scale_2 multiplies the scales."""
    packed, values = fp4_codes()
    scale, whole = floats(ROWS, COLUMNS // 16).mul(100).to(torch.float8_e4m3fn), torch.tensor(0.03)
    stored = {".weight": packed, ".weight_scale": scale, ".weight_scale_2": whole, ".input_scale": torch.ones(())}
    return stored, values * spread(scale.float() * whole, 16), {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def modelopt_awq(size: int) -> Callable[[], Case]:
    """W4A16_AWQ: two rows a byte, the first in the lower half; `pre_quant_scale` multiplies the layer's inputs."""

    def make() -> Case:
        codes, scale = integers(-8, 8, ROWS, COLUMNS), floats(ROWS, COLUMNS // size).bfloat16()
        inputs = floats(COLUMNS).half()
        packed = (codes[::2] & 15 | (codes[1::2] & 15) << 4).to(torch.uint8)
        stored = {".weight": packed, ".weight_scale": scale, ".pre_quant_scale": inputs}
        config = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": size}
        return stored, codes * spread(scale.float(), size) * inputs.float(), config

    return make


def modelopt_blocks(rows: int, columns: int, size: int) -> Callable[[], Case]:
    """ "fp8_pb_wo": scales [rows, 1, columns, 1] of square blocks; the last ones may be cut."""

    def make() -> Case:
        codes = (floats(rows, columns) * 100).to(torch.float8_e4m3fn)
        scale = floats(-(-rows // size), 1, -(-columns // size), 1)
        full = spread(scale[:, 0, :, 0].repeat_interleave(size, 0), size)[:rows, :columns]
        stored = {".weight": codes, ".weight_scale": scale}
        return stored, codes.float() * full, {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}

    return make


def ue8m0() -> Case:
    """FineGrainedFP8Config(scale_fmt="ue8m0"): scales are exponents in float8_e8m0fnu."""
    codes = (floats(ROWS, COLUMNS) * 100).to(torch.float8_e4m3fn)
    scale = integers(110, 130, 3, 4).to(torch.uint8).view(torch.float8_e8m0fnu)
    meant = codes.float() * spread(scale.float().repeat_interleave(32, 0), 32)
    config = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
    return {".weight": codes, ".weight_scale_inv": scale}, meant, config


def torchao(groups: int, kind: str) -> Callable[[], Case]:
    """Int8Tensor, IntxUnpackedToInt8Tensor, Float8Tensor: `weight` becomes `_weight_qdata` and so on."""

    def make() -> Case:
        scale = floats(ROWS, groups)
        stored = {"._weight_scale": scale}
        zeros = torch.zeros(ROWS, groups)
        if kind == "fp8":
            codes = (floats(ROWS, COLUMNS) * 100).to(torch.float8_e4m3fn)
        else:
            codes = integers(-128, 128, ROWS, COLUMNS).to(torch.int8)
            stored["._weight_zero_point"] = integers(-3, 4, ROWS, groups).to(torch.int8)
            zeros = stored["._weight_zero_point"].float()
        stored["._weight_qdata"] = codes
        size = COLUMNS // groups
        return stored, (codes.float() - spread(zeros, size)) * spread(scale, size), {"quant_method": "torchao"}

    return make


def blocked(scale: torch.Tensor) -> torch.Tensor:
    """The order of scales in cuBLAS: row r, group g of a tile is in row r % 32, column r // 32 * 4 + g."""
    rows, groups = scale.shape
    out = torch.zeros(32 * -(-rows // 128), 16 * -(-groups // 4), dtype=scale.dtype).reshape(-1, 32, 16)
    for row in range(rows):
        for group in range(groups):
            tile = row // 128 * -(-groups // 4) + group // 4
            out[tile, row % 32, row % 128 // 32 * 4 + group % 4] = scale[row, group]
    return out.reshape(32 * -(-rows // 128), -1)


def torchao_blocked(rows: int, columns: int, size: int, bits: int) -> Callable[[], Case]:
    """MXTensor and NVFP4Tensor with is_swizzled_scales."""

    def make() -> Case:
        codes, scale = integers(0, 16, rows, columns), floats(rows, columns // size).mul(100).to(torch.float8_e4m3fn)
        packed, values = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]
        if bits == 8:
            packed = floats(rows, columns).mul(100).to(torch.float8_e4m3fn)
            values = packed.float()
        if size == 32:
            scale = integers(110, 130, rows, columns // 32).to(torch.uint8).view(torch.float8_e8m0fnu)
        stored = {"._weight_qdata": packed, "._weight_scale": blocked(scale.view(torch.uint8)).view(scale.dtype)}
        return stored, values * spread(scale.float(), size), {"quant_method": "torchao"}

    return make


CASES: dict[str, Callable[[], Case]] = {
    **{f"GPTQ, {bits} bits": gptq(bits) for bits in range(2, 9)},  # 5 to 7 bits are AutoRound's
    **{f"GPTQ v2, {bits} bits": gptq(bits, v2=True) for bits in (2, 3, 4, 8)},
    **{f"GPTQModel's own zero points, {bits} bits": gptq(bits, carries=True) for bits in (2, 4, 8)},
    "GPTQ, columns by activation": gptq(4, shuffled=True),
    "AutoRound, auto_gptq": gptq(4, method="auto-round"),
    "AutoRound": gptq(2, v2=True, method="auto-round"),
    "AWQ": awq(version="gemm", zero_point=True),
    "AWQ without its version": awq(),
    "compressed-tensors W4A8": int_groups(zero=False),
    "compressed-tensors W4A8 with zero points": int_groups(zero=True),
    **{f"compressed-tensors, {bits} bits": pack_quantized(bits) for bits in range(1, 9)},
    "compressed-tensors NVFP4": nvfp4,
    "compressed-tensors MXFP4": mxfp4,
    "compressed-tensors MXFP6": mxfp6,
    "compressed-tensors MXFP8": mxfp8,
    **{f"ModelOpt AWQ, groups of {size}": modelopt_awq(size) for size in (8, 32, 128)},
    "ModelOpt NVFP4": modelopt_nvfp4,
    "ModelOpt blocks": modelopt_blocks(256, 256, 128),
    "ModelOpt cut blocks": modelopt_blocks(200, 300, 128),
    "ModelOpt small blocks": modelopt_blocks(64, 96, 32),
    "FP8 with exponents as scales": ue8m0,
    "torchao int8 by row": torchao(1, "int"),
    "torchao int8 by group": torchao(4, "int"),
    "torchao float8": torchao(1, "fp8"),
    "torchao NVFP4": torchao_blocked(200, 96, 16, 4),
    "torchao NVFP4, 16 rows": torchao_blocked(16, 128, 16, 4),
    "torchao MXFP4": torchao_blocked(32, 384, 32, 4),
    "torchao MXFP8": torchao_blocked(130, 160, 32, 8),
}


def weights_of(folder: Path, stored: Tensors, config: dict[str, Any]) -> Weights:
    named = {"model.layers.0.mlp.up_proj" + end: tensor.contiguous() for end, tensor in stored.items()}
    save_file({**named, "model.norm.weight": torch.ones(4)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = open_checkpoint(folder)
    return Weights(checkpoint, lambda name: name.removeprefix("model."), read_scheme(checkpoint.config))


NAME = "layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_producer(case: str, tmp_path: Path) -> None:
    stored, meant, config = CASES[case]()
    weights = weights_of(tmp_path, stored, config)
    assert sorted(weights.names()) == [NAME, "norm.weight"]
    weights.require_numbers(NAME)
    assert weights.shape(NAME) == tuple(meant.shape)
    found = weights.read(NAME)
    assert found.dtype == np.float32
    np.testing.assert_array_max_ulp(found, meant.float().numpy(), maxulp=1)


FAULTS: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "GPTQ without zero points": ("GPTQ, 4 bits", lambda t: t.pop(".qzeros"), "has no zero points"),
    "GPTQ without scales": ("GPTQ, 4 bits", lambda t: t.pop(".scales"), "has no scales"),
    "GPTQ of 5 bits": ("GPTQ, 8 bits", lambda t: t.update({".qzeros": t[".qzeros"][:, :15]}), "not GPTQ's"),
    "AWQ cut": ("AWQ", lambda t: t.update({".qweight": t[".qweight"][:, 1:]}), "nor AWQ's"),
    "groups of GPTQ": ("GPTQ, 4 bits", lambda t: t.update({".g_idx": t[".g_idx"] + 1}), "do not exist"),
    "NVFP4 scales cut": (
        "compressed-tensors NVFP4", lambda t: t.update({".weight_scale": t[".weight_scale"][:, :5]}), "scales have"
    ),
    "ModelOpt blocks cut": (
        "ModelOpt blocks", lambda t: t.update({".weight_scale": torch.ones(3, 1, 2, 1)}), "do not divide"
    ),
    "torchao's blocked scales": (
        "torchao float8", lambda t: t.update({"._weight_scale": torch.ones(32, 32)}), "scales have shape"
    ),
    "torchao's blocked scales of either kind": (
        "torchao NVFP4",
        lambda t: t.update({"._weight_qdata": t["._weight_qdata"][:, :32], "._weight_scale": torch.ones(64, 16)}),
        "groups of 16 or of 32",
    ),
    "torchao's Int4Tensor": (
        "torchao NVFP4", lambda t: t.update({"._weight_zero_point": torch.ones(4, 200)}), "int4 layout of torchao"
    ),
    "torchao's Int4TilePackedTo4dTensor": (
        "torchao NVFP4",
        lambda t: t.update({"._weight_qdata": integers(0, 9, 1, 1, 32, 4).int()}),
        "int4 layout of torchao",
    ),
    "words of another width": (
        "compressed-tensors, 3 bits", lambda t: t.update({".weight_packed": t[".weight_packed"][:, :7]}), "do not fit"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_parts_are_refused(fault: str, tmp_path: Path) -> None:
    case, change, message = FAULTS[fault]
    stored, _, config = CASES[case]()
    change(stored)
    with pytest.raises(ConversionError, match=message) as caught:
        weights = weights_of(tmp_path, stored, config)
        weights.require_numbers(NAME)
        weights.shape(NAME)
        weights.read(NAME)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "aqlm"}, {"quant_method": "vptq"}, {"quant_method": "awq", "version": "gemv"},
        {"quant_method": "gptq", "checkpoint_format": "marlin"}, "eetq",
        {"quant_method": "modelopt", "quant_algo": "NVFP4_SVD"},
        {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"0": {"weights": {}}}},
    ],
)  # fmt: skip
def test_formats_that_are_not_read_are_named(config: Any) -> None:
    named = config if isinstance(config, str) else str(list(config.values())[1 if len(config) > 1 else 0])
    with pytest.raises(ConfigError, match=named) as caught:
        read_scheme({"quantization_config": config})
    assert "\n" not in str(caught.value)


def test_a_bias_of_zeros_is_known_as_the_quantizers(tmp_path: Path) -> None:
    stored, _, config = CASES["GPTQ, 4 bits"]()
    bias = NAME.replace("weight", "bias")
    for values, added in ((torch.zeros(ROWS), True), (torch.ones(ROWS), False)):
        weights = weights_of(tmp_path, {**stored, ".bias": values}, config)
        assert weights.is_added_bias(bias) is added
    assert not weights.is_added_bias("norm.weight")
