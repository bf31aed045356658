"""Keys and tensors of a draft's GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from llama_eagle.convert.drafts.family import ARCH, is_extended
from llama_eagle.convert.drafts.reader import Draft
from llama_eagle.convert.drafts.report import DraftOptions, DraftReport, TensorRow
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.dtypes import FILE_TYPE, QUANTIZATION_VERSION, kept_type, require_finite
from llama_eagle.convert.general import publishable_name, stored_outtype, write_general
from llama_eagle.convert.quantized import is_direct, write_as
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.source.weights import PIECE, Weights
from llama_eagle.convert.table import Dims, Plan, Planned, computed, stored_type
from llama_eagle.convert.writer import GGUFOutput, Progress, gguf_output
from llama_eagle.errors import ConversionError
from llama_eagle.gguf.names import HELD_OUT, TRAINED_LENGTH

_FIXED = {"d2t": "i64", "extended": "i32"}  # types independent of --outtype


def extended_because(draft: Draft) -> list[str]:
    """Return the properties that stock llama.cpp does not support; empty if it can run this draft."""
    reasons = ["norm_output"] if draft.flags.norm_output else []
    if draft.dims["aux"] != 3:
        reasons.append(f"{draft.dims['aux']} aux features")
    if draft.n_layer != 1:
        reasons.append(f"{draft.n_layer} layers")
    if draft.window:
        reasons.append(f"a sliding window of {draft.window.size} tokens")
    if draft.masks:
        reasons.append("mask rows of P-EAGLE")
    names = [re.sub(r"^blk\.\d+\.", "", tensor.name) for tensor in draft.plan.tensors if is_extended(tensor.name)]
    names = [name for name in names if name != "fc.mask"]
    return reasons + sorted({f"{name.split('.')[0]} {name.rsplit('.', 1)[1]}" for name in names})


def add_keys(out: GGUFOutput, draft: Draft, checkpoint: Checkpoint, target: Target, outtype: str) -> None:
    geometry, dims = draft.config.geometry, draft.dims
    keys: dict[str, Any] = {
        "context_length": geometry.n_ctx,
        "embedding_length": dims["embd"],
        "block_count": draft.n_layer,
        "feed_forward_length": dims["ff"],
        "attention.head_count": geometry.n_head,
        "attention.head_count_kv": geometry.n_head_kv,
        "attention.layer_norm_rms_epsilon": geometry.rms_eps,
        "target_layers": list(draft.layer_ids.boundaries),
        "target_hidden_size": dims["target"],
        "norm_before_residual": draft.flags.norm_before_residual,
        "norm_before_fc": draft.flags.norm_before_fc,
        "vocab_size": dims["vocab"],
        "rope.freq_base": draft.rope.base,
        "rope.dimension_count": draft.rope.n_rot,
        "producer": draft.producer.name,
        "target_layers_source": draft.layer_ids.source,
    }
    keys |= draft.rope.keys
    if geometry.head_dim * geometry.n_head != dims["embd"]:
        keys |= {"attention.key_length": geometry.head_dim, "attention.value_length": geometry.head_dim}
    if draft.flags.norm_output:
        keys["norm_output"] = True
    if draft.config.is_gemma and draft.config.logit_softcap:
        keys["final_logit_softcapping"] = draft.config.logit_softcap
    if draft.window:
        keys["attention.sliding_window"] = draft.window.size
        keys["attention.sliding_window_pattern"] = list(draft.window.pattern)
    if draft.masks:
        keys["block_size"] = draft.masks.n_depths
    general = {
        "general.type": "model",
        "general.name": publishable_name(checkpoint),
        "general.description": f"{'P-EAGLE' if draft.masks else 'EAGLE-3'} draft for {target.name}",
        "general.quantization_version": QUANTIZATION_VERSION,
        "general.file_type": FILE_TYPE[_file_type(draft, outtype)],
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
    out.key(HELD_OUT, draft.config.acceptance, "f32")
    if draft.config.trained_length:
        out.key(TRAINED_LENGTH, draft.config.trained_length)
    target.write_tokenizer(out)
    if draft.masks:
        out.key("tokenizer.ggml.mask_token_id", draft.masks.token)


def _tool_version() -> str:
    try:
        return metadata.version("llama-eagle")
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a source tree


def _file_type(draft: Draft, outtype: str) -> str:
    """Return the type of fc.weight, which names the file's type."""
    return kept_type(draft.weights.info("fc.weight").dtype) if outtype == "auto" else outtype


