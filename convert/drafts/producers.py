"""Producer of a draft, from evidence in its configuration and its tensor names.

The producer decides nothing. It explains a file, and selects warnings about known faults of its files.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from llama_eagle.convert.drafts.config import DraftConfig
from llama_eagle.convert.drafts.gemma4 import block as gemma4

MODELOPT_KEYS = (
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
)


DEEPSPEC = ("Qwen3Eagle3Model", gemma4.EAGLE3)  # architectures that DeepSpec writes


@dataclass(frozen=True)
class Producer:
    name: str
    evidence: tuple[str, ...]


def detect_producer(config: DraftConfig, stored: Collection[str]) -> Producer:
    """Return the producer by the strongest evidence. stored: tensor names in the file."""
    evidence = [f"architecture {config.architecture}"] if config.architecture else []
    midlayer = any(".midlayer." in f".{name}" for name in stored)
    evidence.append("layer named midlayer" if midlayer else "layer named layers.0")
    if config.is_speculators:
        version = config.raw.data.get("speculators_version")
        evidence.append(f"speculators_version {version}" if isinstance(version, str) else "keys of speculators")
        return Producer("speculators", tuple(evidence))
    modelopt = [key for key in MODELOPT_KEYS if config.eagle and config.eagle.get(key) is not None]
    if modelopt:
        return Producer("ModelOpt", (*evidence, f"eagle_config.{modelopt[0]}"))
    name = _by_architecture(config, midlayer)
    if config.ids_top is not None:
        evidence.append("layer ids at the top level")
    if config.ids_nested is not None:
        evidence.append("layer ids in eagle_config")
    if name == "SpecForge" and "t2d" in stored:
        evidence.append("t2d is stored")
    return Producer(name, tuple(evidence))


def _by_architecture(config: DraftConfig, midlayer: bool) -> str:
    if config.architecture in DEEPSPEC:
        return "DeepSpec"
    if config.architecture == "LlamaEagle3DraftModel":
        return "NeMo"
    if config.architecture == "Eagle3LlamaForCausalLM":
        return "AngelSlim"
    if config.architecture == "LlamaForCausalLM" and midlayer:
        return "SafeAILab"
    if config.architecture == "LlamaForCausalLMEagle3":
        if midlayer:
            return "SpecForge"
        return "NVIDIA" if config.ids_top is not None and config.ids_nested is not None else "ModelOpt"
    return "unknown"


def known_traps(producer: str, *, rope_base: float, norm_output: bool, overridden: bool, no_layers: bool) -> list[str]:
    """Return warnings about known faults of this producer's files.

    overridden: the user gave a RoPE base. no_layers: neither the file nor the user names the layers that it reads.
    """
    warnings = []
    if producer == "NeMo" and no_layers:
        warnings.append(
            "NeMo stores no layer ids: its default is assumed; if the recipe has aux_layer_ids, give each plus one in "
            "--aux-layers"
        )
    if producer in ("AngelSlim", "SafeAILab") and rope_base != 10000 and not overridden:
        warnings.append(
            f"{producer}'s trainer uses RoPE base 10000 regardless of config.json ({rope_base:g}); "
            "compare the acceptance rate with --rope-base 10000"
        )
    if producer == "SpecForge" and norm_output:
        warnings.append(
            "norm_output is true, but SpecForge before September 2026 trained without it; "
            "if only the first tokens of drafts are accepted, convert with --no-norm-output"
        )
    return warnings


def looks_like_draft(config: dict[str, Any]) -> bool:
    """Return True if a config.json by itself identifies a draft."""
    names = config.get("architectures")
    named = isinstance(names, list) and any("eagle3" in name.lower() for name in names if isinstance(name, str))
    keys = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size", "speculators_model_type")
    return named or any(config.get(key) is not None for key in keys)
