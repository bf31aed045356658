"""Checkpoints that cannot be converted, each with its kind and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.folder import UnmergedError
from llama_eagle.convert.source.unmerged import adapter_next_to_weights, training_kind
from llama_eagle.errors import ConversionError, EagleError

_MTP = "an MTP head in the format of speculators. Convert the target's own checkpoint, which has its head."
_NOT_YET = "It is not run yet; `llama-eagle pairs` lists drafts that run for this target."
# Drafts of networks that are not run: values by which config.json names them (classes; speculators_model_type,
# model_arch, projector_type), a pattern of tensors that only they have, and a name for the user.
_OTHER_DRAFTS = (
    ({"dominodraftmodel", "domino"}, r"prefix_gru\.", "a Domino draft"),
    ({"qwendflaredraftmodel", "dflare"}, r"layer_fusion_weights|.*\.[kv]_proj_target\.", "a DFlare draft"),
    ({"qwen3dflymodel", "dfly"}, None, "a DFly draft"),
    ({"xpressspeculator", "xpress"}, r"refiner_head\.", "an XPress draft"),
    (
        {"kimik3dflashdraftmodel", "kimik3dsparkmodel", "glm5_2dsparkmodel", "minimaxm3dsparkmodel"},
        None,
        "a block draft with layers of another family than Qwen's",
    ),
)
_TENSORS = {
    r"\.(lora_[AB]|lora_embedding_[AB]|base_layer)\b": (
        "an adapter that is not merged (PEFT). Merge it first: model.merge_and_unload().save_pretrained(FOLDER)."
    ),
}


def refuse_foreign(checkpoint: Checkpoint) -> None:
    """Raise `ConversionError` for adapters, parts of training frameworks, and drafts of other methods."""
    if reason := _reason(checkpoint):
        raise ConversionError(f"{checkpoint.source}: {reason}")


def _reason(checkpoint: Checkpoint) -> str | None:
    if reason := _other_draft(checkpoint.config, ()):
        return reason
    try:
        names = checkpoint.names()
    except UnmergedError as error:
        return str(error).removeprefix(f"{checkpoint.path}: ")
    except EagleError:  # faults of the weights are reported when they are converted
        return None
    if reason := None if checkpoint.ignores_adapter else adapter_next_to_weights(checkpoint.path):
        return reason
    if not all(checkpoint.info(name).n_elements for name in names) and (reason := training_kind(checkpoint.path)):
        return reason  # ZeRO may leave empty tensors
    for pattern, reason in _TENSORS.items():
        if any(re.search(pattern, name) for name in names):
            return reason
    return _other_draft({}, names)


def _other_draft(config: dict[str, Any], names: Iterable[str]) -> str | None:
    """Return the kind of a draft that is not run, by its config.json or its tensors."""
    stated = _stated_kinds(config)
    if stated & {"mtpdraftmodel", "mtp"}:
        return _MTP
    for kinds, tensors, what in _OTHER_DRAFTS:
        if kinds & stated or (
            tensors and any(re.match(rf"((model|draft_model|module)\.)*{tensors}", n) for n in names)
        ):
            return f"{what}. {_NOT_YET}"
    return None


def _stated_kinds(config: dict[str, Any]) -> set[str]:
    """Return the names by which config.json states the kind of a draft, in lower case."""
    inner = config.get("dflash_config")
    settings = {**config, **(inner if isinstance(inner, dict) else {})}
    keys = ("speculators_model_type", "model_arch", "projector_type")
    classes = config.get("architectures")
    found = [settings.get(key) for key in keys] + (classes if isinstance(classes, list) else [])
    return {value.lower() for value in found if isinstance(value, str)}
