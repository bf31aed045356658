"""A draft, understood, as keys and tensors of a GGUF."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import numpy as np
from llama_eagle.convert.checkpoint import Checkpoint
from llama_eagle.convert.drafts.mapping import Rule
from llama_eagle.convert.drafts.reader import Draft, Mapped
from llama_eagle.convert.drafts.report import OutType, TensorRow
from llama_eagle.convert.drafts.target import Target, publishable_name
from llama_eagle.convert.dtypes import FILE_TYPE, STORAGE, to_f32
from llama_eagle.convert.writer import GGUFOutput
from llama_eagle.errors import ConversionError

ARCH = "eagle3"
PIECE = 1 << 20  # elements handled at once, about the cache of a core
KEPT = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f32"}
QUANTIZATION_VERSION = 2  # of ggml's block formats


def extended_because(draft: Draft) -> list[str]:
    """What stock llama.cpp cannot run; nothing if it can run this draft."""
    reasons = ["norm_output"] if draft.flags.norm_output else []
    if draft.dims["A"] != 3:
        reasons.append(f"{draft.dims['A']} aux features")
    if draft.n_layer != 1:
        reasons.append(f"{draft.n_layer} layers")
    parts = {m.rule.gguf.removeprefix("blk.0.").split(".")[0]: m for m in draft.mapped if not m.rule.stock}
    kinds = {f"{part} {m.rule.gguf.rsplit('.', 1)[1]}" for part, m in parts.items()}
    return reasons + sorted(kinds)


def add_keys(out: GGUFOutput, draft: Draft, checkpoint: Checkpoint, target: Target, outtype: OutType) -> None:
    geometry, dims = draft.config.geometry, draft.dims
    keys: dict[str, Any] = {
        "context_length": geometry.n_ctx,
        "embedding_length": dims["H"],
        "block_count": draft.n_layer,
        "feed_forward_length": dims["F"],
        "attention.head_count": geometry.n_head,
        "attention.head_count_kv": geometry.n_head_kv,
        "attention.layer_norm_rms_epsilon": geometry.rms_eps,
        "target_layers": list(draft.layer_ids.boundaries),
        "target_hidden_size": dims["T"],
        "norm_before_residual": draft.flags.norm_before_residual,
        "norm_before_fc": draft.flags.norm_before_fc,
        "vocab_size": dims["V"],
        "rope.freq_base": draft.rope.base,
        "rope.dimension_count": draft.rope.n_rot,
        "producer": draft.producer.name,
        "target_layers_source": draft.layer_ids.source,
    }
    keys |= {f"rope.{name}": value for name, value in draft.rope.keys.items()}
    if geometry.head_dim * geometry.n_head != dims["H"]:
        keys |= {"attention.key_length": geometry.head_dim, "attention.value_length": geometry.head_dim}
    if draft.flags.norm_output:
        keys["norm_output"] = True
    general = {
        "general.type": "model",
        "general.name": publishable_name(checkpoint),
        "general.description": f"EAGLE-3 draft for {target.name}",
        "general.quantization_version": QUANTIZATION_VERSION,
        "general.file_type": FILE_TYPE[_file_type(checkpoint, draft, outtype)],
        "llama_eagle.version": _tool_version(),
        "llama_eagle.source": publishable_name(checkpoint),
        "llama_eagle.target": target.name,
    }
    if checkpoint.revision:
        general["llama_eagle.source_revision"] = checkpoint.revision
    for name, value in general.items():
        out.key(name, value)
    for name, value in keys.items():
        out.key(f"{ARCH}.{name}", value)
    target.write_tokenizer(out)


def _tool_version() -> str:
    try:
        return metadata.version("llama-eagle")
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a source tree


def _file_type(checkpoint: Checkpoint, draft: Draft, outtype: OutType) -> str:
    fc = next(m for m in draft.mapped if m.rule.gguf == "fc.weight")
    return _storage(fc.rule, checkpoint.info(fc.source).dtype, (), outtype)


def add_tensors(
    out: GGUFOutput, draft: Draft, checkpoint: Checkpoint, target: Target, outtype: OutType
) -> list[TensorRow]:
    """Declares every tensor; their values are read while the file is written. Returns the table, dropped ones too."""
    rows = [_add_mapped(out, draft, checkpoint, mapped, outtype) for mapped in draft.mapped]
    if draft.shared_ids is not None:
        rows.append(_add_shared_head(out, draft, target, draft.shared_ids, outtype))
    if draft.rope.factors is not None:
        rows.append(_add_computed(out, "rope_freqs.weight", draft.rope.factors, "f32", f"RoPE type {draft.rope.kind}"))
    if extended_because(draft):
        note = "marks the extended layout"
        rows.append(_add_computed(out, "extended", np.ones(1, np.int32), "i32", note))
    for source, reason in draft.dropped.items():
        info = checkpoint.info(source)
        rows.append(TensorRow(source, info.shape, info.dtype, None, None, reason))
    return rows


def _add_mapped(out: GGUFOutput, draft: Draft, checkpoint: Checkpoint, mapped: Mapped, outtype: OutType) -> TensorRow:
    info, rule = checkpoint.info(mapped.source), mapped.rule
    if rule.transform == "ids":
        assert draft.ids is not None
        ids = draft.ids
        out.tensor(rule.gguf, ids.shape, lambda: ids, "i64")
        return TensorRow(mapped.source, info.shape, info.dtype, rule.gguf, "i64", "absolute target ids")
    storage = _storage(rule, info.dtype, info.shape, outtype)
    out.tensor(rule.gguf, info.shape, _source(draft, checkpoint, mapped), storage)
    notes = {"rotary": "rows reordered for interleaved rotation"}
    if draft.config.logit_scale != 1:
        notes["logits"] = f"times logit_scale {draft.config.logit_scale:g}"
    return TensorRow(mapped.source, info.shape, info.dtype, rule.gguf, storage, notes.get(rule.transform, ""))


def _add_shared_head(out: GGUFOutput, draft: Draft, target: Target, ids: np.ndarray, outtype: OutType) -> TensorRow:
    shape = (len(ids), draft.dims["H"])
    storage = _storage(Rule("", "", ("D", "H")), "F16", shape, outtype)
    n_rows = max(1, PIECE // shape[1])

    def pieces() -> Iterator[np.ndarray]:
        for start in range(0, len(ids), n_rows):
            rows = target.head_rows(ids[start : start + n_rows])
            if rows.shape[1:] != shape[1:]:
                raise ConversionError(f"the target's head has rows of {rows.shape[1:]}, expected {shape[1]}")
            yield _finite(rows * np.float32(draft.config.logit_scale))

    out.tensor("output.weight", shape, pieces, storage)
    return TensorRow(None, shape, "target's", "output.weight", storage, "rows of the target's head, by --share-head")


def _add_computed(out: GGUFOutput, name: str, values: np.ndarray, storage: str, note: str) -> TensorRow:
    out.tensor(name, values.shape, lambda: values, storage)
    return TensorRow(None, values.shape, storage, name, storage, note)


def _storage(rule: Rule, dtype: str, shape: tuple[int, ...], outtype: OutType) -> str:
    """The GGUF type of a tensor: vectors stay F32, and rows that hold no whole blocks fall back to F16."""
    if len(rule.shape) == 1:
        return "f32"
    storage: str = KEPT[dtype] if outtype == "auto" else outtype
    return "f16" if shape and shape[-1] % STORAGE[storage][1] else storage


def _source(draft: Draft, checkpoint: Checkpoint, mapped: Mapped) -> Callable[[], Iterator[np.ndarray]]:
    """Pieces of a tensor, checked for infinities and NaNs, and transformed as the table says."""
    head_dim = draft.config.geometry.head_dim
    order = interleaved_order(head_dim, draft.rope.n_rot)

    def pieces() -> Iterator[np.ndarray]:
        values = checkpoint.read(mapped.source)
        values = values.reshape(values.shape[0], -1)
        rotary = mapped.rule.transform == "rotary"
        n_rows = head_dim if rotary else max(1, PIECE // max(1, values.shape[1]))
        for start in range(0, len(values), n_rows):
            piece = _finite(values[start : start + n_rows])
            if rotary:
                piece = piece[order]
            elif mapped.rule.transform == "logits" and draft.config.logit_scale != 1:
                piece = to_f32(piece) * np.float32(draft.config.logit_scale)
            yield piece

    return pieces


def interleaved_order(head_dim: int, n_rot: int) -> np.ndarray:
    """Rows of one head in the order that llama.cpp rotates: pair i is rows 2i and 2i+1, in Hugging Face i and
    i + n_rot/2. Rows from n_rot on are not rotated and stay.
    """
    order = np.arange(head_dim)
    order[:n_rot] = np.arange(n_rot).reshape(2, -1).T.reshape(-1)
    return order


_EXPONENT = {np.dtype(np.uint16): 0x7F80, np.dtype(np.float16): 0x7C00}


def _finite(piece: np.ndarray) -> np.ndarray:
    """The values, none of them an infinity or a NaN: all ones in the exponent, which is the fast way for 16 bits."""
    if piece.dtype == np.float64:
        with np.errstate(over="ignore"):
            piece = piece.astype(np.float32)
    mask = _EXPONENT.get(piece.dtype)
    if mask is None:
        finite = bool(np.isfinite(piece).all())
    else:
        finite = not piece.size or int((piece.view(np.uint16) & mask).max()) != mask
    if not finite:
        raise ConversionError("it holds infinities or NaNs; the checkpoint is damaged")
    return piece
