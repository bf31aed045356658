"""Tiny models that real libraries wrote: their GGUF has the library's own values, and transformers' logits.

Needs the group `integrations`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.producers import (
    check_loaded,
    check_logits,
    converted,
    copy_tokenizer,
    logits_of,
    logits_of_gguf,
    require_equal,
)
from fixtures.targets import make_target
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.source.coded import read_scheme
from llama_eagle.convert.source.weights import Weights
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.slow, pytest.mark.native]

State = dict[str, torch.Tensor]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}


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
    "MXFP6": ("mxfp6-pack-quantized", {**FLOAT, "num_bits": 6, "strategy": "group", "group_size": 32}),
    "MXFP8": ("mxfp8-quantized", {**FLOAT, "num_bits": 8, "strategy": "group", "group_size": 32}),
}


LOADED = ("W4A16", "W8A8", "FP8")  # which transformers dequantizes on a CPU, too


def scales_of(weight: torch.Tensor, args: Any) -> State:
    """Scales and zero points of a weight, in float32."""
    rows, columns = weight.shape
    height, width = args.block_structure or (1, args.group_size or columns)
    peak = weight.abs().reshape(rows // height, height, columns // width, width).amax((1, 3))
    top = {4: 6, 6: 7.5, 8: 448}.get(args.num_bits)
    scale = peak / (top if args.type == "float" else 2 ** (args.num_bits - 1) - 0.5)
    parts = {"weight_scale": scale}
    if not args.symmetric:
        parts["weight_zero_point"] = torch.randint(-4, 4, scale.shape).to(torch.int8)
    return parts


@pytest.mark.parametrize("name", SCHEMES)
def test_compressed_tensors(name: str, plain: Path, tmp_path: Path) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from transformers import CompressedTensorsConfig

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
    if name in LOADED:
        check_loaded(tmp_path / "coded", quantization_config=CompressedTensorsConfig(run_compressed=False))


def dequantized(compressor: Any, stored: State, scheme: Any) -> torch.Tensor:
    """decompress() in float32; FP4 and FP6 codes are otherwise computed in bfloat16."""
    if "weight_packed" not in stored or stored["weight_packed"].dtype != torch.uint8:
        return compressor.decompress(stored, scheme)["weight"]
    from compressed_tensors.compressors.mxfp6.helpers import unpack_fp6_from_uint8
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    rows, width = stored["weight_packed"].shape
    unpack = unpack_fp6_from_uint8 if scheme.weights.num_bits == 6 else unpack_fp4_from_uint8
    codes = unpack(stored["weight_packed"], rows, width * 8 // scheme.weights.num_bits, dtype=torch.float32)
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


@pytest.mark.parametrize("name", ["MXFP4", "MXFP8", "NVFP4"])
@pytest.mark.parametrize("swizzled", [False, True])
def test_torchao_blocks(name: str, swizzled: bool, plain: Path, tmp_path: Path) -> None:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    types = {"MXFP4": torch.float4_e2m1fn_x2, "MXFP8": torch.float8_e4m3fn}
    metadata: dict[str, str] = {}

    def code(full: str, weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        if name == "NVFP4":
            whole = weight.float().abs().amax() / (448 * 6)
            tensor = NVFP4Tensor.to_nvfp4(weight.float(), per_tensor_scale=whole, is_swizzled_scales=swizzled)
        else:
            tensor = MXTensor.to_mx(weight.float(), types[name], block_size=32, is_swizzled_scales=swizzled)
        stored, facts = flatten_tensor_state_dict({full: tensor})
        metadata[full] = facts[full]
        return stored, tensor.dequantize()

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
    check_loaded(tmp_path / "coded", quantization_config=FineGrainedFP8Config(dequantize=True))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_metal_of_transformers(bits: int, plain: Path, tmp_path: Path) -> None:
    """Its weights can be made and dequantized without Apple's GPU, which its kernels need."""
    from transformers.integrations.metal_quantization import MetalDequantize, MetalQuantize
    from transformers.utils.quantization_config import MetalConfig

    class Quantizer:
        quantization_config = MetalConfig(bits=bits, group_size=32)

    def code(name: str, weight: torch.Tensor) -> tuple[State, torch.Tensor]:
        stored = MetalQuantize(Quantizer()).convert({name: weight})
        parts = {part.rpartition(".")[2]: [tensor] for part, tensor in stored.items()}
        return stored, MetalDequantize(Quantizer()).convert(parts, full_layer_name=name)[name]

    compare(plain, tmp_path, code, Quantizer.quantization_config.to_dict())
    check_loaded(tmp_path / "coded", device_map="cpu")


