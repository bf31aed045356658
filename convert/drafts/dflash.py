"""DFlash, DFlash2 and DSpark drafts, in the layout of llama.cpp's own converter.

They draft a block of tokens at once, with attention over features of the target and over the block itself. DFlash2 adds
local convolutions and a selector of candidates, DSpark a Markov head and a confidence head.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert import rows
from llama_eagle.convert.drafts.config import TRAINED_LENGTH, WHERE, acceptance
from llama_eagle.convert.drafts.dflash_config import DFlashConfig, keys, sizes, with_class_defaults
from llama_eagle.convert.drafts.family import ABSOLUTE_IDS, DROPPED, canonical, match
from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.drafts.layers import unpublished
from llama_eagle.convert.drafts.report import DraftOptions, DraftReport, TensorRow
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.drafts.vocab import map_vocabulary
from llama_eagle.convert.drafts.write import StockDraft, draft_report, write_draft
from llama_eagle.convert.rope import parameters, proportional_factors
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.source.stated import checkpoint_scheme
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Row, Section, Transform, computed, plan
from llama_eagle.convert.writer import GGUFOutput, Progress
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.gguf import names

ARCH = "dflash"

_HALVES = Transform(
    lambda v, d: rows.deinterleave(v, d["head"], d["n_rot"]),
    unit="head",
    note="rows reordered from interleaved pairs to halves",
)
_SELECTOR = (
    Row("candidate_selector.predecessor_codebook", "selector_predecessor.weight", ("vocab", "rank")),
    Row("candidate_selector.successor_codebook", "selector_successor.weight", ("vocab", "rank")),
    Row("candidate_selector.hidden_projection.weight", "selector_hidden.weight", ("rank", "embd")),
)
_CONFIDENCE = "confidence_head.proj.weight"
_GATES: dict[str, tuple[Row, ...]] = {  # of Markov heads, by their type
    "vanilla": (),
    "gated": (
        Row("markov_head.gate_proj.weight", "markov_w2.gate.weight", ("rank", "embd+rank")),
        Row("markov_head.gate_proj.bias", "markov_w2.gate.bias", ("rank",)),
    ),
    "rnn": (
        Row("markov_head.joint_proj.weight", "markov_w2.gate.weight", ("3*rank", "2*rank+embd")),
        Row("markov_head.joint_proj.bias", "markov_w2.gate.bias", ("3*rank",)),
    ),
}
_HEADS = (
    Row("markov_head.markov_w1.weight", "markov_w1.weight", ("vocab", "rank")),
    Row("markov_head.markov_w2.weight", "markov_w2.weight", ("draft_vocab", "rank")),
    Row(_CONFIDENCE, "conf_proj.weight", ("1", "embd+rank"), required=False),
    Row("confidence_head.proj.bias", "conf_proj.bias", ("1",), required=False),
)
_SINKS = ("self_attn.sinks", "self_attn.sinks.weight", "self_attn.attention_sink_bias")


def _convolution(source: str, target: str) -> tuple[Row, ...]:
    return (
        Row(f"{source}.base_kernel", f"{target}_base", ("2", "kernel", "embd")),
        Row(f"{source}.kernel_projection.weight", f"{target}_proj.weight", ("taps", "embd")),
    )


def _layer(config: DFlashConfig) -> tuple[Row, ...]:
    if config.architecture == gemma4.DSPARK:
        query, keys_, _, output = rows.attention()
        return (*gemma4.NORMS, query, keys_, output, *rows.qk_norms(), *rows.DENSE)
    rotary = _HALVES if config.is_interleaved else None
    convolutions = (*_convolution("attention_conv", "attn_conv"), *_convolution("mlp_conv", "ffn_conv"))
    return (
        *rows.NORMS,
        *rows.attention(rotary=rotary),
        *rows.qk_norms(rotary),
        *(Row(name, "attn_sinks.weight", ("heads",), required=False) for name in _SINKS),
        *rows.DENSE,
        *(convolutions if config.kind == "DFlash2" else ()),
    )


def _table(config: DFlashConfig, n_layer: int, skipped: set[str]) -> list[Section]:
    """Return the table. skipped: GGUF tensors that the target provides."""
    model = (
        Row("fc.weight", "fc.weight", ("embd", "aux*embd")),
        rows.norm("hidden_norm.weight", "enc.output_norm.weight", "embd"),
        rows.norm("norm.weight", "output_norm.weight", "embd"),
        Row("embed_tokens.weight", "token_embd.weight", ("vocab", "embd"), required=False),
        Row("lm_head.weight", "output.weight", ("draft_vocab", "embd"), required=False),
        *(_SELECTOR if config.kind == "DFlash2" else ()),
        *((*_HEADS, *_GATES[config.markov]) if config.kind == "DSpark" else ()),
        Row("d2t", "d2t", ("draft_vocab",), ABSOLUTE_IDS, required=False),
    )
    layers = [Section(_layer(config), f"layers.{i}.", f"blk.{i}.") for i in range(n_layer)]
    return [Section(tuple(row for row in model if row.target not in skipped)), *layers]


def _dropped(name: str) -> str | None:
    if name in ("lm_head.weight", "embed_tokens.weight"):
        return "the target's is used"
    if name.startswith("confidence_head."):
        return "it does not read the Markov head, and only llama.cpp's server uses such a head"
    return match(DROPPED, name)


def _read(checkpoint: Checkpoint, target: Target, layers: Sequence[int] | None) -> StockDraft[DFlashConfig]:
    weights = Weights(checkpoint, canonical, checkpoint_scheme(checkpoint, draft=True))
    stated, factors = _with_gemma_heads(with_class_defaults(checkpoint.config, target.n_vocab), weights)
    config = DFlashConfig(stated, checkpoint.source, layers)
    _check_target(config, target)
    if (checkpoint.path / "mask_embedding.pt").is_file():
        raise ConversionError("mask_embedding.pt (MiMo) is read by llama.cpp's convert_hf_to_gguf.py only")
    dims = {**sizes(config), "draft_vocab": _vocabulary(config, weights, target)}
    skipped = {"token_embd.weight"} if config.root.flag("has_embed_tokens") is False else set()
    if config.is_dspark and dims["draft_vocab"] == dims["vocab"]:
        skipped.add("output.weight")
    if _CONFIDENCE in weights and weights.fits(_CONFIDENCE, (1, dims["embd"])):
        skipped |= {"conf_proj.weight", "conf_proj.bias"}
    planned = plan(_table(config, dims["n_layer"], skipped), weights, dims, _dropped)
    if factors is not None:
        planned.tensors.append(computed("rope_freqs.weight", factors, "pairs that are not rotated"))
    return StockDraft(config, checkpoint, target, weights, dims, planned)


def _with_gemma_heads(config: dict[str, Any], weights: Weights) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return the configuration with plain names for the heads and the rotation of Gemma 4's block, and its factors."""
    if config.get("architectures") != [gemma4.DSPARK]:
        return config, None
    head, n_head_kv = gemma4.stored_heads(weights)
    if "layers.0.self_attn.v_proj.weight" in weights:
        raise ConversionError("values of their own in Gemma 4's block (attention_k_eq_v: false) are not supported")
    stated = Fields(config, WHERE)
    if set(stated.texts("layer_types")) != {"full_attention"}:
        raise ConversionError("layers with a window in Gemma 4's block are not supported")
    stated.require("hidden_activation", gemma4.ACTIVATION)
    params, _ = parameters(stated)
    factors = None
    if params.text("rope_type") == "proportional":
        factors = proportional_factors(params, head)
        params = Fields({"rope_type": "default", "rope_theta": params.need_number("rope_theta")}, WHERE)
    heads = {"head_dim": head, "num_key_value_heads": n_head_kv, "rope_parameters": params.data}
    return config | heads, factors


