"""A draft for export: Hugging Face's names and rows, layer ids as boundaries, values in their stored types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_eagle.convert.drafts.config import Geometry, Window
from llama_eagle.convert.drafts.reader import Draft, Flags, read_draft
from llama_eagle.convert.drafts.report import DraftOptions
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.dtypes import to_bf16, to_f16, to_f32
from llama_eagle.convert.rope import parameters
from llama_eagle.convert.source import Checkpoint
from llama_eagle.errors import ConversionError

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}  # safetensors' names and torch's


@dataclass(frozen=True)
class Tensor:
    """A tensor. shape: NumPy order. dtype: safetensors' name. load(): returns BF16 as bit patterns (uint16)."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Network:
    """A draft's network.

    ids: target ids [D] of the draft's tokens, None if they are the target's own. tensors: by the names of
    drafts/family.py, without d2t. rope: `rope_parameters` of config.json. trained_length: tokens of the longest text
    that our trainer used.
    """

    geometry: Geometry
    n_layer: int
    n_aux: int
    target_width: int
    n_vocab: int
    n_vocab_draft: int
    flags: Flags
    boundaries: tuple[int, ...]
    rope: dict[str, Any]
    window: Window | None
    logit_scale: float
    trained_length: int | None
    ids: np.ndarray | None
    tensors: dict[str, Tensor]

    @property
    def dtype(self) -> str:
        """Type of the matrices."""
        return self.tensors["fc.weight"].dtype

    def has(self, part: str) -> bool:
        """Return True if a tensor's name ends with `part`."""
        return any(name.endswith(part) for name in self.tensors)


def of_checkpoint(checkpoint: Checkpoint, target: Target, options: DraftOptions) -> Network:
    """Return the network of a checkpoint. Raises the errors of `read_draft`, and ConversionError for coded weights."""
    draft = read_draft(checkpoint, target, options)
    if draft.masks:
        raise ConversionError("a P-EAGLE draft; vLLM reads it in its published form")
    params, _ = parameters(draft.config.layer, prefer="sliding_attention")
    mapped = {tensor.source for tensor in draft.plan.tensors if tensor.source}
    tensors = {name: _stored(draft, name) for name in draft.weights.names() if name in mapped and name != "d2t"}
    ids = draft.weights.read("d2t") if "d2t" in draft.weights and "d2t" not in draft.plan.dropped else None
    dims = draft.dims
    return Network(
        geometry=draft.config.geometry,
        n_layer=draft.n_layer,
        n_aux=dims["aux"],
        target_width=dims["target"],
        n_vocab=dims["vocab"],
        n_vocab_draft=dims["draft_vocab"],
        flags=draft.flags,
        boundaries=draft.layer_ids.boundaries,
        rope={**params.data, "rope_theta": draft.rope.base},
        window=draft.window,
        logit_scale=draft.config.logit_scale,
        trained_length=draft.config.trained_length,
        ids=ids,
        tensors=in_one_dtype(tensors),
    )


def _stored(draft: Draft, name: str) -> Tensor:
    info = draft.weights.info(name)
    if info.dtype not in DTYPES:
        raise ConversionError(
            f"tensor {info.name} is stored as {info.dtype}: export needs BF16, F16 or F32. Dequantize the checkpoint."
        )
    return Tensor(tuple(info.shape), info.dtype, lambda: draft.weights.read(name))


def in_one_dtype(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert F32 tensors of any shape to the matrices' type if no value changes: GGUF keeps norms in F32."""
    dtype = tensors["fc.weight"].dtype
    return {name: _narrowed(tensor, dtype) for name, tensor in tensors.items()}


def _narrowed(tensor: Tensor, dtype: str) -> Tensor:
    if tensor.dtype != "F32" or dtype == "F32" or len(tensor.shape) > 1:
        return tensor
    narrow = to_bf16 if dtype == "BF16" else to_f16
    values = tensor.load()
    if not np.array_equal(to_f32(narrow(values)), values):
        return tensor
    return Tensor(tensor.shape, dtype, lambda: narrow(tensor.load()))