# --- bitsandbytes ------------------------------------------------------------------------------------------------

BITSANDBYTES: dict[str, dict[str, Any]] = {
    "NF4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "FP4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "NF4, quantized scales": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "NF4 in bfloat16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "bfloat16"},
    "FP4 in float32": {"load_in_4bit": True, "bnb_4bit_quant_storage": "float32"},
    "INT8": {"load_in_8bit": True},
}


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_bitsandbytes(name: str, plain: Path, tmp_path: Path) -> None:
    """A checkpoint that save_pretrained() writes."""
    from bitsandbytes import functional
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    settings = BitsAndBytesConfig(**BITSANDBYTES[name])
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=settings, dtype=torch.float32)
    coded = tmp_path / "coded"
    model.save_pretrained(coded)
    copy_tokenizer(plain, coded)
    meant = load_file(plain / "model.safetensors")
    for weight in filter(is_projection, meant):
        parameter = model.get_submodule(weight.removesuffix(".weight")).weight
        if name == "INT8":
            meant[weight] = functional.int8_vectorwise_dequant(parameter.data, parameter.SCB)
        else:
            meant[weight] = functional.dequantize_4bit(parameter.data, parameter.quant_state)
    meant_folder = Path(shutil.copytree(plain, tmp_path / "meant"))
    save_file(meant, meant_folder / "model.safetensors", metadata={"format": "pt"})
    require_equal(coded, meant_folder)
    expected = logits_of(model)  # its layers round activations
    assert np.std(logits_of_gguf(coded) - expected) < 0.02 * np.std(expected)


# --- optimum-quanto ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [96, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["qint8", "qfloat8", "qfloat8_e5m2", "qint4", "qint2", "qint4 with zero points"])
def test_quanto(kind: str, dtype: str, width: int, tmp_path: Path) -> None:
    """A checkpoint that save_pretrained() writes. Rows of 96 columns have one scale each."""
    from optimum import quanto
    from transformers import AutoModelForCausalLM

    source = make_target("qwen3", tmp_path / "source", seed=3, **{**SIZES, "hidden_size": width})
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    options = {"optimizer": quanto.HqqOptimizer()} if "zero" in kind else {}
    quantized = quanto.QuantizedModelForCausalLM.quantize(model, weights=getattr(quanto, kind.split()[0]), **options)
    quantized.save_pretrained(tmp_path / "coded")
    copy_tokenizer(source, tmp_path / "coded")
    meant = {name: tensor.float() for name, tensor in load_file(source / "model.safetensors").items()}
    for name, part in model.named_modules():
        if isinstance(part, quanto.QLinear):
            meant[f"{name}.weight"] = part.weight.dequantize().detach().float()
    meant_folder = Path(shutil.copytree(source, tmp_path / "meant"))
    save_file(meant, meant_folder / "model.safetensors", metadata={"format": "pt"})
    require_equal(tmp_path / "coded", meant_folder)
    if dtype == "float32":
        check_logits(tmp_path / "coded", logits_of(model))


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


def divide_by_scales(model: Any) -> dict[str, torch.Tensor]:
    """Divide weights by scales of their inputs, one for all that have the same input; ModelOpt finds AWQ's on a GPU."""
    random, by_input, found = torch.Generator().manual_seed(1), dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, part in model.named_modules():
        if name.endswith("_proj"):
            shared = re.sub(r"[qkv]_proj|(gate|up)_proj", "shared", name)
            scale = by_input.setdefault(shared, torch.rand(part.in_features, generator=random) + 0.5).to(part.weight)
            part.weight.data = part.weight.data / scale
            found[name] = scale
    return found


