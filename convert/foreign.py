"""Checkpoints that cannot be converted, each with its kind and a remedy."""

from __future__ import annotations

import re

from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.folder import UnmergedError
from llama_eagle.convert.source.unmerged import adapter_next_to_weights, training_kind
from llama_eagle.errors import ConversionError, EagleError

_OTHER_DRAFT = "Its network is not that of EAGLE-3: use an EAGLE-3 draft for this target (llama-eagle pairs)."
_ARCHITECTURES = {
    "DominoDraftModel": f"a Domino draft. {_OTHER_DRAFT}",
    "MTPDraftModel": (
        "an MTP head in the format of speculators. Convert the target's own checkpoint, which has its head."
    ),
    "Qwen3DFlyModel": f"a DFly draft. {_OTHER_DRAFT}",
    "PEagleDraftModel": f"a P-EAGLE draft, which drafts several tokens at once. {_OTHER_DRAFT}",
}
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
    architectures = checkpoint.config.get("architectures")
    for name in architectures if isinstance(architectures, list) else ():
        if isinstance(name, str) and name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
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
    return None
