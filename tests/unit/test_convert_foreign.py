"""Checkpoints that are refused by what they are, and heads that are declared and not stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.targets import make_target
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.pooling import pooling_type
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConfigError, ConversionError, EagleError
from safetensors.torch import save_file

LLAMA = {"architectures": ["LlamaForCausalLM"]}
DFLASH = {"architectures": ["DFlashDraftModel"]}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def write(folder: Path, config: dict[str, Any] | None, *names: str, file: str = "model.safetensors") -> Path:
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    save_file({name: torch.ones(2, 2) for name in names or ("x",)}, folder / file)
    return folder


@pytest.mark.parametrize(
    ("config", "names", "told"),
    [
        ({"architectures": ["DominoDraftModel"]}, (), "a Domino draft"),
        ({"dflash_config": {"projector_type": "domino"}}, (), "a Domino draft"),
        (DFLASH, ("prefix_gru.weight_ih_l0",), "a Domino draft"),
        ({"architectures": ["QwenDFlareDraftModel"]}, (), "a DFlare draft"),
        ({"model_arch": "dflare"}, (), "a DFlare draft"),
        (DFLASH, ("layers.0.self_attn.k_proj_target.weight",), "a DFlare draft"),
        ({"architectures": ["Qwen3DFlyModel"]}, (), "a DFly draft"),
        ({"architectures": ["XPressSpeculator"], "speculators_model_type": "xpress"}, (), "an XPress draft"),
        (DFLASH, ("model.refiner_head.down_h.weight",), "an XPress draft"),
        ({"architectures": ["KimiK3DFlashDraftModel"]}, (), "layers of another family"),
        ({"architectures": ["MTPDraftModel"]}, (), "format of speculators"),
        (LLAMA, (f"base_model.model.{Q_PROJ}.lora_A.default.weight",), "Merge it first"),
        (LLAMA, (f"{Q_PROJ}.base_layer.weight",), "an adapter that is not merged"),
    ],
)
def test_refused_by_name(config: dict[str, Any], names: tuple[str, ...], told: str, tmp_path: Path) -> None:
    folder = write(tmp_path, config, *names)
    with pytest.raises(ConversionError, match=told):
        convert_target(folder, tmp_path / "out.gguf")
    with pytest.raises(ConversionError, match=told):
        convert_draft(folder, tmp_path / "target.gguf", tmp_path / "out.gguf")


@pytest.mark.parametrize("config", [None, LLAMA])
def test_a_lora_adapter(config: dict[str, Any] | None, tmp_path: Path) -> None:
    folder = write(tmp_path, config, file="adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises((ConfigError, ConversionError), match=r"a LoRA adapter, not a model\. Merge it"):
        convert_target(folder, tmp_path / "out.gguf", TargetOptions(outtype="f32"))


def test_a_head_that_is_declared_and_not_stored(tmp_path: Path) -> None:
    folder = make_target("qwen35-text", tmp_path, 1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "mtp_num_hidden_layers": 1}))
    report = convert_target(folder, tmp_path / "out.gguf")
    assert "declares an MTP head (mtp_num_hidden_layers), but none is stored" in report.warnings[0]
    assert not convert_target(folder, tmp_path / "out.gguf", TargetOptions(mtp=False)).warnings


POOLED = [{"type": "x.models.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
VECTORS: dict[
    str, tuple[list[Any], dict[str, Any], int | str]
] = {  # modules, settings of the pooling; result, or fault
    "mean": (POOLED, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
    "cls": (POOLED, {"pooling_mode": "cls"}, 2),
    "one of a list": (POOLED, {"pooling_mode": ["lasttoken"]}, 3),
    "normalized": ([*POOLED, {"type": "x.Normalize", "path": "2_Normalize"}], {"pooling_mode": "cls"}, 2),
    "the default": (POOLED, {"word_embedding_dimension": 64}, 1),
    "prompts": (POOLED, {"pooling_mode": "mean", "include_prompt": True}, 1),
    "max": (
        POOLED,
        {"pooling_mode": "max"},
        "pooling 'max' is not supported; llama.cpp has one of mean, cls, lasttoken",
    ),
    "weighted": (POOLED, {"pooling_mode_weightedmean_tokens": True}, "pooling 'weightedmean' is not"),
    "by length": (POOLED, {"pooling_mode_mean_sqrt_len_tokens": True}, "pooling 'mean_sqrt_len_tokens' is not"),
    "two flags": (
        POOLED,
        {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
        "pooling 'cls' with 'max'",
    ),
    "two names": (POOLED, {"pooling_mode": ["mean", "lasttoken"]}, "'mean' with 'lasttoken' is not"),
    "no prompts": (POOLED, {"pooling_mode": "mean", "include_prompt": False}, "include_prompt=false leaves"),
    "dense": ([*POOLED, {"type": "x.Dense", "path": "2_Dense"}], {"pooling_mode": "mean"}, "the module Dense of"),
    "norm": ([*POOLED, {"type": "x.LayerNorm", "path": "2"}], {"pooling_mode": "mean"}, "the module LayerNorm of"),
    "sparse": ([POOLED[0], {"type": "x.SpladePooling", "path": "1_Pooling"}], {}, "the module SpladePooling of"),
    "twice": ([*POOLED, POOLED[1]], {"pooling_mode": "mean"}, "2 pooling modules"),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_pooling_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    """Written, or refused by name: nothing that changes vectors is left out in silence."""
    modules, settings, expected = VECTORS[name]
    write(tmp_path, LLAMA)
    assert pooling_type(open_checkpoint(tmp_path)) is None
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(settings))
    if isinstance(expected, int):
        assert pooling_type(open_checkpoint(tmp_path)) == expected
        (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 512, "do_lower_case": true}')
        expected = "do_lower_case is true"
    with pytest.raises(EagleError, match=re.escape(expected)):
        pooling_type(open_checkpoint(tmp_path))
