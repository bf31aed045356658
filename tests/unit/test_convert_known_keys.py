"""Keys of a target's config.json: each one of transformers' classes has its place; unknown ones are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.published import CONFIGS
from fixtures.targets import FAMILIES, make_target, target_config
from llama_eagle.convert.settings.known_keys import _REFUSED, _USED, _WITHOUT_EFFECT, check_keys
from llama_eagle.convert.targets import TargetOptions, convert_target, convert_vision
from llama_eagle.errors import ConfigError

PUBLISHED = {  # keys of Llama-3.1, Qwen2.5-1M and their fine-tunes that change nothing here
    "_name_or_path": "x", "torch_dtype": "bfloat16", "use_cache": False, "pretraining_tp": 1, "unsloth_fixed": True,
    "auto_map": {"AutoModel": "m.M"}, "dual_chunk_attention_config": {"chunk_size": 262144}, "temperature": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_attribute_of_a_class_has_its_place(family: str) -> None:
    config = target_config(family).to_dict()
    known = {*_USED.split(), *_WITHOUT_EFFECT.split(), *_REFUSED}
    assert not (config.keys() | config.get("text_config", {}).keys()) - known
    assert check_keys(config, "x") == []


@pytest.mark.parametrize("name", list(CONFIGS))
def test_published_configurations_have_no_unknown_key(name: str) -> None:
    assert check_keys({**CONFIGS[name], **PUBLISHED}, "x") == []


def test_no_key_has_two_places() -> None:
    lists = [*_USED.split(), *_WITHOUT_EFFECT.split(), *_REFUSED]
    assert len(lists) == len(set(lists))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_target("qwen3vl", tmp_path / "folder", num_hidden_layers=2)


def change(folder: Path, part: str, more: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (config[part] if part else config).update(more)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("part", ["", "text_config"])
def test_keys_of_newer_classes(part: str, folder: Path, tmp_path: Path) -> None:
    output, options = tmp_path / "out.gguf", TargetOptions(name="x")
    assert not convert_target(folder, output, options).warnings
    expected = shutil.copy(output, tmp_path / "expected.gguf")
    change(folder, part, {"logit_gain": 2.0, "per_layer_config": {}, "is_new": False})
    (warning,) = convert_target(folder, output, options).warnings
    place = f"{part}." if part else ""
    assert f"config.json: {place}logit_gain: unknown here and ignored" in warning
    assert output.read_bytes() == Path(expected).read_bytes()
    change(folder, part, {"per_layer_config": {"1": {"rms_norm_eps": 0.1}}})
    with pytest.raises(ConfigError, match="per_layer_config: layers with settings of their own"):
        convert_target(folder, tmp_path / "no.gguf", options)
    assert not (tmp_path / "no.gguf").exists()


@pytest.mark.parametrize("rope", [{"rope_theta": 1e6}, {"rope_type": "linear"}, {"partial_rotary_factor": 0.5}])
def test_other_rotations_of_patches(rope: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    change(folder, "vision_config", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}})
    convert_vision(folder, tmp_path / "mm.gguf")
    change(folder, "vision_config", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial", **rope}})
    with pytest.raises(ConfigError, match=next(iter(rope))):
        convert_vision(folder, tmp_path / "no.gguf")
