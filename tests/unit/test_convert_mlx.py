"""Checkpoints in the form of mlx-lm: names, axes, norms that hold their one, and quantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import DraftSpec, make_draft, make_target_gguf
from fixtures.targets import fuse_experts, make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.source.coded import read_scheme
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.errors import ConfigError, ConversionError, EagleError
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]
ROWS, COLUMNS = 16, 384
NAME = "model.layers.0.mlp.up_proj"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
RANDOM = torch.Generator().manual_seed(1)
AFFINE = {"group_size": 64, "bits": 4, "mode": "affine"}


def integers(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=RANDOM)


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """A little-endian stream of bits for each row, slow and plain."""
    numbers = [sum(code << (bits * i) for i, code in enumerate(row)) for row in codes.tolist()]
    raw = b"".join(number.to_bytes(codes.shape[1] * bits // 8, "little") for number in numbers)
    return torch.from_numpy(np.frombuffer(raw, np.uint32).reshape(len(codes), -1).copy())


def affine(bits: int, size: int, dtype: torch.dtype) -> tuple[State, torch.Tensor]:
    """mx.dequantize rounds to the type of the scales after the product and after the sum. Scales may be negative."""
    codes = integers(0, 1 << bits, ROWS, COLUMNS)
    scales, biases = (torch.randn(ROWS, COLUMNS // size, generator=RANDOM).mul(0.1).to(dtype) for _ in range(2))
    each = [part.repeat_interleave(size, 1) for part in (scales, biases)]
    meant = codes.to(dtype) * each[0] + each[1]
    return {"weight": words(codes, bits), "scales": scales, "biases": biases}, meant


def floats(mode: str) -> tuple[State, torch.Tensor]:
    size = 16 if mode == "nvfp4" else 32
    if mode == "mxfp8":
        codes = integers(0, 120, ROWS, COLUMNS).to(torch.uint8)
        stored, values = codes.view(torch.uint32), codes.view(torch.float8_e4m3fn).float()
    else:
        codes = integers(0, 16, ROWS, COLUMNS)
        stored, values = words(codes, 4), E2M1[codes]
    scales = integers(100, 120, ROWS, COLUMNS // size).to(torch.uint8)
    factor = scales.view(torch.float8_e4m3fn).float() if mode == "nvfp4" else 2.0 ** (scales.float() - 127)
    return {"weight": stored, "scales": scales}, values * factor.repeat_interleave(size, 1)


CASES: dict[str, Callable[[], tuple[State, torch.Tensor]]] = {
    **{
        f"{bits} bits, groups of {size}": lambda bits=bits, size=size: affine(bits, size, torch.bfloat16)
        for bits in (1, 2, 3, 4, 5, 6, 8)
        for size in (32, 64, 128)
    },
    "float16": lambda: affine(4, 64, torch.float16),
    "float32": lambda: affine(3, 64, torch.float32),
    **{mode: lambda mode=mode: floats(mode) for mode in ("mxfp4", "nvfp4", "mxfp8")},
}


def weights_of(folder: Path, parts: State, config: dict[str, Any]) -> Weights:
    save_file({f"{NAME}.{part}": tensor.contiguous() for part, tensor in parts.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(folder)
    return Weights(checkpoint, lambda name: name, read_scheme(checkpoint.config))


def f32(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values.astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_values(case: str, tmp_path: Path) -> None:
    parts, meant = CASES[case]()
    weights = weights_of(tmp_path, parts, {})
    assert not weights.fits(f"{NAME}.weight", (ROWS, COLUMNS + 32))
    assert weights.fits(f"{NAME}.weight", (ROWS, COLUMNS))
    pieces = [piece() if callable(piece) else piece for piece in weights.rows(f"{NAME}.weight", 3)]
    for found in (weights.read(f"{NAME}.weight"), np.concatenate(pieces)):
        np.testing.assert_array_equal(f32(found), meant.float().numpy())


@pytest.mark.parametrize("exponents", [(-133, -120), (90, 119)])
def test_values_near_the_limits_of_bf16(exponents: tuple[int, int], tmp_path: Path) -> None:
    parts, _ = affine(8, 64, torch.bfloat16)
    for part in ("scales", "biases"):
        parts[part] = torch.ldexp(parts[part].float(), integers(*exponents, *parts[part].shape)).to(torch.bfloat16)
    codes = parts["weight"].view(torch.uint8).to(torch.bfloat16)
    meant = codes * parts["scales"].repeat_interleave(64, 1) + parts["biases"].repeat_interleave(64, 1)
    weights = weights_of(tmp_path, parts, {})
    assert weights.fits(f"{NAME}.weight", (ROWS, COLUMNS))
    np.testing.assert_array_equal(f32(weights.read(f"{NAME}.weight")), meant.float().numpy())


def test_the_smallest_scales_of_mxfp8(tmp_path: Path) -> None:
    parts, _ = floats("mxfp8")
    parts["scales"].fill_(1)
    meant = parts["weight"].view(torch.float8_e4m3fn).float() * 2.0**-126
    weights = weights_of(tmp_path, parts, {})
    assert weights.fits(f"{NAME}.weight", (ROWS, COLUMNS))
    np.testing.assert_array_equal(f32(weights.read(f"{NAME}.weight")), meant.numpy())


@pytest.mark.parametrize(
    "settings",
    [
        {**AFFINE, "bits": 8},
        {**AFFINE, NAME: {"bits": 8, "group_size": None}},
        {**AFFINE, NAME: {"bits": 8, "group_size": 32, "mode": "affine"}, "lm_head": False},
    ],
)
def test_without_a_table_config_json_has_the_bits(settings: dict[str, Any], tmp_path: Path) -> None:
    parts, meant = affine(8, 32, torch.bfloat16)
    for config in ({"quantization": settings}, {"quantization": settings, "quantization_config": settings}):
        weights = weights_of(tmp_path, parts, config)
        assert weights.shape(f"{NAME}.weight") == (ROWS, COLUMNS)
        np.testing.assert_array_equal(f32(weights.read(f"{NAME}.weight")), meant.float().numpy())


# --- whole models ------------------------------------------------------------------------------------------------


def as_mlx(source: Path, folder: Path, bits: int = 0) -> Path:
    """Write what mlx-lm makes of a checkpoint; with `bits`, its matrices are stored as integers of that width."""
    state: State = {}
    nested = any(key.startswith("model.language_model.") for key in load_file(source / "model.safetensors"))
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.startswith(("mtp.", "model.visual.")):
            continue
        short = name.removeprefix("model.language_model.").removeprefix("model.")
        full = short if short.startswith("lm_head") else f"model.{short}"
        state[f"language_model.{full}" if nested else full] = tensor
    experts: dict[str, list[torch.Tensor]] = {}
    for name in list(state):
        tensor = state[name]
        if name.endswith("conv1d.weight"):
            state[name] = tensor.swapaxes(1, 2).contiguous()
        elif tensor.ndim == 1 and name.endswith("norm.weight") and "linear_attn.norm" not in name:
            is_hybrid = any(".linear_attn." in other for other in state)
            state[name] = tensor + 1 if is_hybrid else tensor
        elif ".mlp.experts." in name:
            prefix, _, rest = name.partition(".mlp.experts.")
            state.pop(name)
            if rest == "gate_up_proj":
                gate, up = tensor.chunk(2, 1)
                state |= {f"{prefix}.mlp.switch_mlp.{kind}_proj.weight": t for kind, t in (("gate", gate), ("up", up))}
            elif rest == "down_proj":
                state[f"{prefix}.mlp.switch_mlp.down_proj.weight"] = tensor
            else:
                experts.setdefault(f"{prefix}.mlp.switch_mlp.{rest.split('.')[1]}.weight", []).append(tensor)
    state |= {name: torch.stack(each) for name, each in experts.items()}
    state = all_quantized(state, bits) if bits else state
    folder.mkdir()
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja"):
            (folder / file.name).write_text(file.read_text())
    save_file({name: t.contiguous() for name, t in state.items()}, folder / "model.safetensors", {"format": "mlx"})
    config = json.loads((source / "config.json").read_text())
    config.pop("vision_config", None)
    if bits:
        config["quantization"] = config["quantization_config"] = {**AFFINE, "bits": bits, "group_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def all_quantized(state: State, bits: int) -> State:
    found: State = {}
    for name, tensor in state.items():
        is_matrix = tensor.ndim > 1 and "conv1d" not in name and tensor.shape[-1] % 32 == 0
        found |= quantized(name.removesuffix(".weight"), tensor, bits) if is_matrix else {name: tensor}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def quantized(module: str, values: torch.Tensor, bits: int) -> State:
    groups = values.float().reshape(-1, 32)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scales = (high - low) / ((1 << bits) - 1)
    codes = ((groups - low) / scales).round().long().reshape(-1, values.shape[-1])
    shape = (*values.shape[:-1], values.shape[-1] // 32)
    packed = words(codes, bits).reshape(*values.shape[:-1], -1)
    return {
        f"{module}.weight": packed, f"{module}.scales": scales.reshape(shape).to(values.dtype),
        f"{module}.biases": low.reshape(shape).to(values.dtype),
    }  # fmt: skip


def converted(folder: Path, **options: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    path = folder.parent / "out.gguf"
    report = convert_target(folder, path, TargetOptions(**{"outtype": "f32", **options}))
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}, report.warnings


FAMILIES = ("qwen35", "qwen35moe", "qwen3next", "qwen3moe", "qwen3vl", "qwen2", "llama3")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    made = {
        family: make_target(
            family, folder / family, seed=3, dtype="float32", mtp=family.startswith(("qwen35", "qwen3next"))
        )
        for family in FAMILIES
    }
    fuse_experts(made["qwen35moe"])
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_those_of_the_original(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    expected, _ = converted(sources[family], mtp=False)
    found, warnings = converted(as_mlx(sources[family], tmp_path / "mlx"))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    said = " ".join(warnings)
    assert ("MTP head" in said) == (family.startswith(("qwen35", "qwen3next")))
    assert ("no vision encoder" in said) == (family in ("qwen35", "qwen35moe", "qwen3vl"))

    near, _ = converted(as_mlx(sources[family], tmp_path / "coded", bits=8))
    for name, values in expected.items():
        assert abs(near[name] - values).max() <= np.ptp(values) / 255, name


def test_an_encoder_that_was_left_out_is_named(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = as_mlx(sources["qwen35"], tmp_path / "mlx")
    with pytest.raises(ConfigError, match=r"no vision encoder.*need the original checkpoint"):
        convert_vision(folder, tmp_path / "mmproj.gguf")
    convert_vision(sources["qwen35"], tmp_path / "mmproj.gguf")


def test_a_draft(tmp_path: Path) -> None:
    """It has no table of shapes in advance: the bits are config.json's."""
    folder, target = make_draft(tmp_path / "draft", DraftSpec()), make_target_gguf(tmp_path / "target.gguf")
    state, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    found: list[dict[str, np.ndarray]] = []
    for stored in (state, all_quantized(state, 8)):
        save_file(stored, folder / "model.safetensors")
        convert_draft(folder, target, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
        found.append({t.name: np.array(t.data) for t in gguf.GGUFReader(tmp_path / "draft.gguf").tensors})
        (folder / "config.json").write_text(json.dumps({**config, "quantization": {**AFFINE, "bits": 8}}))
    plain, coded = found
    assert plain.keys() == coded.keys()
    for name, values in plain.items():
        assert abs(coded[name] - values).max() <= np.ptp(values) / 128, name  # scales are bfloat16


# --- faults ------------------------------------------------------------------------------------------------------

UP = "model.layers.0.mlp.up_proj"
Change = Callable[[State, dict[str, Any]], object]


def name_absent(state: State, config: dict[str, Any]) -> None:
    config["quantization"]["model.layers.77.mlp.up_proj"] = {"bits": 8, "group_size": 64}


def name_plain(state: State, config: dict[str, Any]) -> None:
    config["quantization"]["model.norm"] = {"bits": 8, "group_size": 64}


def cut(part: str, columns: int) -> Change:
    return lambda state, config: state.update({f"{UP}.{part}": state[f"{UP}.{part}"][:, :columns].clone()})


FAULTS: dict[str, tuple[Change, str]] = {
    "no scales": (lambda state, config: state.pop(f"{UP}.scales"), "has no scales"),
    "no biases": (lambda state, config: state.pop(f"{UP}.biases"), "scales and no biases"),
    "codes cut": (cut("weight", 3), "implies"),
    "rows cut": (lambda state, config: state.update({f"{UP}.weight": state[f"{UP}.weight"][:3].clone()}), "implies"),
    "scales cut": (cut("scales", 0), "its scales"),
    "biases cut": (cut("biases", 1), "its biases"),
    "7 bits": (lambda state, config: config["quantization"].update(bits=7), "bits is 7, which is unknown for MLX"),
    "a module that is absent": (name_absent, "layers.77.mlp.up_proj, which is not stored"),
    "a module that is plain": (name_plain, "names model.norm, but its scales are not stored"),
    "GPTQ's codes, too": (lambda state, config: state.update({f"{UP}.qweight": torch.ones(4, 4).int()}), "same tensor"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_checkpoints_are_refused(fault: str, sources: dict[str, Path], tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    folder = as_mlx(sources["llama3"], tmp_path / "mlx", bits=4)
    state, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    config.pop("quantization_config")
    change(state, config)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EagleError, match=message) as caught:
        converted(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert [path.name for path in tmp_path.iterdir()] == ["mlx"]


def test_shapes_decide_against_config_json(sources: dict[str, Path], tmp_path: Path) -> None:
    """As in mlx-lm, for modules that it does not name."""
    folder = as_mlx(sources["llama3"], tmp_path / "mlx", bits=8)
    expected, _ = converted(folder)
    config = json.loads((folder / "config.json").read_text())
    for changed in ({**AFFINE, "bits": 4, "group_size": 64}, None):
        (folder / "config.json").write_text(
            json.dumps({**config, "quantization": changed, "quantization_config": changed})
        )
        found, _ = converted(folder)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("family", ["qwen35", "qwen3next"])
def test_two_producers_in_one_folder_are_refused(family: str, sources: dict[str, Path], tmp_path: Path) -> None:
    folder = as_mlx(sources[family], tmp_path / "mlx")
    state = load_file(folder / "model.safetensors")
    name = next(name for name in state if name.endswith("layers.4.linear_attn.conv1d.weight"))
    save_file({**state, name: state[name].swapaxes(1, 2).contiguous()}, folder / "model.safetensors")
    with pytest.raises(ConversionError, match="weights of two producers are in one folder"):
        converted(folder)


def test_experts_of_another_producer_are_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = as_mlx(sources["qwen3next"], tmp_path / "mlx")
    state = load_file(folder / "model.safetensors")
    save_file(
        {**state, "model.layers.0.mlp.experts.0.up_proj.weight": torch.ones(48, 64)}, folder / "model.safetensors"
    )
    with pytest.raises(ConversionError, match="weights of two producers are in one folder"):
        converted(folder)


def test_a_head_next_to_mlx_weights_needs_a_decision(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = as_mlx(sources["qwen35"], tmp_path / "mlx")
    expected, _ = converted(folder)
    head = {
        name: t for name, t in load_file(sources["qwen35"] / "model.safetensors").items() if name.startswith("mtp.")
    }
    save_file({**load_file(folder / "model.safetensors"), **head}, folder / "model.safetensors")
    with pytest.raises(ConversionError, match="Convert with --no-mtp"):
        converted(folder)
    found, _ = converted(folder, mtp=False)
    assert found.keys() == expected.keys()
