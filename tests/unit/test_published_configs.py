"""Configurations of published hybrids: their family, the keys of their GGUF, and values that are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.published import CONFIGS
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.convert.targets.config import ModelConfig
from llama_eagle.convert.targets.conversion import find_conversion
from llama_eagle.errors import ConfigError


def keys(config: dict[str, Any]) -> dict[str, Any]:
    conversion = find_conversion(config, "test")
    model = ModelConfig(config, "test")
    return {"arch": conversion.arch, **conversion.keys(model, conversion.dims(model))}


@pytest.mark.parametrize("name", list(CONFIGS))
def test_published_hybrids(name: str) -> None:
    found = keys(CONFIGS[name])
    expected = {
        "arch": "qwen35", "embedding_length": 5120, "feed_forward_length": 17408, "attention.head_count": 24,
        "attention.head_count_kv": 4, "ssm.time_step_rank": 48, "ssm.inner_size": 48 * 128,
    }  # fmt: skip
    if name.endswith("A3B"):
        expected = {
            "arch": "qwen35moe", "embedding_length": 2048, "expert_count": 256, "expert_used_count": 8,
            "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512, "ssm.inner_size": 32 * 128,
        }  # fmt: skip
    expected |= {"rope.dimension_sections": [11, 11, 10, 0], "rope.dimension_count": 64, "context_length": 262144}
    assert {key: found[key] for key in expected} == expected
    n_layer = CONFIGS[name]["text_config"]["num_hidden_layers"]
    assert found["attention.recurrent_layers"] == [(i + 1) % 4 != 0 for i in range(n_layer)]


@pytest.mark.parametrize(
    ("key", "value"), [("output_gate_type", "sigmoid"), ("attn_output_gate", False), ("rms_norm_eps", 1e-3)]
)
def test_gates_that_llama_cpp_does_not_compute(key: str, value: object) -> None:
    config = copy.deepcopy(CONFIGS["Qwen/Qwen3.8-27B"])
    config["text_config"][key] = value
    with pytest.raises(ConfigError, match=key):
        keys(config)


@pytest.mark.parametrize(("family", "name"), [("qwen35", "Qwen/Qwen3.8-27B"), ("qwen35moe", "Qwen/Qwen3.6-35B-A3B")])
def test_a_small_checkpoint_with_these_keys(family: str, name: str, tmp_path: Path) -> None:
    """Keys that sizes do not need change nothing, and none is missing."""
    folder = make_target(family, tmp_path / "source", mtp=True)
    convert_target(folder, tmp_path / "before.gguf", TargetOptions(name="x"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] = {**CONFIGS[name]["text_config"], **config["text_config"]}
    (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **config}))
    convert_target(folder, tmp_path / "after.gguf", TargetOptions(name="x"))
    assert (tmp_path / "before.gguf").read_bytes() == (tmp_path / "after.gguf").read_bytes()