def _check_target(config: DFlashConfig, target: Target) -> None:
    embd, n_vocab = config.need_integer("hidden_size"), config.need_integer("vocab_size")
    if (embd, n_vocab) != (target.hidden_size, target.n_vocab):
        raise ConversionError(
            f"the draft is for a hidden size of {embd} and {n_vocab} tokens, {target.name} has {target.hidden_size} "
            f"and {target.n_vocab}; give the right --target"
        )
    ids = config.boundaries()
    if min(ids) < 0 or max(ids) > target.n_layer or len(set(ids)) != len(ids):
        where = "--aux-layers" if config.layers else config.where
        raise ConfigError(f"{where}: it reads the boundaries {ids}, expected different ones from 0 to {target.n_layer}")
    if message := unpublished(sorted(ids), target):
        raise ConversionError(f"{message}; give other boundaries with --aux-layers")


def _vocabulary(config: DFlashConfig, weights: Weights, target: Target) -> int:
    """Return the number of tokens that the draft has rows for. Checks d2t, and replaces it by absolute ids."""
    stated = config.root.integer("draft_vocab_size") or target.n_vocab
    if "d2t" not in weights:
        if stated != target.n_vocab:
            raise ConversionError(f"draft_vocab_size is {stated}, but there is no d2t to map the tokens")
        return stated
    t2d = weights.read("t2d") if "t2d" in weights else None
    ids, _ = map_vocabulary(weights.read("d2t"), t2d, n_vocab=target.n_vocab)
    if len(ids) != stated:
        raise ConfigError(f"{config.where}: draft_vocab_size is {stated}, but d2t has {len(ids)} rows")
    weights.replace("d2t", ids)
    return len(ids)


