"""Drafts handed over to other engines: nothing changes on the way there and back, and what cannot go is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import CASES, LLAMA3, N_LAYER, YARN, DraftSpec, make_draft, make_target_gguf
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.export import ENGINES, export_draft
from llama_eagle.errors import ConversionError, UsageError
from llama_eagle.gguf.header import read_model
from safetensors.torch import load_file

SPECULATORS = CASES["speculators"]
# Why an engine refuses a case: a part of its message.
REFUSED = {
    "vllm": {"biases": "a bias of fc", "everything": "a bias of fc"},
    "speculators": {
        "biases": "a bias of fc",
        "everything": "hidden size 96 with a target of 64",
        "safeailab-h-differs": "hidden size 32 with a target of 64",
    },
    "sglang": {
        "speculators": "norm_before_residual",
        "speculators-norm-before-fc": "norm_before_residual",
        "speculators-fc-norm": "norm_before_residual",
        "speculators-qwen3": "q and k norms",
        "deepspec": "q and k norms",
        "speculators-llama3": "norm_before_residual",
        "speculators-two-layers": "2 layers",
        "speculators-four-features": "boundary 0",
        "speculators-window": "a sliding window",
        "specforge-windows": "a sliding window",
        "qwen3-style": "q and k norms",
        "rope-mrope-interleaved": "q and k norms",
        "biases": "attention biases",
        "everything": "norm_before_residual",
        "f32": "norm_before_residual",
    },
}
OF_THE_TOOL = ("general.", "llama_eagle.", "eagle3.producer", "eagle3.target_layers_source")


def facts(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Keys and tensors of a GGUF, but for those that say where it came from."""
    header = read_model(path)[0]
    keys = {name: header.value(name) for name in header.keys if not name.startswith(OF_THE_TOOL)}
    raw = path.read_bytes()
    begin = header.data_offset
    tensors = {n: raw[begin + t.offset : begin + t.offset + t.n_bytes] for n, t in header.tensors.items()}
    return keys, tensors


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def options_of(spec: DraftSpec) -> DraftOptions:
    return DraftOptions(norm_before_residual=False) if spec.producer == "speculators-old" else DraftOptions()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_there_and_back_is_bit_equal(name: str, engine: str, target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES[name])
    before = convert_draft(folder, target, tmp_path / "before.gguf")
    if reason := REFUSED[engine].get(name):
        with pytest.raises(ConversionError, match=reason):
            export_draft(folder, target, tmp_path / "out", engine)
        assert not (tmp_path / "out").exists()
        return
    export_draft(folder, target, tmp_path / "out", engine)
    override = DraftOptions(aux_layers=tuple(before.layer_ids)) if engine == "sglang" else None
    convert_draft(tmp_path / "out", target, tmp_path / "after.gguf", override)
    assert facts(tmp_path / "after.gguf") == facts(tmp_path / "before.gguf")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gguf_gives_the_checkpoint_back(dtype: str, engine: str, target: Path, tmp_path: Path) -> None:
    spec = DraftSpec(dtype=dtype, ids_nested=(1, 3, 4), embedding=True, head_dim=32, fc_norm=True, norm_output=True)
    folder = make_draft(tmp_path / "draft", spec)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "trained_length": 96}))
    convert_draft(folder, target, tmp_path / "draft.gguf")
    export_draft(tmp_path / "draft.gguf", target, tmp_path / "of_gguf", engine)
    export_draft(folder, target, tmp_path / "of_folder", engine)
    found, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("of_gguf", "of_folder"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("of_gguf", "of_folder")]
    assert configs[0] == configs[1] and configs[0]["trained_length"] == 96
    stored = {n.replace("midlayer.", "layers.0."): t for n, t in load_file(folder / "model.safetensors").items()}
    for name, tensor in stored.items():
        assert torch.equal(found[name.replace("layers.0.", "midlayer.") if engine == "sglang" else name], tensor), name


@pytest.mark.parametrize("rope", [YARN, {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}], ids=["yarn", "mscale"])
def test_rotation_survives_a_gguf(rope: dict[str, Any], target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", replace(SPECULATORS, rope=rope))
    convert_draft(folder, target, tmp_path / "before.gguf")
    export_draft(tmp_path / "before.gguf", target, tmp_path / "out", "vllm")
    convert_draft(tmp_path / "out", target, tmp_path / "after.gguf")
    (keys, tensors), (expected_keys, expected_tensors) = (facts(tmp_path / f"{n}.gguf") for n in ("after", "before"))
    assert tensors == expected_tensors
    assert keys.keys() == expected_keys.keys()
    for name, value in expected_keys.items():
        assert keys[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name


def test_layer_ids_are_in_the_engines_convention(target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", DraftSpec(ids_nested=(1, 3, 4)))
    for engine in ENGINES:
        export_draft(folder, target, tmp_path / engine, engine)
    vllm, sglang, speculators = (json.loads((tmp_path / e / "config.json").read_text()) for e in ENGINES)
    assert vllm["eagle_aux_hidden_state_layer_ids"] == speculators["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert sglang["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert sglang["architectures"] == ["LlamaForCausalLMEagle3"]
    assert vllm["dtype"] == sglang["dtype"] == "bfloat16"


def test_maps_of_the_vocabulary(target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", CASES["modelopt"])  # unsorted, without t2d
    export_draft(folder, target, tmp_path / "out", "vllm")
    tensors = load_file(tmp_path / "out/model.safetensors")
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert torch.equal(
        ids, torch.tensor(np.asarray(load_file(folder / "model.safetensors")["d2t"])) + torch.arange(160)
    )
    assert set(tensors["t2d"].nonzero().flatten().tolist()) == set(ids.tolist())


def test_last_boundary_is_not_for_sglang(target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", replace(SPECULATORS, norm_before_residual=False, ids_top=(2, 4, N_LAYER)))
    with pytest.raises(ConversionError, match=f"boundary {N_LAYER}"):
        export_draft(folder, target, tmp_path / "out", "sglang", DraftOptions(force=True))


def test_what_a_gguf_cannot_give_back(target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", replace(SPECULATORS, rope=LLAMA3))
    convert_draft(folder, target, tmp_path / "factors.gguf")
    with pytest.raises(ConversionError, match=r"rope_freqs\.weight"):
        export_draft(tmp_path / "factors.gguf", target, tmp_path / "out", "vllm")
    convert_draft(
        make_draft(tmp_path / "plain", SPECULATORS), target, tmp_path / "q8.gguf", DraftOptions(outtype="q8_0")
    )
    with pytest.raises(ConversionError, match="Q8_0"):
        export_draft(tmp_path / "q8.gguf", target, tmp_path / "out", "vllm")
    with pytest.raises(ConversionError, match="not an EAGLE-3 draft"):
        export_draft(target, target, tmp_path / "out", "vllm")
    assert not (tmp_path / "out").exists()


def test_an_output_that_exists_is_kept(target: Path, tmp_path: Path) -> None:
    folder = make_draft(tmp_path / "draft", SPECULATORS)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match="exists"):
        export_draft(folder, target, folder, "vllm")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(UsageError, match="choose one of"):
        export_draft(folder, target, tmp_path / "out", "llama")
    with pytest.raises(UsageError, match="the home folder is unknown"):
        export_draft(folder, "~nobody-of-this-name/target.gguf", tmp_path / "out", "vllm")
