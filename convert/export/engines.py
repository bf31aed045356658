"""Properties of a draft that each engine supports, and its config.json.

Sources: vLLM 0.33.0 (llama_eagle3.py, qwen3_eagle3.py, configs/speculators), SGLang 0.5.23 (llama_eagle3.py,
spec_aux_hidden_state.py, the targets' set_eagle3_layers_to_capture) and speculators 0.9.0 (models/eagle3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_eagle.convert.drafts.config import TRAINED_LENGTH
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.export.network import DTYPES, Network
from llama_eagle.errors import ConversionError

ENGINES = ("vllm", "sglang", "speculators")
N_DRAFT = 3  # default draft length of the exported folder
BIASES = tuple(f"self_attn.{part}_proj.bias" for part in "qkvo")


def require_expressible(engine: str, network: Network, target: Target) -> None:
    """Raise ConversionError that names every property of the draft that the engine does not support."""
    reasons = [reason for applies, reason in _LIMITS[engine](network, target) if applies]
    if reasons:
        raise ConversionError(f"{engine} does not support this draft: {'; '.join(reasons)}.")


def _common_limits(network: Network) -> list[tuple[bool, str]]:
    some = [bias for bias in BIASES if network.has(bias)]
    return [
        (0 < len(some) < len(BIASES), f"biases on {len(some)} of 4 attention projections (attention_bias means all)"),
        (network.has("q_norm.weight") and bool(some), "q and k norms together with attention biases"),
        (network.has("layer_scalar"), "Gemma 4's block"),
    ]


def _vllm_limits(network: Network, target: Target) -> list[tuple[bool, str]]:
    return [*_common_limits(network), (network.has("fc.bias"), "a bias of fc")]


def _speculators_limits(network: Network, target: Target) -> list[tuple[bool, str]]:
    width = network.geometry.hidden_size
    return [
        *_vllm_limits(network, target),
        (width != network.target_width, f"hidden size {width} with a target of {network.target_width}"),
        (network.logit_scale != 1, "logit_scale"),
    ]


def _sglang_limits(network: Network, target: Target) -> list[tuple[bool, str]]:
    last = network.boundaries[-1] == target.n_layer and target.architecture != "gpt-oss"
    return [
        (network.has("layer_scalar"), "Gemma 4's block"),
        (network.flags.norm_before_residual, "norm_before_residual"),
        (network.n_layer != 1, f"{network.n_layer} layers of this kind"),
        (network.has("q_norm.weight"), "q and k norms"),
        (any(network.has(bias) for bias in BIASES), "attention biases"),
        (network.window is not None, "a sliding window (use --speculative-draft-window-size, for all drafts)"),
        (network.logit_scale != 1, "logit_scale"),
        (network.boundaries[0] == 0, "the embeddings as a feature (boundary 0)"),
        (last, f"the state after the last block as a feature (boundary {target.n_layer})"),
    ]


_LIMITS: dict[str, Callable[[Network, Target], list[tuple[bool, str]]]] = {
    "vllm": _vllm_limits,
    "sglang": _sglang_limits,
    "speculators": _speculators_limits,
}


def config(engine: str, network: Network, target: Target, verifier: str | None) -> dict[str, Any]:
    """Return config.json.

    verifier: the target's folder or hub id, which speculators opens with the draft; None for a GGUF.
    """
    settings = _sglang(network, target) if engine == "sglang" else _speculators(network, verifier)
    length = {TRAINED_LENGTH: network.trained_length} if network.trained_length else {}
    return {**settings, **length}


def _layer(network: Network) -> dict[str, Any]:
    geometry = network.geometry
    settings: dict[str, Any] = {
        "model_type": "qwen3" if network.has("q_norm.weight") else "llama",
        "attention_bias": network.has(BIASES[0]),
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.n_ff,
        "max_position_embeddings": geometry.n_ctx,
        "mlp_bias": False,
        "num_attention_heads": geometry.n_head,
        "num_hidden_layers": network.n_layer,
        "num_key_value_heads": geometry.n_head_kv,
        "rms_norm_eps": geometry.rms_eps,
        "rope_parameters": network.rope,
        "rope_theta": network.rope["rope_theta"],
        "tie_word_embeddings": False,
        "vocab_size": network.n_vocab,
    }
    if network.window:
        settings["sliding_window"] = network.window.size
        settings["use_sliding_window"] = True
        settings["layer_types"] = [
            "sliding_attention" if windowed else "full_attention" for windowed in network.window.pattern
        ]
    if network.logit_scale != 1:
        settings["logit_scale"] = network.logit_scale
    return settings


def _flags(network: Network) -> dict[str, Any]:
    return {
        "fc_norm": network.has("fc_norm.0.weight"),
        "norm_before_fc": network.flags.norm_before_fc,
        "norm_before_residual": network.flags.norm_before_residual,
        "norm_output": network.flags.norm_output,
        "target_hidden_size": network.target_width,
        "dtype": DTYPES[network.dtype],
    }


def speculators_header(verifier: dict[str, Any], n_draft: int) -> dict[str, Any]:
    """Return the beginning of config.json for the speculators package. verifier: name_or_path and architectures."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": n_draft}],
            "verifier": verifier,
        },
    }


def _speculators(network: Network, verifier: str | None) -> dict[str, Any]:
    """Return a config.json that vLLM reads too, with its other values in the layer's settings.

    Layer ids are boundaries.
    """
    layer = {**_layer(network), **({"num_aux_hidden_states": network.n_aux} if network.n_aux != 3 else {})}
    return {
        **speculators_header({"name_or_path": verifier, "architectures": []}, N_DRAFT),
        "draft_vocab_size": network.n_vocab_draft,
        **_flags(network),
        "eagle_aux_hidden_state_layer_ids": list(network.boundaries),
        "transformer_layer_config": layer,
    }


def _sglang(network: Network, target: Target) -> dict[str, Any]:
    has_head = "lm_head.weight" in network.tensors
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer(network),
        **_flags(network),
        "bias": network.has("fc.bias"),
        "draft_vocab_size": network.n_vocab_draft if has_head else None,  # None: use the target's head
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": sglang_ids(network.boundaries, target),
            "use_aux_hidden_state": True,
        },
    }


def sglang_ids(boundaries: tuple[int, ...], target: Target) -> list[int]:
    """Return the blocks whose outputs are read. For two kinds of targets SGLang expects boundaries in some cases."""
    outputs = [boundary - 1 for boundary in boundaries]
    is_last = target.architecture == "gpt-oss" and boundaries[-1] == target.n_layer
    is_deepseek = target.architecture.startswith("deepseek") and outputs[0] != 1
    return list(boundaries) if is_last or is_deepseek else outputs


def stored_name(engine: str, name: str) -> str:
    """Return the layer's name for SGLang, which reads drafts of SpecForge."""
    return name.replace("layers.0.", "midlayer.") if engine == "sglang" else name