def _declare(out: GGUFOutput, draft: StockDraft[DFlashConfig], outtype: str) -> DraftReport:
    """Declare keys and tensors; "auto" keeps the stored type."""
    config, target = draft.config, draft.target
    stated = keys(config, draft.dims)
    if target.uses_mrope:  # the draft rotates by the first position only
        stated["rope.dimension_sections"] = [draft.dims["head"] // 2, 0, 0, 0]
    if config.kind == "DSpark":
        stated["has_confidence_head"] = any(each.name == "conf_proj.weight" for each in draft.plan.tensors)
    table = draft.declare(out, ARCH, stated, outtype)
    out.key("tokenizer.ggml.mask_token_id", config.mask_token)
    out.key(names.HELD_OUT, acceptance(config.root), "f32")
    if (length := config.root.integer(TRAINED_LENGTH)) is not None:
        out.key(names.TRAINED_LENGTH, length)
    return _report(draft, table, out.n_bytes)


def _report(draft: StockDraft[DFlashConfig], table: list[TensorRow], n_bytes: int) -> DraftReport:
    config = draft.config
    return draft_report(
        draft.checkpoint,
        draft.target,
        producer=config.kind,
        evidence=[f"architecture {config.architecture}"],
        layout="stock",
        extended_because=[],
        layer_ids=config.boundaries(),
        layer_ids_source="--aux-layers" if config.layers else f"{config.kind}: as llama.cpp's converter reads them",
        settings={"block_size": config.block_size, "n_vocab_draft": draft.dims["draft_vocab"]},
        tensors=table,
        n_bytes=n_bytes,
        warnings=_warnings(config),
    )


def _warnings(config: DFlashConfig) -> list[str]:
    if config.kind == "DSpark" or not config.samples_from_anchor():
        return config.notes
    return [
        *config.notes,
        f"stock llama.cpp drafts badly with this file: for {config.kind} it does not read sample_from_anchor",
    ]


def convert_dflash(
    checkpoint: Checkpoint, target: Target, output: Path, options: DraftOptions, progress: Progress | None
) -> DraftReport:
    """Convert a DFlash, DFlash2 or DSpark draft. Errors are convert_draft's."""
    options.refuse_eagle3("a DFlash draft", but="aux_layers")
    draft = _read(checkpoint, target, options.aux_layers)
    return write_draft(lambda out, kind: _declare(out, draft, kind), ARCH, output, options, progress)
