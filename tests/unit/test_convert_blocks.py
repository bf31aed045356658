"""Weights of bitsandbytes, optimum-quanto and transformers' Metal: formulas from their sources, and damaged parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import EagleError
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Case = tuple[Tensors, torch.Tensor]  # stored by the end of its name instead of ".weight", meaning
RANDOM = torch.Generator().manual_seed(1)
UP = "model.layers.0.mlp.up_proj"
ROWS, COLUMNS = 96, 64


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=RANDOM)


def floats(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=RANDOM) * 0.1 + 0.01


def four_bits(*, nested: bool = False, size: int = 64, storage: torch.dtype = torch.uint8) -> Case:
    """bitsandbytes: the first of two codes is in the upper half of a byte; blocks run through the flat matrix."""
    codes, table = integers(16, ROWS * COLUMNS), torch.randn(16, generator=RANDOM)
    n_blocks = -(-codes.numel() // size)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": size, "dtype": "bfloat16", "shape": [ROWS, COLUMNS]}
    scales = floats(n_blocks)
    parts = {".weight.absmax": scales}
    if nested:
        coded, values, factors = (
            integers(256, n_blocks),
            torch.rand(256, generator=RANDOM) - 0.5,
            floats(-(-n_blocks // 16)),
        )
        state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.0625}
        scales = values[coded] * factors.repeat_interleave(16)[:n_blocks] + 0.0625
        parts = {".weight.absmax": coded.to(torch.uint8), ".weight.nested_absmax": factors}
        parts[".weight.nested_quant_map"] = values
    raw = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    packed = (codes[::2] << 4 | codes[1::2]).to(torch.uint8).view(storage).reshape(-1, 1)
    stored = {".weight": packed, ".weight.quant_map": table, ".weight.quant_state.bitsandbytes__nf4": raw, **parts}
    return stored, (table[codes] * scales.repeat_interleave(size)[: codes.numel()]).reshape(ROWS, COLUMNS)


def eight_bits() -> Case:
    codes, scales = (integers(255, ROWS, COLUMNS) - 127).to(torch.int8), floats(ROWS) * 100
    stored = {".weight": codes, ".SCB": scales, ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, codes.float() * scales[:, None] * torch.tensor(1 / 127)


def quanto_bytes(dtype: torch.dtype) -> Case:
    codes = (floats(ROWS, COLUMNS) * 100).to(torch.float8_e4m3fn)
    scale = floats(ROWS, 1).to(dtype)
    return {".weight._data": codes, ".weight._scale": scale, **UNITS}, scale * codes.to(dtype)


UNITS = {".input_scale": torch.ones(()), ".output_scale": torch.ones(())}


def quanto_bits(bits: int, dtype: torch.dtype, *, zero_points: bool = False) -> Case:
    """Rows of the grouped matrix: the lowest bits of all bytes, then the next. Each operation rounds."""
    codes, per_byte = integers(1 << bits, ROWS * 2, COLUMNS // 2), 8 // bits
    packed = sum(part << bits * i for i, part in enumerate(codes.chunk(per_byte)))
    scale, shift = floats(ROWS * 2, 1).to(dtype), floats(ROWS * 2, 1).to(dtype)
    meant = scale * codes.to(dtype) - shift
    if zero_points:
        shift = integers(7, ROWS * 2, 1).to(torch.int8)
        meant = scale * (codes.to(torch.int8) - shift)
    stored = {".weight._data._data": packed.to(torch.uint8), ".weight._scale": scale, ".weight._shift": shift, **UNITS}
    return stored, meant.reshape(ROWS, COLUMNS)


def metal() -> Case:
    """MLX's words; transformers rounds once, to the type of the scales."""
    codes, (scale, bias) = integers(16, ROWS, COLUMNS), floats(2, ROWS, 2).bfloat16()
    words = sum(codes[:, i::8] << 4 * i for i in range(8)).to(torch.uint32)
    each = [part.float().repeat_interleave(32, 1) for part in (scale, bias)]
    return {".weight": words, ".scales": scale, ".qbiases": bias}, (codes * each[0] + each[1]).bfloat16()


BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}
METAL = {"quant_method": "metal", "bits": 4, "group_size": 32}
CASES: dict[str, tuple[Callable[[], Case], dict[str, Any] | None]] = {
    "4 bits": (four_bits, BITSANDBYTES),
    "4 bits, blocks across rows": (lambda: four_bits(size=128), BITSANDBYTES),
    "4 bits, a cut block": (lambda: four_bits(size=4096), BITSANDBYTES),
    "4 bits, quantized scales": (lambda: four_bits(nested=True), BITSANDBYTES),
    "4 bits in bfloat16": (lambda: four_bits(storage=torch.bfloat16), BITSANDBYTES),
    "4 bits in float32": (lambda: four_bits(storage=torch.float32), BITSANDBYTES),
    "8 bits": (eight_bits, BITSANDBYTES),
    "Metal": (metal, METAL),
    "Quanto FP8": (lambda: quanto_bytes(torch.float32), None),
    "Quanto FP8, bfloat16": (lambda: quanto_bytes(torch.bfloat16), None),
    **{
        f"Quanto {bits} bits, {str(dtype)[6:]}": (lambda bits=bits, dtype=dtype: quanto_bits(bits, dtype), None)
        for bits in (2, 4)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    },
    "Quanto 4 bits, zero points": (lambda: quanto_bits(4, torch.float32, zero_points=True), None),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target("llama3", tmp_path_factory.mktemp("plain"), num_hidden_layers=1)


def write(plain: Path, folder: Path, stored: Tensors, config: dict[str, Any] | None, qmap: Any = None) -> Path:
    """Write a copy of a model whose first up_proj is stored otherwise."""
    folder.mkdir()
    for file in plain.iterdir():
        if file.suffix in (".json", ".jinja"):
            (folder / file.name).write_text(file.read_text())
    state = load_file(plain / "model.safetensors")
    del state[f"{UP}.weight"]
    state |= {UP + end: tensor.contiguous() for end, tensor in stored.items()}
    save_file(state, folder / "model.safetensors")
    settings = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **({"quantization_config": config} if config else {})}))
    if qmap is not None:
        (folder / "quanto_qmap.json").write_text(json.dumps(qmap))
    return folder


