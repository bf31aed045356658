"""Adapters that peft wrote: as a GGUF adapter, or merged, they give peft's logits. What neither holds is refused.

Needs the group `integrations`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.adapters import Merge, convert_adapter, read_adapter
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import ConversionError
from llama_eagle.sessions.models import load_adapter, set_adapter
from llama_eagle.sessions.options import Lora
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.native]

FAMILIES = ("llama3", "qwen3", "qwen3moe", "qwen35-text", "qwen35moe")
TOKENS = np.random.default_rng(2).integers(0, 480, 40).tolist()
TOLERANCE = 4e-3
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
PLAIN: dict[str, dict[str, Any]] = {  # what a GGUF adapter holds
    "plain": {},
    "rank-stabilized": {"use_rslora": True},
    "alphas": {"alpha_pattern": {"q_proj": 3, "layers.1.mlp.down_proj": 40, "v_proj": 0}},
    "ranks": {"rank_pattern": {"k_proj": 2, r"model\.layers\.0\.self_attn\.o_proj": 6}},
    "both, rank-stabilized": {"rank_pattern": {"v_proj": 3}, "alpha_pattern": {"k_proj": 5}, "use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
    "embeddings": {"target_modules": [*ATTENTION, "embed_tokens"]},
    "head": {"target_modules": [*ATTENTION, "lm_head"]},
    "some layers": {"layers_to_transform": [1]},
}
NOT_EXPERTS = ("orthogonal", "mica", "DoRA")  # kinds that peft does not have for parameters of experts
MERGED: dict[str, dict[str, Any]] = {  # what `--merge` reads in addition
    "DoRA": {"use_dora": True},
    "B biases": {"lora_bias": True},
    "trained head and norms": {"modules_to_save": ["lm_head", "input_layernorm", "q_norm"]},
    "trained embeddings": {"modules_to_save": ["embed_tokens"]},
}


@cache
def base(family: str, folder: Path, **more: Any) -> Path:
    return make_target(
        family, folder / f"{family}{sorted(more.items())}", seed=3, dtype="float32", num_hidden_layers=4, **more
    )


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("bases")
    return lambda family, **more: base(family, folder, **more)


def load_base(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def modules_of(family: str, kind: str = "") -> list[str]:
    linear = ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"] if family.startswith("qwen35") else []
    if kind == "B biases" and family != "llama3":
        return ATTENTION[:3]
    if kind in NOT_EXPERTS and "moe" in family:
        return [*ATTENTION, *linear]
    return [*ATTENTION, "gate_proj", "up_proj", "down_proj", *linear]


def write_lora(source: Path, folder: Path, **settings: Any) -> np.ndarray:
    """Write an adapter with random values, as if it was trained, and return peft's logits with it."""
    from peft import LoraConfig, PeftModel, get_peft_model

    torch.manual_seed(5)
    config = LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 8, **settings})
    model = get_peft_model(load_base(source), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return logits_of(PeftModel.from_pretrained(load_base(source), folder))


def logits_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return np.array(model.eval()(torch.tensor([TOKENS]), use_cache=False).logits[0].float())


def logits_of_gguf(path: Path, lora: Path | None = None, scale: float = 1.0) -> np.ndarray:
    with NativeTarget(path) as target:
        if lora:
            set_adapter(target.ctx, load_adapter(target.model, lora), Lora(lora, scale))
        return np.array(target.decode(TOKENS)[0])


def require_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))


def gguf_of(source: Path) -> Path:
    path = source / "model.gguf"
    if not path.exists():
        convert_target(source, path, TargetOptions(outtype="f32"))
    return path


def check(source: Path, folder: Path, **settings: Any) -> None:
    expected = write_lora(source, folder / "adapter", **settings)
    target = gguf_of(source)
    report = convert_adapter(folder / "adapter", target, folder / "lora.gguf")
    assert report.n_pairs > 0
    require_close(logits_of_gguf(target, folder / "lora.gguf"), expected)
    assert np.abs(logits_of_gguf(target) - expected).max() > 10 * TOLERANCE  # the adapter has an effect


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", PLAIN)
def test_adapters_of_a_gguf(kind: str, family: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    check(bases(family), tmp_path, **{"target_modules": modules_of(family, kind), **PLAIN[kind]})


def check_merged(source: Path, folder: Path, **settings: Any) -> np.ndarray:
    expected = write_lora(source, folder / "adapter", **settings)
    checkpoint = open_checkpoint(source)
    checkpoint.changes = Merge(read_adapter(folder / "adapter", merging=True))
    convert_target(checkpoint, folder / "merged.gguf", TargetOptions(outtype="f32"))
    found = logits_of_gguf(folder / "merged.gguf")
    require_close(found, expected)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", PLAIN | MERGED)
def test_merged(kind: str, family: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    settings = {"target_modules": modules_of(family, kind), **(PLAIN | MERGED)[kind]}
    if kind == "B biases" and family.startswith("qwen35"):
        with pytest.raises(
            ConversionError, match=r"llama\.cpp has no layers\.3\.self_attn\.q_proj\.bias for this model"
        ):
            check_merged(bases(family), tmp_path, **settings)
    else:
        check_merged(bases(family), tmp_path, **settings)


TIED: dict[str, dict[str, Any]] = {
    "head": {"target_modules": ["lm_head"]},
    "embeddings": {"target_modules": ["embed_tokens"]},
    "both": {"target_modules": ["lm_head", "embed_tokens"]},
    "tied pairs": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "trained head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "trained embeddings": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "trained and tied": {
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
}


@pytest.mark.parametrize("family", ["llama3", "qwen35-text"])
@pytest.mark.parametrize("kind", TIED)
def test_tied_models(kind: str, family: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    check_merged(bases(family, tie_word_embeddings=True), tmp_path, **TIED[kind])
