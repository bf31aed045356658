"""Reader of a draft's GGUF for export: rows of q and k in Hugging Face's order, keys as settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llama_eagle.convert.drafts.config import Geometry, Window
from llama_eagle.convert.drafts.family import ARCH, table
from llama_eagle.convert.drafts.reader import Flags
from llama_eagle.convert.export.network import Network, Tensor, in_one_dtype
from llama_eagle.convert.rows import PAIRS, deinterleave
from llama_eagle.convert.table import Row
from llama_eagle.errors import ConversionError
from llama_eagle.gguf.header import Header, TensorInfo
from llama_eagle.gguf.names import TRAINED_LENGTH, is_parallel

TYPES: dict[str, tuple[str, type[np.generic]]] = {
    "BF16": ("BF16", np.uint16),
    "F16": ("F16", np.float16),
    "F32": ("F32", np.float32),
}


def of_gguf(header: Header) -> Network:
    """Return the network in a valid file. Raises ConversionError for properties that cannot be restored from a GGUF."""
    if header.architecture != ARCH:
        raise ConversionError(
            f"{header.path}: not an EAGLE-3 draft ({header.architecture}). vLLM and SGLang read an MTP head from the "
            "target's own checkpoint, and a DFlash draft in its published form."
        )
    if is_parallel(header):
        raise ConversionError(f"{header.path}: a P-EAGLE draft. vLLM reads the checkpoint that it was converted from.")
    if "rope_freqs.weight" in header.tensors:
        raise ConversionError(
            f"{header.path}: it contains rotary factors (rope_freqs.weight), but not the settings behind them. "
            "Export the checkpoint that it was converted from."
        )
    geometry = _geometry(header)
    boundaries = tuple(int(i) for i in header.arch_key("target_layers"))
    n_layer = int(header.arch_key("block_count", 1))
    tensors = _tensors(header, n_layer, len(boundaries), geometry.head_dim)
    ids = _read(header, header.tensors["d2t"], np.int64) if "d2t" in header.tensors else None
    n_vocab = header.n_vocab
    return Network(
        geometry=geometry,
        n_layer=n_layer,
        n_aux=len(boundaries),
        target_width=int(header.arch_key("target_hidden_size")),
        n_vocab=n_vocab,
        n_vocab_draft=n_vocab if ids is None else len(ids),
        flags=Flags(
            *(bool(header.arch_key(f"norm_{what}", False)) for what in ("before_residual", "before_fc", "output"))
        ),
        boundaries=boundaries,
        rope=_rope(header, geometry.head_dim),
        window=_window(header),
        logit_scale=1.0,  # the head is scaled already
        trained_length=header.keys.get(TRAINED_LENGTH),
        ids=ids,
        tensors=in_one_dtype(tensors),
    )


def _geometry(header: Header) -> Geometry:
    hidden, n_head = int(header.arch_key("embedding_length")), int(header.arch_key("attention.head_count"))
    return Geometry(
        hidden_size=hidden,
        n_head=n_head,
        n_head_kv=int(header.arch_key("attention.head_count_kv", n_head)),
        head_dim=int(header.arch_key("attention.key_length", hidden // n_head)),
        n_ff=int(header.arch_key("feed_forward_length")),
        n_layer=int(header.arch_key("block_count", 1)),
        n_ctx=int(header.arch_key("context_length")),
        rms_eps=_short(header.arch_key("attention.layer_norm_rms_epsilon")),
    )


def _short(value: float) -> float:
    """Return the shortest number with this float32 value: GGUF stores 1e-6 as float32."""
    return float(str(np.float32(value)))


def _tensors(header: Header, n_layer: int, n_aux: int, head: int) -> dict[str, Tensor]:
    found = {}
    n_rot = int(header.arch_key("rope.dimension_count", head))
    gemma = False if "blk.0.post_attention_norm.weight" in header.tensors else None
    for section in table(n_layer, n_aux, gemma=gemma):
        for row in section.rows:
            info = header.tensors.get(section.target + row.target)
            if info is not None and row.source != "d2t":
                found[section.source + row.source] = _tensor(header, info, row, lambda v: deinterleave(v, head, n_rot))
    return found


def _tensor(header: Header, info: TensorInfo, row: Row, apart: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    if info.type_name not in TYPES:
        raise ConversionError(
            f"{header.path}: {info.name} is {info.type_name}: export needs BF16, F16 or F32. Convert the draft with "
            "--outtype auto, or export the checkpoint."
        )
    dtype, values = TYPES[info.type_name]
    reorder = apart if row.transform is PAIRS else lambda v: v
    return Tensor(tuple(reversed(info.shape)), dtype, lambda: reorder(_read(header, info, values)))


def _read(header: Header, info: TensorInfo, dtype: type[np.generic]) -> np.ndarray:
    start, shape = header.data_offset + info.offset, tuple(reversed(info.shape))
    return np.memmap(header.path, dtype, "r", start, shape)


def _rope(header: Header, head: int) -> dict[str, Any]:
    kind = header.arch_key("rope.scaling.type", "none")
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": _short(header.arch_key("rope.freq_base", 10000.0))}
    n_rot = int(header.arch_key("rope.dimension_count", head))
    if n_rot != head:
        found["partial_rotary_factor"] = n_rot / head
    if kind in ("linear", "yarn"):
        factor = _short(header.arch_key("rope.scaling.factor"))
        found |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        found["original_max_position_embeddings"] = int(header.arch_key("rope.scaling.original_context_length"))
        scale = header.arch_key("rope.scaling.attn_factor")
        if scale is not None:  # relative to the factor that llama.cpp applies itself
            found["attention_factor"] = _short(scale * (1 + 0.1 * math.log(factor)))
    sections = header.arch_key("rope.dimension_sections")
    if sections is not None:
        found["mrope_section"] = [int(n) for n in sections][:3]
        found["mrope_interleaved"] = bool(header.arch_key("rope.mrope_interleaved", False))
    return found


def _window(header: Header) -> Window | None:
    size = header.arch_key("attention.sliding_window")
    if size is None:
        return None
    pattern = header.arch_key("attention.sliding_window_pattern")
    return Window(int(size), tuple(bool(flag) for flag in pattern))