@pytest.mark.parametrize(
    "algorithm",
    ["FP8_DEFAULT_CFG", "FP8_PER_CHANNEL_PER_TOKEN_CFG", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "NVFP4_DEFAULT_CFG",
     "MXFP4_DEFAULT_CFG", "MXFP8_DEFAULT_CFG", "INT8_WEIGHT_ONLY_CFG", "INT8_DEFAULT_CFG", "NVFP4_AWQ"],
)  # fmt: skip
def test_modelopt(algorithm: str, plain: Path, tmp_path: Path) -> None:
    """A checkpoint that export_hf_checkpoint() writes."""
    import modelopt.torch.quantization as quantization
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    tokens = torch.arange(32)[None]
    scales = divide_by_scales(model) if algorithm == "NVFP4_AWQ" else {}
    settings = getattr(quantization, "NVFP4_DEFAULT_CFG" if scales else algorithm)
    model = quantization.quantize(model, settings, lambda model: model(tokens))
    for name, scale in scales.items():
        model.get_submodule(name).input_quantizer.pre_quant_scale = scale
    coded = tmp_path / "coded"
    export_hf_checkpoint(model, export_dir=coded)
    stored = load_file(coded / "model.safetensors")
    names = [name for name in stored if is_projection(name)]
    assert all(name + "_scale" in stored for name in names)
    meant = {name: tensor for name, tensor in stored.items() if "scale" not in name}
    meant |= {name: modelopt_values(stored, name, algorithm) for name in names}
    left = {name.removesuffix(".pre_quant_scale"): stored[name] for name in stored if name.endswith("pre_quant_scale")}
    assert bool(left) == bool(scales)  # the norms have the others
    meant |= {f"{name}.weight": meant[f"{name}.weight"] * scale.float() for name, scale in left.items()}
    meant_folder = Path(shutil.copytree(plain, tmp_path / "meant"))
    save_file(meant, meant_folder / "model.safetensors", metadata={"format": "pt"})
    copy_tokenizer(plain, coded)
    require_equal(coded, meant_folder)


@pytest.mark.parametrize("algorithm", ["INT4_AWQ_CFG", "W4A8_AWQ_BETA_CFG"])
def test_modelopt_awq(algorithm: str, plain: Path, tmp_path: Path) -> None:
    """The export merges scales, which rounds weights again: logits differ from the original's as ModelOpt's own do."""
    import modelopt.torch.quantization as quantization
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    original = logits_of(model)
    model = quantization.quantize(model, getattr(quantization, algorithm), logits_of)
    inputs = [part for name, part in model.named_modules() if name.endswith("input_quantizer") and part.is_enabled]
    for part in inputs:
        part.disable()  # of activations; it still multiplies by pre_quant_scale
    coded = logits_of(model)
    for part in inputs:
        part.enable()
    export_hf_checkpoint(model, export_dir=tmp_path / "coded")
    copy_tokenizer(plain, tmp_path / "coded")
    found = logits_of_gguf(tmp_path / "coded")
    assert np.std(found - original) < 1.5 * np.std(coded - original) < 0.5 * np.std(original)


# --- merged models ---------------------------------------------------------------------------------------------------


