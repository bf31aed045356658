"""`check --measure`: damaged weights are named, by type and block; sound weights of every type have no finding."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures.command import llama_eagle
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.gguf import weights
from llama_eagle.gguf.header import read_model
from llama_eagle.gguf.weights import damaged
from llama_eagle.quantize.quantize import QuantizeOptions, quantize

pytestmark = pytest.mark.native

TYPES = ("bf16", "f16", "q8_0", "q5_1", "q4_0", "q4_k_m", "q6_k", "q2_k", "iq4_xs", "iq4_nl", "tq2_0", "mxfp4_moe")
TENSOR = "blk.1.ffn_up.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = make_target("qwen3", tmp_path_factory.mktemp("weights"), hidden_size=256, intermediate_size=512)
    convert_target(folder, folder / "f32.gguf", TargetOptions(outtype="f32"))
    found = {"f32": folder / "f32.gguf"}
    for kind in TYPES:
        found[kind] = folder / f"{kind}.gguf"
        if kind in ("bf16", "f16"):
            convert_target(folder, found[kind], TargetOptions(outtype=kind))
        else:
            quantize(found["f32"], found[kind], kind, QuantizeOptions(threads=1))
    return found


def edited(source: Path, folder: Path, change: Callable[[np.ndarray], None], name: str = TENSOR) -> Path:
    """Return a copy of a model in which `change` has been applied to the bytes of a tensor."""
    path = Path(shutil.copy(source, folder / source.name))
    tensor = next(each for each in gguf.GGUFReader(path, "r+").tensors if each.name == name)
    change(tensor.data.reshape(-1).view(np.uint8))
    return path


def findings(path: Path) -> list[str]:
    return [str(each) for each in damaged(read_model(path)[1])]


def test_progress_is_reported_by_pieces_of_a_tensor(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding of a large vocabulary takes seconds."""
    monkeypatch.setattr(weights, "CHUNK", 1 << 14)
    seen: list[float] = []
    assert not [*damaged(read_model(models["bf16"])[1], seen.append)]
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert max(b - a for a, b in itertools.pairwise(seen)) < 0.05


@pytest.mark.parametrize("kind", ["f32", *TYPES])
def test_sound_weights(kind: str, models: dict[str, Path]) -> None:
    assert findings(models[kind]) == []


@pytest.mark.parametrize("kind", ["f32", *TYPES])
def test_scrambled_weights(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    """Random bytes under a right header: the scales of some blocks are NaN, infinite or absurd."""
    random = np.random.default_rng(5)

    def scramble(data: np.ndarray) -> None:
        data[:] = random.integers(0, 256, data.size)

    (found,) = findings(edited(models[kind], tmp_path, scramble))
    assert found.startswith(f"{TENSOR} (")
    assert "blocks" in found


def test_one_wrong_value(models: dict[str, Path], tmp_path: Path) -> None:
    def write(value: float) -> Callable[[np.ndarray], None]:
        return lambda data: data[400:404].__setitem__(slice(None), np.frombuffer(np.float32(value).tobytes(), np.uint8))

    for value in (np.nan, np.inf, -np.inf):
        assert findings(edited(models["f32"], tmp_path, write(value))) == [
            f"{TENSOR} (F32): NaN or infinities in 1 of 4096 blocks"
        ]
    assert findings(edited(models["f32"], tmp_path, write(3e7))) == [
        f"{TENSOR} (F32): values up to 3e+07 in 1 of 4096 blocks"
    ]
    assert findings(edited(models["f32"], tmp_path, write(30.0))) == []  # an outlier, as trained models have


def test_a_file_that_ends_in_zeros(models: dict[str, Path], tmp_path: Path) -> None:
    """An unfinished download has its whole size."""

    def clear(data: np.ndarray) -> None:
        data[:] = 0

    assert findings(edited(models["q8_0"], tmp_path, clear)) == [f"{TENSOR} (Q8_0): all values are 0"]
    name = "output_norm.weight"
    assert findings(edited(models["q8_0"], tmp_path, clear, name)) == [f"{name} (F32): all values are 0"]
    hybrid = write_target(tmp_path / "hybrid.gguf")
    (tmp_path / "out").mkdir()
    found = findings(edited(hybrid, tmp_path / "out", clear, "blk.0.ssm_dt.bias"))
    assert found and not any("ssm_dt" in each for each in found)  # a bias may be 0; matrices of this model are


def test_the_command(models: dict[str, Path], tmp_path: Path) -> None:
    def spoil(data: np.ndarray) -> None:
        data[:2] = 255  # the first block's scale

    path = edited(models["q4_0"], tmp_path, spoil)
    done = llama_eagle("check", path, "--measure", "--json")
    assert done.code == 5
    assert [each["tensor"] for each in done.json["damaged"]] == [TENSOR]
    assert done.json["measure"] is None
    (problem,) = done.json["problems"]
    assert problem.startswith(f"1 damaged tensor: {TENSOR} (Q4_0): NaN or infinities in 1 of 4096 blocks")
    assert llama_eagle("check", path).code == 0
    sound = llama_eagle("check", models["q4_0"], "--measure", "--json")
    assert sound.code == 0
    assert (sound.json["damaged"], sound.json["price"]) == ([], None)  # nothing drafts
