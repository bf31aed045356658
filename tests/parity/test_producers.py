"""Tiny models that real libraries quantized: their GGUF has the values of the library's own dequantization."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.slow  # needs the group `integrations`

State = dict[str, torch.Tensor]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}


def converted(folder: Path) -> dict[str, np.ndarray]:
    path = folder / "model.gguf"
    convert_target(folder, path, TargetOptions(outtype="f32"))
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def is_projection(name: str) -> bool:
    return name.endswith("_proj.weight")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("qwen3", tmp_path_factory.mktemp("plain"), seed=3, **SIZES)


def compare(plain: Path, folder: Path, code: Callable[[str, torch.Tensor], tuple[State, torch.Tensor]], config: Any,
            metadata: dict[str, str] | None = None) -> None:  # fmt: skip
    """code: returns what is stored for a weight, by full names, and its dequantized values."""
    meant_folder = Path(shutil.copytree(plain, folder / "meant"))
    coded_folder = Path(shutil.copytree(plain, folder / "coded"))
    stored: State = {}
    meant: State = {}
    for name, weight in load_file(plain / "model.safetensors").items():
        parts, values = code(name, weight) if is_projection(name) else ({name: weight}, weight)
        stored |= {part: tensor.contiguous() for part, tensor in parts.items()}
        meant[name] = values.float() if is_projection(name) else weight
    save_file(stored, coded_folder / "model.safetensors", metadata={"format": "pt", **(metadata or {})})
    save_file(meant, meant_folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((coded_folder / "config.json").read_text())
    (coded_folder / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    found, expected = converted(coded_folder), converted(meant_folder)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


# --- compressed-tensors ------------------------------------------------------------------------------------------

INT = {"type": "int", "symmetric": True}
FLOAT = {"type": "float", "symmetric": True}
SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"W{bits}A16": ("pack-quantized", {**INT, "num_bits": bits, "strategy": "group", "group_size": 32})
        for bits in (2, 3, 4, 5, 8)
    },
    "W4A16 with zero points": (
        "pack-quantized",
        {**INT, "symmetric": False, "num_bits": 4, "strategy": "group", "group_size": 32},
    ),
    "W4A8": ("int-quantized", {**INT, "num_bits": 4, "strategy": "group", "group_size": 32}),
    "W8A8": ("int-quantized", {**INT, "num_bits": 8, "strategy": "channel"}),
    "FP8": ("float-quantized", {**FLOAT, "num_bits": 8, "strategy": "channel"}),
    "FP8 blocks": ("float-quantized", {**FLOAT, "num_bits": 8, "strategy": "block", "block_structure": [32, 64]}),
    "NVFP4": ("nvfp4-pack-quantized", {**FLOAT, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}),
    "MXFP4": ("mxfp4-pack-quantized", {**FLOAT, "num_bits": 4, "strategy": "group", "group_size": 32}),
    "MXFP8": ("mxfp8-quantized", {**FLOAT, "num_bits": 8, "strategy": "group", "group_size": 32}),
}


def scales_of(weight: torch.Tensor, args: Any) -> State:
    """Scales and zero points of a weight, in float32."""
    rows, columns = weight.shape
    height, width = args.block_structure or (1, args.group_size or columns)
    peak = weight.abs().reshape(rows // height, height, columns // width, width).amax((1, 3))
    top = 448 if args.num_bits == 8 else 6
    scale = peak / (top if args.type == "float" else 2 ** (args.num_bits - 1) - 0.5)
    parts = {"weight_scale": scale}
    if not args.symmetric:
        parts["weight_zero_point"] = torch.randint(-4, 4, scale.shape).to(torch.int8)
    return parts


@pytest.mark.parametrize("name", SCHEMES)
def test_compressed_tensors(name: str, plain: Path, tmp_path: Path) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    kind, fields = SCHEMES[name]
    args = QuantizationArgs(**fields, scale_dtype=torch.uint8 if kind.startswith("mx") else None)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(kind)

    def code(name: str, weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        weight = weight.float()
        local = {"weight": weight, **scales_of(weight, args)}
        if kind.startswith("mx"):
            local["weight_scale"] = 2.0 ** torch.floor(torch.log2(local["weight_scale"]))
        if kind.startswith("nvfp4"):
            local["weight_global_scale"] = torch.tensor([448 * 6 / weight.abs().max()])
            local["weight_scale"] = (
                (local["weight_scale"] * local["weight_global_scale"]).to(torch.float8_e4m3fn).float()
            )
        stored = compressor.compress(local, scheme)
        opened = {**stored}
        values = dequantized(compressor, opened, scheme)
        prefix = name.removesuffix("weight")
        return {prefix + part: tensor for part, tensor in stored.items()}, values

    config = {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": {**scheme.model_dump(mode="json"), "format": kind}},
    }
    compare(plain, tmp_path, code, config)


def dequantized(compressor: Any, stored: State, scheme: Any) -> torch.Tensor:
    """decompress() in float32; FP4 codes are otherwise computed in bfloat16."""
    if "weight_packed" not in stored or stored["weight_packed"].dtype != torch.uint8:
        return compressor.decompress(stored, scheme)["weight"]
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    rows, half = stored["weight_packed"].shape
    codes = unpack_fp4_from_uint8(stored["weight_packed"], rows, 2 * half, dtype=torch.float32)
    scale = compressor._decompress_scale(stored["weight_scale"], torch.float32)
    whole = stored.get("weight_global_scale")
    return dequantize(x_q=codes, scale=scale, args=scheme.weights, global_scale=whole, dtype=torch.float32)


# --- torchao -----------------------------------------------------------------------------------------------------


def torchao_configs() -> dict[str, Any]:
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
    )

    return {
        "int8 by row": Int8WeightOnlyConfig(version=2),
        "int8 by group": Int8WeightOnlyConfig(version=2, granularity=PerGroup(32)),
        "int4 weights": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "W4A8": Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
        "float8": Float8WeightOnlyConfig(),
    }


@pytest.mark.parametrize("name", ["int8 by row", "int8 by group", "int4 weights", "W4A8", "float8"])
def test_torchao(name: str, plain: Path, tmp_path: Path) -> None:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    metadata: dict[str, str] = {}

    def code(full: str, weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        model = torch.nn.Sequential(torch.nn.Linear(*weight.shape[::-1], bias=False))
        model[0].weight = torch.nn.Parameter(weight.float())
        quantize_(model, torchao_configs()[name])
        stored, facts = flatten_tensor_state_dict(model.state_dict())
        metadata[full] = facts["0.weight"]
        prefix = full.removesuffix("weight")
        return {prefix + part.removeprefix("0."): t for part, t in stored.items()}, model[
            0
        ].weight.dequantize().detach()

    compare(plain, tmp_path, code, {"quant_method": "torchao"}, metadata)


# --- transformers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
def test_fp8_of_transformers(scale_fmt: str, plain: Path, tmp_path: Path) -> None:
    """The quantization that from_pretrained() applies, and the values that it loads with dequantize=True."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    class Quantizer:
        quantization_config = FineGrainedFP8Config(weight_block_size=(64, 64), scale_fmt=scale_fmt)

    def code(name: str, weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        stored = Fp8Quantize(Quantizer()).convert({name: weight.float()})
        parts = stored[name], stored[name + "_scale_inv"]
        return stored, Fp8Dequantize(Quantizer())._dequantize_one(*parts, output_dtype=torch.float32)

    compare(plain, tmp_path, code, {"quant_method": "fp8", "weight_block_size": [64, 64], "scale_fmt": scale_fmt})
