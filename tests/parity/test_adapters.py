"""Adapters that peft wrote: as a GGUF adapter, or merged, they give peft's logits. What neither holds is refused.

Needs the group `integrations`.
"""

from __future__ import annotations

import shutil
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
from llama_eagle.errors import ConversionError, EagleError
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


# --- types that a GGUF adapter cannot hold, and their remedy -----------------------------------------------------

TARGETED = {"target_modules": ["q_proj", "v_proj"]}
TYPES: dict[str, dict[str, Any]] = {  # with the settings that they need; peft merges them
    "ADALORA": {**TARGETED, "total_step": 10}, "BOFT": {**TARGETED, "boft_block_size": 8},
    "C3A": {**TARGETED, "block_size": 16}, "DEFT": TARGETED, "DELORA": TARGETED, "FOURIERFT": TARGETED,
    "FROD": TARGETED, "GLORA": TARGETED, "GRALORA": TARGETED, "HIRA": TARGETED, "HRA": {**TARGETED, "r": 4},
    "IA3": {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LN_TUNING": {"target_modules": ["input_layernorm"]}, "LOHA": TARGETED, "LOKR": TARGETED, "MISS": TARGETED,
    "OFT": {**TARGETED, "oft_block_size": 8}, "OSF": TARGETED, "PEANUT": TARGETED, "PSOFT": TARGETED,
    "PVERA": TARGETED, "RANDLORA": {**TARGETED, "r": 4}, "ROAD": {**TARGETED, "group_size": 16},
    "SHIRA": {**TARGETED, "r": 2}, "SUPERTUNING": TARGETED, "TINYLORA": TARGETED,
    "TRAINABLE_TOKENS": {"target_modules": ["embed_tokens"], "token_indices": [5, 80, 9]}, "UNILORA": TARGETED,
    "VBLORA": {**TARGETED, "num_vectors": 8, "vector_length": 16}, "VERA": TARGETED,
    "WAVEFT": {**TARGETED, "n_frequency": 64},
}  # fmt: skip
CHANGED: dict[str, dict[str, Any]] = {  # LoRA of a changed base, which peft changes again when it loads the adapter
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "trained tokens": {"trainable_token_indices": [5, 80, 9]},
}
NEVER_MERGED: dict[str, dict[str, Any]] = {
    "PROMPT_TUNING": {"num_virtual_tokens": 4}, "P_TUNING": {"num_virtual_tokens": 4, "encoder_hidden_size": 16},
    "PREFIX_TUNING": {"num_virtual_tokens": 4}, "CARTRIDGE": {"num_virtual_tokens": 4}, "LILY": TARGETED,
    "BEFT": TARGETED, "CPT": {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 1]},
}  # fmt: skip


def write_type(source: Path, folder: Path, kind: str, **settings: Any) -> np.ndarray:
    """Write an adapter of any type, as `write_lora` does."""
    from peft import PeftModel, get_peft_config, get_peft_model

    torch.manual_seed(5)
    model = get_peft_model(
        load_base(source), get_peft_config({"peft_type": kind, "task_type": "CAUSAL_LM", **settings})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return logits_of(PeftModel.from_pretrained(load_base(source), folder))


def refusal(source: Path, folder: Path) -> str:
    with pytest.raises(EagleError) as caught:
        convert_adapter(folder / "adapter", gguf_of(source), folder / "lora.gguf")
    assert caught.value.exit_code == 3 and not (folder / "lora.gguf").exists()
    return str(caught.value)


def merge_by_peft(source: Path, folder: Path) -> Path:
    """Follow the remedy."""
    from peft import PeftModel

    out = folder / "OUT"
    PeftModel.from_pretrained(load_base(source), folder / "adapter").merge_and_unload().save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, out)
    return out


@pytest.mark.parametrize("kind", TYPES)
def test_types_that_peft_merges(kind: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    source = bases("llama3")
    expected = write_type(source, tmp_path / "adapter", kind, **TYPES[kind])
    assert f"a PEFT adapter ({kind})" in (message := refusal(source, tmp_path)) and "save_pretrained('OUT')" in message
    require_close(logits_of_gguf(gguf_of(merge_by_peft(source, tmp_path))), expected)


@pytest.mark.parametrize("kind", CHANGED)
def test_settings_that_peft_merges(kind: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    source = bases("llama3")
    expected = write_lora(source, tmp_path / "adapter", **TARGETED, **CHANGED[kind])
    assert "save_pretrained('OUT')" in refusal(source, tmp_path)
    require_close(logits_of_gguf(gguf_of(merge_by_peft(source, tmp_path))), expected)


@pytest.mark.parametrize("kind", ["pissa", "olora"])
def test_an_adapter_that_was_saved_as_a_plain_one(kind: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    """The remedy of CorDA and LoRA-GA: the update is then of the unchanged base."""
    from peft import LoraConfig, PeftModel, get_peft_model

    source, initial = bases("llama3"), tmp_path / "initial"
    torch.manual_seed(5)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, init_lora_weights=kind, **TARGETED)
    model = get_peft_model(load_base(source), config)
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(initial)
    model.peft_config["default"].init_lora_weights = kind
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    expected = logits_of(model)
    model.save_pretrained(tmp_path / "adapter", path_initial_model_for_weight_conversion=str(initial))
    convert_adapter(tmp_path / "adapter", gguf_of(source), tmp_path / "lora.gguf")
    require_close(logits_of_gguf(gguf_of(source), tmp_path / "lora.gguf"), expected)
    require_close(logits_of(PeftModel.from_pretrained(load_base(source), tmp_path / "adapter")), expected)


@pytest.mark.parametrize("kind", NEVER_MERGED)
def test_types_that_nothing_merges(kind: str, bases: Callable[..., Path], tmp_path: Path) -> None:
    write_type(bases("llama3"), tmp_path / "adapter", kind, **NEVER_MERGED[kind])
    message = refusal(bases("llama3"), tmp_path)
    assert f"a PEFT adapter ({kind})" in message and message.endswith("convert the base model alone.")


def test_experts_by_the_names_of_parameters(bases: Callable[..., Path], tmp_path: Path) -> None:
    """Two parameters of one module, and the router."""
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]
    for family in ("qwen3moe", "qwen35moe"):
        (tmp_path / family).mkdir()
        check(bases(family), tmp_path / family, target_modules=[], target_parameters=parameters, use_rslora=True,
              alpha_pattern={"down_proj": 3})  # fmt: skip
