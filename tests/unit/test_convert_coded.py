"""Drafts published in FP8 or as packed integers are the drafts that their codes mean, value by value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import CASES, DraftSpec, make_draft, make_target_gguf
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.drafts.report import DraftOptions
from llama_eagle.convert.source.decode import words_shape
from llama_eagle.errors import ConversionError, EagleError
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Coded = tuple[Tensors, torch.Tensor]  # what is stored for one weight, by suffix, and what it means (float32)

SPEC = DraftSpec(dtype="float32", norm_before_fc=True, ffn=100)  # 100: no multiple of a block, a word or a group


def fp8(weight: torch.Tensor, scale: torch.Tensor, suffix: str) -> Coded:
    """scale: broadcastable to the weight."""
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"": codes, suffix: scale}, codes.float() * scale


def fp8_tensor(weight: torch.Tensor) -> Coded:
    """As ModelOpt stores it: one scale without dimensions, and one of the activations."""
    stored, meant = fp8(weight, weight.abs().max() / 448, "_scale")
    return {**stored, ".input_scale": torch.tensor(0.5)}, meant


def fp8_row(weight: torch.Tensor) -> Coded:
    return fp8(weight, weight.abs().amax(1, keepdim=True) / 448, "_scale")


def fp8_block(suffix: str) -> Callable[[torch.Tensor], Coded]:
    def code(weight: torch.Tensor) -> Coded:
        rows, columns = weight.shape
        grid = -(-rows // 32), -(-columns // 32)
        scale = torch.rand(grid, generator=torch.Generator().manual_seed(rows)) * 0.01 + 0.001
        full = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)[:rows, :columns]
        codes = (weight / full).to(torch.float8_e4m3fn)
        return {"": codes, suffix: scale}, codes.float() * full

    return code


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of signed integers in 32-bit words: shifted to unsigned, the first in the lowest bits; slow and plain."""
    words = []
    for row in values.tolist():
        number = sum((value + 2 ** (bits - 1)) << (bits * i) for i, value in enumerate(row))
        words.append([(number >> (32 * w)) & 0xFFFFFFFF for w in range(-(-len(row) * bits // 32))])
    return torch.from_numpy(np.array(words, np.uint32).view(np.int32))


def packed(bits: int, group: int | None, *, zero: bool = False, shuffled: bool = False) -> Callable[..., Coded]:
    """compressed-tensors' pack-quantized; group None: one scale per row."""

    def code(weight: torch.Tensor) -> Coded:
        rows, columns = weight.shape
        size = group if group and columns % group == 0 else columns
        random = torch.Generator().manual_seed(columns)
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
        ints = torch.randint(low, high, weight.shape, generator=random)
        scale = (torch.rand(rows, columns // size, generator=random) * 0.1 + 0.01).bfloat16()
        order = torch.randperm(columns, generator=random) if shuffled else torch.arange(columns)
        index = torch.arange(columns)[order] // size
        stored = {"_packed": pack(ints, bits), "_scale": scale, "_shape": torch.tensor([rows, columns])}
        zeros = torch.zeros_like(scale, dtype=torch.int64)
        if zero:
            zeros = torch.randint(low, high, scale.shape, generator=random)
            stored["_zero_point"] = pack(zeros.T, bits).T.contiguous()
        if shuffled:
            stored["_g_idx"] = index.to(torch.int32)
        return stored, (ints - zeros[:, index]).float() * scale.float()[:, index]

    return code


def compressed(**weights: Any) -> dict[str, Any]:
    kind = "pack-quantized" if weights.get("type") == "int" else "float-quantized"
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [32, 32]}
CODINGS: dict[str, tuple[Callable[..., Coded], dict[str, Any]]] = {
    "FP8, one scale (ModelOpt)": (fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "FP8, a scale per row": (fp8_row, compressed(num_bits=8, type="float", strategy="channel")),
    "FP8, blocks (transformers)": (fp8_block("_scale_inv"), FP8_BLOCK),
    "FP8, blocks (compressed-tensors)": (
        fp8_block("_scale"),
        compressed(num_bits=8, type="float", strategy="block", block_structure=[32, 32]),
    ),
    "W4, groups": (packed(4, 32), compressed(num_bits=4, type="int", strategy="group", group_size=32)),
    "W4, groups with zero points": (packed(4, 32, zero=True), compressed(num_bits=4, type="int", symmetric=False)),
    "W4, columns out of order": (packed(4, 32, shuffled=True), compressed(num_bits=4, type="int", actorder="group")),
    "W4, a scale per row": (packed(4, None, zero=True), compressed(num_bits=4, type="int", strategy="channel")),
    "W8, groups": (packed(8, 64, zero=True), compressed(num_bits=8, type="int", strategy="group")),
}


def make_pair(tmp_path: Path, coding: str, spec: DraftSpec = SPEC) -> tuple[Path, Path]:
    """The same draft twice: coded, and as the float32 numbers that the codes mean."""
    code, config = CODINGS[coding]
    coded, plain = (make_draft(tmp_path / name, spec) for name in ("coded", "plain"))
    stored = load_file(plain / "model.safetensors")
    meant = dict(stored)
    for name in [n for n in stored if n.endswith("_proj.weight") or n == "fc.weight"]:
        parts, meant[name] = code(stored.pop(name))
        for suffix, tensor in parts.items():
            at = name.removesuffix(".weight") + suffix if suffix.startswith(".") else name + suffix
            stored[at] = tensor.contiguous()
    save_file(stored, coded / "model.safetensors")
    save_file(meant, plain / "model.safetensors")
    settings = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    return coded, plain


def tensors(folder: Path, target: Path, **options: Any) -> dict[str, tuple[str, bytes]]:
    path = folder.parent / "out.gguf"
    convert_draft(folder, target, path, DraftOptions(**options))
    return {t.name: (t.tensor_type.name, t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target_gguf(tmp_path / "target.gguf")


@pytest.mark.parametrize("coding", CODINGS)
def test_a_coded_draft_is_what_its_codes_mean(coding: str, tmp_path: Path, target: Path) -> None:
    coded, plain = make_pair(tmp_path, coding)
    assert tensors(coded, target, outtype="f32") == tensors(plain, target, outtype="f32")
    assert {kind for kind, _ in tensors(coded, target).values()} == {"BF16", "F32", "I64"}


def test_a_plain_draft_with_its_targets_quantization_config_is_plain(tmp_path: Path, target: Path) -> None:
    spec = DraftSpec(config={"quantization_config": {"quant_method": "gptq", "bits": 4}})
    expected = tensors(make_draft(tmp_path / "a", DraftSpec()), target)
    assert tensors(make_draft(tmp_path / "b", spec), target) == expected


UP = "midlayer.mlp.up_proj.weight"
FAULTS: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "no scales": ("FP8, a scale per row", lambda t: t.pop(UP + "_scale"), "no scales"),
    "scales of another shape": (
        "FP8, a scale per row", lambda t: t.update({UP + "_scale": torch.ones(3, 1)}), "scales have shape"
    ),
    "too few blocks": (
        "FP8, blocks (transformers)", lambda t: t.update({UP + "_scale_inv": torch.ones(3, 2)}), "expected"
    ),
    "no shape": ("W4, groups", lambda t: t.pop(UP + "_shape"), "has no shape"),
    "wrong shape": ("W4, groups", lambda t: t.update({UP + "_shape": torch.tensor([99, 64])}), "99 x 64"),
    "too few words": (
        "W4, groups", lambda t: t.update({UP + "_packed": t[UP + "_packed"][:, 1:].contiguous()}), "words"
    ),
    "words as floats": ("W4, groups", lambda t: t.update({UP + "_packed": t[UP + "_packed"].float()}), "dtype F32"),
    "groups that do not exist": (
        "W4, columns out of order", lambda t: t.update({UP + "_g_idx": torch.full((64,), 9).int()}), "groups"
    ),
    "zero points of another shape": (
        "W4, groups with zero points", lambda t: t.update({UP + "_zero_point": t[UP + "_zero_point"][1:].contiguous()}),
        "zero points",
    ),
    "scales that are no numbers": (
        "W4, groups", lambda t: t.update({UP + "_scale": torch.full((100, 2), float("nan"))}), "infinities or NaNs"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_codes_are_refused(fault: str, tmp_path: Path, target: Path) -> None:
    coding, change, message = FAULTS[fault]
    coded, _ = make_pair(tmp_path, coding)
    stored = load_file(coded / "model.safetensors")
    change(stored)
    save_file(stored, coded / "model.safetensors")
    with pytest.raises(EagleError, match=message) as caught:
        tensors(coded, target)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.gguf").exists()


def test_other_codes_are_refused_by_name(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES["specforge"])
    stored = load_file(folder / "model.safetensors")
    stored["midlayer.mlp.up_proj.weight_global_scale"] = torch.ones(1)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ConversionError, match="format that is not read"):
        tensors(folder, target)


def test_a_stored_input_norm_without_its_flag_is_reported(tmp_path: Path, target: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(dtype="float32"))
    stored = load_file(folder / "model.safetensors") | {"input_norm.weight": torch.ones(192)}
    save_file(stored, folder / "model.safetensors")
    report = convert_draft(folder, target, tmp_path / "out.gguf")
    assert report.settings["norm_before_fc"] is True
    assert any("norm_before_fc is assumed true" in warning for warning in report.warnings)


@pytest.mark.parametrize("scale", [(2, 0), (0, 8), (3, 8), (2, 8, 1)])
def test_words_of_no_shape_are_refused(scale: tuple[int, ...]) -> None:
    assert words_shape((8, 8), {"zero": (2, 1), "scale": (2, 8)}) == (8, 64)
    with pytest.raises(ConversionError, match="are not GPTQ's"):
        words_shape((8, 8), {"zero": (2, 1), "scale": scale})
