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
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.source.coded import read_scheme
from llama_eagle.convert.source.weights import Weights
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
    require_equal(coded_folder, meant_folder)


def require_equal(coded: Path, meant: Path) -> None:
    found, expected = converted(coded), converted(meant)
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


# --- ModelOpt ----------------------------------------------------------------------------------------------------


def modelopt_values(stored: State, name: str, algorithm: str) -> torch.Tensor:
    """A weight of an export, dequantized by ModelOpt's own tensors."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    codes, scale = stored[name], stored[name + "_scale"]
    rows, columns = codes.shape
    whole = torch.Size((rows, 2 * columns if codes.dtype == torch.uint8 else columns))
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "NVFP4": (NVFP4QTensor, {"double_scale": stored.get(name + "_scale_2"), "block_sizes": {-1: 16}}),
        "MXFP4": (MXFP4QTensor, {"block_sizes": {-1: 32}}),
        "MXFP8": (MXFP8QTensor, {}),
        "INT8": (INT8QTensor, {}),
        "FP8": (FP8QTensor, {}),
    }
    kind, more = next(value for start, value in kinds.items() if algorithm.startswith(start))
    if scale.ndim == 4:  # a single block has a scale without dimensions
        scale, more = scale[:, 0, :, 0], {"block_sizes": {-1: 128, -2: 128}}
    elif scale.ndim == 1:
        scale = scale[:, None]
    return kind(whole, torch.float32, codes).dequantize(torch.float32, scale=scale, **more)


@pytest.mark.parametrize(
    "algorithm",
    ["FP8_DEFAULT_CFG", "FP8_PER_CHANNEL_PER_TOKEN_CFG", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "NVFP4_DEFAULT_CFG",
     "MXFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG", "INT8_WEIGHT_ONLY_CFG", "INT8_DEFAULT_CFG"],
)  # fmt: skip
def test_modelopt(algorithm: str, plain: Path, tmp_path: Path) -> None:
    """A checkpoint that export_hf_checkpoint() writes."""
    import modelopt.torch.quantization as quantization
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    tokens = torch.arange(32)[None]
    model = quantization.quantize(model, getattr(quantization, algorithm), lambda model: model(tokens))
    coded = tmp_path / "coded"
    export_hf_checkpoint(model, export_dir=coded)
    stored = load_file(coded / "model.safetensors")
    names = [name for name in stored if is_projection(name)]
    assert all(name + "_scale" in stored for name in names)
    meant = {name: tensor for name, tensor in stored.items() if "scale" not in name}
    meant |= {name: modelopt_values(stored, name, algorithm) for name in names}
    meant_folder = Path(shutil.copytree(plain, tmp_path / "meant"))
    save_file(meant, meant_folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(plain / "tokenizer.json", coded)
    shutil.copy(plain / "tokenizer_config.json", coded)
    require_equal(coded, meant_folder)


# --- AutoRound ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form, options",
    [("auto_gptq", {"scheme": "W4A16"}), ("auto_awq", {"scheme": "W4A16"}), ("auto_round", {"scheme": "W4A16"}),
     ("auto_round", {"scheme": "W2A16", "sym": False})],
)  # fmt: skip
def test_auto_round(form: str, options: dict[str, Any], plain: Path, tmp_path: Path) -> None:
    """Rounding to nearest changes a weight by half a step; another zero point would change it by a whole one."""
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(plain)
    rounding = AutoRound(model, tokenizer, iters=0, disable_opt_rtn=True, group_size=32, device_map="cpu", **options)
    rounding.quantize_and_save(str(tmp_path / "out"), format=form)
    coded = next((tmp_path / "out").rglob("config.json")).parent
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, coded)
    assert converted(coded).keys() == converted(plain).keys()
    checkpoint = open_checkpoint(coded)
    weights = Weights(checkpoint, lambda name: name, read_scheme(checkpoint.config))
    original = load_file(plain / "model.safetensors")
    names = [name for name in original if is_projection(name)]
    for name in names:
        step = checkpoint.read_f32(name.replace(".weight", ".scales")).T.repeat(32, 1)
        change = (weights.read(name) - original[name].float().numpy()) / step
        assert np.quantile(abs(change), 0.97) < 0.52, name
        assert abs(change.mean()) < 0.05, name
