"""Tensors of checkpoints that transformers 5 saves, under the names and in the number that the converter reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from llama_eagle.convert.upstream.hparams import text_part

Item = tuple[str, Any]  # name, and a function that loads the tensor
Filter = Callable[[Item], Item | None]

_SIGLIP = re.compile(
    r"vision_tower\.(?=(embeddings\.(patch|position)_embedding|encoder\.layers|post_layernorm|head)\.)"
)


def encoder_names(read: Filter) -> Any:
    """Wrap the filter of encoders' tensors.

    Published SigLIP towers have `vision_model.` in their names; their pooling head is left out, because no language
    model reads it. Pixtral's encoder has a row of the text model's embeddings, which the filter would leave out.
    """

    def filtered(kind: type, item: Item) -> Item | None:
        from conversion.llava import LlavaVisionModel

        if issubclass(kind, LlavaVisionModel) and item[0].endswith("embed_tokens.weight"):
            return item
        name = _SIGLIP.sub("vision_tower.vision_model.", item[0], count=1)
        return None if "vision_tower.vision_model.head." in name else read((name, item[1]))

    return classmethod(filtered)


def with_shared_keys(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Add keys and values to Gemma 3n's layers that use those of another layer.

    llama.cpp requires the tensors and reads none of their values. transformers 5 does not save them.
    """
    part = text_part(config) or config
    first = part["num_hidden_layers"] - part.get("num_kv_shared_layers", 0)
    for i in range(first, part["num_hidden_layers"]):
        for name in ("k_proj", "v_proj", "k_norm"):
            key = "model.layers.{}.self_attn." + name + ".weight"
            if (shared := tensors.get(key.format(first - 1))) is not None:
                tensors.setdefault(key.format(i), shared)
    return tensors