def converted(folder: Path) -> np.ndarray:
    path = folder.parent / "out.gguf"
    convert_target(folder, path, TargetOptions(outtype="f32"))
    return next(
        np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.ffn_up.weight"
    )


@pytest.mark.parametrize("case", CASES)
def test_values(case: str, plain: Path, tmp_path: Path) -> None:
    make, config = CASES[case]
    stored, meant = make()
    qmap = {UP: {"weights": "qint4", "activations": "none"}} if config is None else None
    found = converted(write(plain, tmp_path / "coded", stored, config, qmap))
    np.testing.assert_array_equal(found, meant.float().numpy())


def bad_state(text: bytes) -> Callable[[Tensors], object]:
    raw = torch.tensor(list(text), dtype=torch.uint8)
    return lambda stored: stored.update({".weight.quant_state.bitsandbytes__nf4": raw})


def cut(end: str) -> Callable[[Tensors], object]:
    return lambda stored: stored.update({end: stored[end][:-1]})


FAULTS: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "codes cut": ("4 bits", cut(".weight"), "3071 bytes, 96 scales"),
    "no scales": ("4 bits", lambda stored: stored.pop(".weight.absmax"), "has no scales"),
    "scales cut": ("4 bits", cut(".weight.absmax"), "do not fit"),
    "no table": ("4 bits", lambda stored: stored.pop(".weight.quant_map"), "has no table"),
    "no state": ("4 bits", lambda stored: stored.pop(".weight.quant_state.bitsandbytes__nf4"), "has no state"),
    "state cut": ("4 bits", cut(".weight.quant_state.bitsandbytes__nf4"), "quant_state is not"),
    "another state": ("4 bits", bad_state(b'{"quant_type": "nf4"}'), "quant_state is not"),
    "blocks of none": ("4 bits", bad_state(b'{"quant_type": "nf4", "blocksize": 0, "shape": [96, 64]}'), "quant_state"),
    "another shape": ("4 bits", bad_state(b'{"quant_type": "nf4", "blocksize": 64, "shape": [64, 96]}'), "implies"),
    "no scales of scales": (
        "4 bits, quantized scales", lambda stored: stored.pop(".weight.nested_absmax"), "nested_absmax"
    ),
    "scales of scales cut": ("4 bits, quantized scales", cut(".weight.nested_absmax"), "5 scales of scales"),
    "no rows' scales": ("8 bits", lambda stored: stored.pop(".SCB"), "has no scales"),
    "rows' scales cut": ("8 bits", cut(".SCB"), "one for each of its rows"),
    "another layout": ("8 bits", lambda stored: stored[".weight_format"].add_(2), "weight_format is not"),
    "no Metal biases": ("Metal", lambda stored: stored.pop(".qbiases"), "scales and no biases"),
    "Quanto's codes cut": ("Quanto 4 bits, float32", cut(".weight._data._data"), "implies"),
    "Quanto's scales cut": ("Quanto 4 bits, float32", cut(".weight._scale"), "do not fit"),
    "no Quanto scales": ("Quanto 2 bits, float32", lambda stored: stored.pop(".weight._scale"), "has no scales"),
    "no Quanto shifts": ("Quanto 2 bits, float32", lambda stored: stored.pop(".weight._shift"), "has no shift"),
    "Quanto's rows cut": ("Quanto FP8", cut(".weight._scale"), "one for each of its rows"),
}  # fmt: skip


def require_refusal(folder: Path, message: str) -> None:
    with pytest.raises(EagleError, match=message) as caught:
        converted(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_parts_are_refused(fault: str, plain: Path, tmp_path: Path) -> None:
    case, change, message = FAULTS[fault]
    make, config = CASES[case]
    stored, _ = make()
    change(stored)
    require_refusal(write(plain, tmp_path / "coded", stored, config), message)


def test_a_map_that_names_absent_modules_is_refused(plain: Path, tmp_path: Path) -> None:
    stored, _ = quanto_bits(4, torch.float32)
    qmap = {"model.layers.9.mlp.up_proj": {"weights": "qint4", "activations": "none"}}
    folder = write(plain, tmp_path / "coded", stored, None, qmap)
    require_refusal(folder, r"quanto_qmap.json names model.layers.9.mlp.up_proj, which is not stored")


def test_an_automatic_type_is_that_of_the_model(plain: Path, tmp_path: Path) -> None:
    """Most matrices of these models are quantized, so their type counts, not that of codes or of other scales."""
    for number, (case, dtype) in enumerate((("4 bits in float32", "bfloat16"), ("4 bits", "float16"))):
        stored, _ = CASES[case][0]()
        folder = write(plain, tmp_path / str(number), stored, BITSANDBYTES)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
        state = load_file(folder / "model.safetensors")
        small = {name: t for name, t in state.items() if t.ndim < 2 or UP in name}
        big = {name: t.to(getattr(torch, dtype)) for name, t in state.items() if name not in small}
        save_file({**small, **big}, folder / "model.safetensors")
        assert convert_target(folder, tmp_path / "auto.gguf").outtype == {"bfloat16": "bf16", "float16": "f16"}[dtype]