def add_tensors(out: GGUFOutput, draft: Draft, target: Target, outtype: str) -> list[TensorRow]:
    """Declare every tensor, whose values are read while the file is written. Returns the table with dropped ones."""
    tensors = list(draft.plan.tensors)
    if draft.shared_ids is not None:
        tensors.append(_shared_head(draft, target, draft.shared_ids))
    if draft.rope.factors is not None:
        tensors.append(computed("rope_freqs.weight", draft.rope.factors, f"RoPE type {draft.rope.kind}"))
    if extended_because(draft):
        tensors.append(computed("extended", np.ones(1, np.int32), "marks the extended layout"))
    return [*(add_tensor(out, draft.weights, t, outtype) for t in tensors), *dropped_rows(draft.weights, draft.plan)]


def dropped_rows(weights: Weights, plan: Plan) -> list[TensorRow]:
    infos = {name: weights.info(name) for name in plan.dropped}
    return [TensorRow(i.name, i.shape, i.dtype, None, None, plan.dropped[name]) for name, i in infos.items()]


def add_tensor(out: GGUFOutput, weights: Weights, tensor: Planned, outtype: str) -> TensorRow:
    """Declare one tensor; "auto" keeps the stored precision."""
    info = weights.info(tensor.source) if tensor.source else None
    kept = kept_type(info.dtype if info else "F16")
    storage = _FIXED.get(tensor.name) or stored_type(tensor.name, tensor.shape, kept if outtype == "auto" else outtype)
    out.tensor(tensor.name, tensor.shape, tensor.load, storage)
    if info:
        return TensorRow(info.name, info.shape, info.dtype, tensor.name, storage, tensor.note)
    return TensorRow(None, tensor.shape, storage, tensor.name, storage, tensor.note)


def _shared_head(draft: Draft, target: Target, ids: np.ndarray) -> Planned:
    shape = (len(ids), draft.dims["embd"])
    n_rows = max(1, PIECE // shape[1])

    def pieces() -> Iterator[np.ndarray]:
        for start in range(0, len(ids), n_rows):
            rows = target.head_rows(ids[start : start + n_rows])
            if rows.shape[1:] != shape[1:]:
                raise ConversionError(f"the target's head has rows of {rows.shape[1:]}, expected {shape[1]}")
            yield require_finite(rows * np.float32(draft.config.logit_scale))

    return Planned("output.weight", shape, pieces, note="rows of the target's head, by --share-head")


C = TypeVar("C", bound=Fields)


@dataclass(frozen=True)
class StockDraft(Generic[C]):
    """A draft that has been read, for the layout of llama.cpp's own converter, and its source."""

    config: C
    checkpoint: Checkpoint
    target: Target
    weights: Weights
    dims: Dims
    plan: Plan

    def declare(self, out: GGUFOutput, arch: str, keys: Mapping[str, Any], outtype: str) -> list[TensorRow]:
        """Declare keys (without the architecture's prefix) and tensors; "auto" keeps the stored type.

        Returns the table with dropped ones.
        """
        outtype = stored_outtype(self.checkpoint) if outtype == "auto" else outtype
        write_general(out, self.checkpoint, self.plan.tensors, outtype)
        for name, value in keys.items():
            out.key(f"{arch}.{name}", value)
        self.target.write_tokenizer(out)
        table = [add_tensor(out, self.weights, tensor, outtype) for tensor in self.plan.tensors]
        return [*table, *dropped_rows(self.weights, self.plan)]


def draft_report(checkpoint: Checkpoint, target: Target, **more: Any) -> DraftReport:
    """Return the report of a draft that is not written yet. more: the other fields."""
    return DraftReport(
        source=checkpoint.source,
        revision=checkpoint.revision,
        target=target.name,
        target_architecture=target.architecture,
        output=None,
        **more,
    )


def write_draft(
    declare: Callable[[GGUFOutput, str], DraftReport],
    arch: str,
    output: Path,
    options: DraftOptions,
    progress: Progress | None,
) -> DraftReport:
    """Write a draft in the type of `options`. declare: declares keys and tensors for a type, "auto" as stored."""
    if options.dry_run:
        return declare(GGUFOutput(arch), options.outtype if is_direct(options.outtype) else "auto")

    def write(path: Path, outtype: str, more: float) -> DraftReport:
        with gguf_output(path, arch=arch, progress=progress, more=more, cause="its configuration") as out:
            return declare(out, outtype)

    report, quantized = write_as(output, options.outtype, write)
    report.output = str(output)
    if quantized:
        report.n_bytes = quantized.n_bytes
        report.warnings += quantized.warnings
    return report
