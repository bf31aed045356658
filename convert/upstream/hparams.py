"""config.json for llama.cpp's converter: as it is stored, with the defaults of its class in transformers beneath.

The converter was written for transformers 4, whose `to_dict` kept every stored key. Version 5 renames, removes and adds
keys, and saves checkpoints without some that published ones have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

Config = dict[str, Any]

PUBLISHED_NAMES = {  # classes that transformers renamed
    "Ernie4_5ForCausalLM": "Ernie4_5_ForCausalLM",
    "PhimoeForCausalLM": "PhiMoEForCausalLM",
}
OTHER_ENCODERS = ("internvl",)  # forms of transformers, whose tensors the converter leaves out
_TEXT_PARTS = ("text_config", "llm_config", "lm_config", "language_config", "lfm")  # names of the text model's part


def text_part(config: Config) -> Config:
    """Return the part of config.json that describes the text model; {} if it has none."""
    thinker = config.get("thinker_config")
    parts = thinker if isinstance(thinker, dict) else config
    return next((parts[name] for name in _TEXT_PARTS if isinstance(parts.get(name), dict)), {})


def stated_classes(*parts: Any) -> list[str]:
    """Return the class that each part names, under its published name."""
    stated = [part.get("architectures") for part in parts if isinstance(part, dict)]
    names = [each[0] for each in stated if isinstance(each, list) and each and isinstance(each[0], str)]
    return [PUBLISHED_NAMES.get(name, name) for name in names]


def known_class(config: Config, known: Collection[str], *, encoder: bool = False) -> str | None:
    """Return the first class of a checkpoint that the converter knows: of the text model or of the encoder."""
    if encoder and config.get("model_type") in OTHER_ENCODERS:
        return None
    text = text_part(config)
    names = stated_classes(config.get("vision_config") if encoder else text, config)
    if not encoder and text and not any(name in known for name in names):
        names += _class_of_type(text.get("model_type"))
    return next((name for name in names if name in known), None)


def _class_of_type(model_type: Any) -> list[str]:
    """Return transformers' class of a text model, which the configurations of models with encoders often leave out."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES
    except ImportError:
        return []
    found = NAMES.get(model_type) if isinstance(model_type, str) else None
    return [found] if isinstance(found, str) else []


def state_class(config: Config, known: Collection[str], *, encoder: bool) -> None:
    """Name the class in the part where the converter looks for it first."""
    name, part = (
        known_class(config, known, encoder=encoder),
        config.get("vision_config") if encoder else text_part(config),
    )
    if name:
        (part if isinstance(part, dict) and part else config)["architectures"] = [name]


def overlay(defaults: Config, stored: Config) -> Config:
    """Return the stored values, and those of the class for keys that are not stored.

    transformers 5 collects RoPE's settings in `rope_parameters`, whose complete form is that of the class.
    """
    merged = {**defaults, **stored}
    for key, value in stored.items():
        known = defaults.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            merged[key] = {**value, **known} if key == "rope_parameters" else overlay(known, value)
    return merged


def complete(config: Config, stored: Config) -> Config:
    """Return a configuration with the keys that its class of the converter reads. stored: config.json itself."""
    if names := stated_classes(config):
        config["architectures"] = names
    for rule in _RULES.get(_class(config), ()):
        rule(config, stored)
    return config


def _class(config: Config) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _sigmoid(config: Config, stored: Config) -> None:
    """State sigmoids, by which transformers always routes in these classes; it saves no key for it."""
    config.setdefault("scoring_func", "sigmoid")


def _rotated_part(config: Config, stored: Config) -> None:
    rope = config.get("rope_parameters") or {}
    config.setdefault("rotary_pct", rope.get("partial_rotary_factor", 1.0))


def _head_dim(config: Config, stored: Config) -> None:
    if not config.get("head_dim"):
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]


def _layer_types(config: Config, stored: Config) -> None:
    """Name attention as published files do."""
    types = stored.get("layers_block_type") or stored.get("layer_types") or config.get("layer_types") or []
    config["layer_types"] = ["attention" if kind in ("attention", "full_attention") else "mamba" for kind in types]


def _pattern(config: Config, stored: Config) -> None:
    """Published files name the blocks by letters. Without experts a model is another architecture to the converter."""
    letters = {"mlp": "-", "moe": "E", "attention": "*", "full_attention": "*"}
    kinds = config.get("layers_block_type") or []
    config.setdefault("hybrid_override_pattern", "".join(letters.get(kind, "M") for kind in kinds))
    if "E" not in config["hybrid_override_pattern"]:
        for key in ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"):
            config.pop(key, None)


_RULES: dict[str, tuple[Callable[[Config, Config], None], ...]] = {
    "Cohere2ForCausalLM": (_rotated_part,),
    "DeepseekV3ForCausalLM": (_sigmoid,),
    "FalconH1ForCausalLM": (_head_dim,),
    "GPTNeoXForCausalLM": (_rotated_part,),
    "Glm4MoeLiteForCausalLM": (_sigmoid,),
    "GraniteMoeHybridForCausalLM": (_layer_types,),
    "MiniMaxM2ForCausalLM": (_sigmoid,),
    "NemotronHForCausalLM": (_pattern,),
}
