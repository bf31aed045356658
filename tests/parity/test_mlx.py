"""Checkpoints that mlx-lm wrote: their GGUF has the values of mx.dequantize, and mlx-lm's logits.

Needs the group `integrations`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from fixtures.native import NativeTarget
from fixtures.targets import FAMILIES, HYBRID, fuse_experts, make_target, store_experts_in_out
from llama_eagle.convert.targets import TargetOptions, TargetReport, convert_target
from llama_eagle.errors import InputError
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.validate import read_sound

pytestmark = [pytest.mark.slow, pytest.mark.native]

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32}
TOKENS = np.random.default_rng(2).integers(0, 480, 48).tolist()
Tensors = dict[str, np.ndarray]


def make_published(family: str, folder: Path, dtype: str = "float32") -> Path:
    """Write a checkpoint with the keys and names of published ones, which mlx-lm needs; transformers writes others."""
    sizes = {**SIZES, "moe_intermediate_size": 64} if "num_experts" in FAMILIES[family][3] else SIZES
    make_target(family, folder, seed=3, dtype=dtype, mtp=family in HYBRID, **sizes)
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        if rope := part.get("rope_parameters"):
            part |= {"rope_theta": rope["rope_theta"], "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0)}
            part["rope_scaling"] = rope if rope["rope_type"] != "default" else None
        if "moe_intermediate_size" in part:
            part |= {"num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    (folder / "config.json").write_text(json.dumps(config))
    if family == "qwen35moe":
        fuse_experts(folder)
    if family == "qwen3vlmoe":
        store_experts_in_out(folder)
    return folder


def mlx_convert(source: Path, folder: Path, **options: Any) -> Path:
    from mlx_lm.convert import convert

    convert(str(source), str(folder), **options)
    return folder


def converted(folder: Path, outtype: str = "f32") -> tuple[Tensors, TargetReport]:
    path = folder.parent / f"{folder.name}.gguf"
    report = convert_target(folder, path, TargetOptions(outtype=outtype))
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}, report


def require_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def without_head(tensors: Tensors) -> Tensors:
    """Without the MTP block, which is the last of five."""
    return {name: values for name, values in tensors.items() if not name.startswith("blk.4.")}


def require_logits(folder: Path) -> None:
    """Compare logits of the folder's GGUF with mlx-lm's."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    expected = np.array(model(mx.array([TOKENS]))[0].astype(mx.float32))
    with NativeTarget(folder.parent / f"{folder.name}.gguf") as target:
        found = np.array(target.decode(TOKENS)[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen35-text"])  # unknown to mlx-lm
def test_every_family(family: str, tmp_path: Path) -> None:
    """Plain, the tensors are those of the original; quantized, those of mlx-lm's own dequantization."""
    source = make_published(family, tmp_path / "source")
    original = without_head(converted(source)[0])
    plain, report = converted(mlx_convert(source, tmp_path / "plain"))
    require_equal(plain, original)
    require_logits(tmp_path / "plain")
    said = " ".join(report.warnings)
    assert ("no MTP head" in said or "an MTP head" in said) == (family in HYBRID)
    assert ("no vision encoder" in said) == (FAMILIES[family][4] is not None)

    coded, _ = converted(mlx_convert(source, tmp_path / "coded", quantize=True, q_group_size=32))
    require_logits(tmp_path / "coded")
    require_equal(coded, converted(mlx_convert(tmp_path / "coded", tmp_path / "back", dequantize=True))[0])
    for name, values in original.items():
        if values.ndim > 1:
            step = np.ptp(values.reshape(-1, 32), axis=1).max() / 15
            assert abs(coded[name] - values).max() < step, name


RECIPES: dict[str, dict[str, Any]] = {
    **{
        f"{bits} bits, groups of {size}": {"q_bits": bits, "q_group_size": size}
        for bits in (1, 2, 3, 4, 5, 6, 8)
        for size in (32, 64, 128)
    },
    **{mode: {"q_mode": mode} for mode in ("mxfp4", "nvfp4", "mxfp8")},
    **{name: {"quant_predicate": name} for name in ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")},
}
CASES = [(recipe, "bfloat16") for recipe in RECIPES]
CASES += [
    (recipe, dtype) for recipe in RECIPES for dtype in ("float16", "float32") if not recipe.endswith(("32", "128"))
]


def as_f32(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint8:  # bytes of BF16
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


@pytest.mark.parametrize(("recipe", "dtype"), CASES)
def test_values_are_those_of_mlx(recipe: str, dtype: str, tmp_path: Path) -> None:
    """The stored type is that of the scales, so that an automatic type keeps every value."""
    import mlx.core as mx

    source = make_published("qwen3", tmp_path / "source", dtype)
    folder = mlx_convert(source, tmp_path / "coded", quantize=True, **RECIPES[recipe])
    found, _ = converted(folder)
    stored = mx.load(str(folder / "model.safetensors"))
    settings = json.loads((folder / "config.json").read_text())["quantization"]
    names = {
        "embed_tokens": "token_embd",
        "layers.2.mlp.down_proj": "blk.2.ffn_down",
        "layers.1.mlp.up_proj": "blk.1.ffn_up",
    }
    for name, target in names.items():
        module = f"model.{name}"
        given = {"mode": "affine", **settings, **settings.get(module, {})}
        parts = [stored[f"{module}.weight"], stored[f"{module}.scales"], stored.get(f"{module}.biases")]
        kind = {} if given["mode"] == "affine" else {"dtype": mx.float32}
        values = mx.dequantize(*parts, given["group_size"], given["bits"], mode=given["mode"], **kind)
        np.testing.assert_array_equal(found[f"{target}.weight"], np.array(values.astype(mx.float32)), err_msg=name)
    if dtype == "float32":
        require_logits(folder)
    kept, _ = converted(folder, "auto")  # has the type of the scales
    for target in names.values():
        np.testing.assert_array_equal(as_f32(kept[f"{target}.weight"]), found[f"{target}.weight"])


def test_a_scale_for_each_expert(tmp_path: Path) -> None:
    """mlx-lm's option for nvfp4. It computes such layers on a GPU only, so the values are compared."""
    import mlx.core as mx
    from mlx_lm.utils import load, quantize_model, save

    source = make_published("qwen3moe", tmp_path / "source")
    model, tokenizer, config = load(str(source), return_config=True, lazy=True)
    model, config = quantize_model(
        model, config, None, None, mode="nvfp4", global_scale=True, quant_predicate=lambda path, module: True
    )
    save(tmp_path / "coded", str(source), model, tokenizer, config)
    found, _ = converted(tmp_path / "coded")
    stored = mx.load(str(tmp_path / "coded/model.safetensors"))
    for kind in ("up", "down"):
        parts = [
            stored[f"model.layers.0.mlp.switch_mlp.{kind}_proj.{part}"] for part in ("weight", "scales", "global_scale")
        ]
        for expert, (codes, scales, whole) in enumerate(zip(*parts, strict=True)):
            values = mx.dequantize(codes, scales, mode="nvfp4", global_scale=whole, dtype=mx.float32)
            np.testing.assert_array_equal(found[f"blk.0.ffn_{kind}_exps.weight"][expert], np.array(values))


def test_a_file_of_fuse_is_refused_and_its_folder_converted(tmp_path: Path) -> None:
    """`mlx_lm.fuse --export-gguf` calls this function with the folder that it has saved."""
    import mlx.core as mx
    from mlx_lm.gguf import convert_to_gguf

    folder = make_published("llama3", tmp_path / "fused")
    config = json.loads((folder / "config.json").read_text())
    file = folder / "ggml-model-f16.gguf"
    convert_to_gguf(folder, dict(mx.load(str(folder / "model.safetensors"))), config, str(file))
    for read in (require_models, read_sound):
        with pytest.raises(InputError, match=r"mlx_lm.fuse --export-gguf.*llama-eagle convert FOLDER"):
            read(file)
    converted(folder)
    require_models(tmp_path / "fused.gguf")