def test_merged_by_peft(plain: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    expected = logits_of(adapted)
    adapted.merge_and_unload().save_pretrained(tmp_path, max_shard_size="300KB")
    copy_tokenizer(plain, tmp_path)
    check_logits(tmp_path, expected)


@pytest.mark.parametrize("method", ["linear", "slerp", "passthrough"])
def test_merged_by_mergekit(method: str, tmp_path: Path) -> None:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    family = "llama3" if method == "passthrough" else "qwen3"  # mergekit keeps layer_types of the old length
    folders = [make_target(family, tmp_path / str(seed), seed=seed, **SIZES) for seed in (3, 4)]
    models = [{"model": str(folder), "layer_range": [0, 2]} for folder in folders]
    settings: dict[str, Any] = {"merge_method": method, "dtype": "float32", "base_model": str(folders[0])}
    if method == "linear":
        slices = [{"sources": [{**model, "parameters": {"weight": 0.5}} for model in models]}]
    elif method == "slerp":
        slices, settings["parameters"] = [{"sources": models}], {"t": 0.3}
    else:  # a model with four blocks
        slices = [{"sources": [model]} for model in models]
        settings.pop("base_model")
    run_merge(MergeConfiguration.model_validate({**settings, "slices": slices}), str(tmp_path / "out"), MergeOptions())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 2 + 2 * (len(slices) - 1)
    check_loaded(tmp_path / "out")


# --- AutoRound ---------------------------------------------------------------------------------------------------


ROUNDED = {
    "GPTQ": ("auto_gptq", {"scheme": "W4A16"}),
    "AWQ": ("auto_awq", {"scheme": "W4A16"}),
    "AWQ with zero points": ("auto_awq", {"scheme": "W4A16", "sym": False}),
    **{f"W{bits}A16": ("auto_round", {"scheme": "W4A16", "bits": bits}) for bits in (2, 3, 4, 8)},
    **{
        f"W{bits}A16 with zero points": ("auto_round", {"scheme": "W4A16", "bits": bits, "sym": False})
        for bits in range(4, 8)
    },
    "W2A16 with zero points": ("auto_round", {"scheme": "W2A16", "sym": False}),
    "W4A16 by row": ("auto_round", {"scheme": "W4A16", "group_size": -1}),
    "GPTQ's packing": ("auto_round:auto_gptq", {"scheme": "W4A16"}),
    "AWQ's packing": ("auto_round:auto_awq", {"scheme": "W4A16", "sym": False}),
}


def auto_round_values(stored: State, module: str, packing: str, bits: int) -> torch.Tensor:
    """A weight of an export, by AutoRound's own layer applied to each unit vector; it rounds to float16."""
    parts = {name: stored[f"{module}.{name}"] for name in ("qweight", "qzeros", "scales")}
    columns, rows = parts["qweight"].shape[0] * 32 // bits, parts["scales"].shape[1]
    if "awq" in packing:
        from auto_round.export.export_to_awq.utils import dequantize_gemm

        return dequantize_gemm(*(parts[name] for name in parts), 4, len(parts["qweight"]) // len(parts["scales"])).T
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    kind = qlinear_torch_zp if "gptq" in packing and "gptqmodel" not in packing else qlinear_torch
    layer = kind.QuantLinear(bits, columns // len(parts["scales"]), columns, rows, bias=False)
    layer.load_state_dict(parts)
    return layer(torch.eye(columns)).T


@pytest.mark.parametrize("name", ROUNDED)
def test_auto_round(name: str, plain: Path, tmp_path: Path) -> None:
    """Values are those of AutoRound's own layers, and near the original's."""
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    form, options = ROUNDED[name]
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    fields = {"iters": 0, "disable_opt_rtn": True, "group_size": 32, "device_map": "cpu", **options}
    rounding = AutoRound(model, AutoTokenizer.from_pretrained(plain), **fields)
    rounding.quantize_and_save(str(tmp_path / "out"), format=form)
    coded = next((tmp_path / "out").rglob("config.json")).parent
    copy_tokenizer(plain, coded)
    assert converted(coded).keys() == converted(plain).keys()
    checkpoint = open_checkpoint(coded)
    config = checkpoint.config["quantization_config"]
    weights = Weights(checkpoint, lambda name: name, read_scheme(checkpoint.config))
    original, stored = load_file(plain / "model.safetensors"), load_file(coded / "model.safetensors")
    packing = config.get("packing_format", config["quant_method"])
    for weight in filter(is_projection, original):
        found, values = weights.read(weight), original[weight].float().numpy()
        meant = auto_round_values(stored, weight.removesuffix(".weight"), packing, config["bits"]).float().numpy()
        np.testing.assert_allclose(found, meant, rtol=2**-10, atol=1e-6, err_msg=weight)
        scales = checkpoint.read_f32(weight.replace(".weight", ".scales")).T
        change = (found - values) / scales.repeat(values.shape[1] // scales.shape[1], 1)
        assert np.quantile(abs(change), 0.97) < 0.6, weight
