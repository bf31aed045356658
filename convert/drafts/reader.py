"""Everything about a draft that must be known, and agree, before a byte of it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from llama_eagle.convert.checkpoint import Checkpoint
from llama_eagle.convert.drafts.config import DraftConfig, read_config
from llama_eagle.convert.drafts.layers import LayerIds, resolve_layer_ids
from llama_eagle.convert.drafts.mapping import DROPPED, REFUSED, Rule, canonical, expand, match
from llama_eagle.convert.drafts.producers import Producer, detect_producer, known_traps
from llama_eagle.convert.drafts.report import DraftOptions
from llama_eagle.convert.drafts.rope import Rope, read_rope
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.drafts.vocab import is_identity, map_vocabulary
from llama_eagle.convert.storage import FLOAT_DTYPES, INTEGER_DTYPES
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.gguf.pairing import FEATURE_TARGETS, LAST_BOUNDARY_TARGETS

MAX_LAYERS = 64
Tensors = dict[str, str]  # canonical name -> name in the checkpoint


@dataclass(frozen=True)
class Mapped:
    """A source tensor and the rule that takes it."""

    source: str
    rule: Rule


@dataclass(frozen=True)
class Flags:
    norm_before_residual: bool
    norm_before_fc: bool
    norm_output: bool


@dataclass(frozen=True)
class Draft:
    """A draft, understood. dims: sizes by the letters of drafts/mapping.py; ids: absolute target ids [D], None if D = V
    and the mapping is the identity; shared_ids: rows to take from the target's head, or None.
    """

    config: DraftConfig
    producer: Producer
    dims: dict[str, int]
    n_layer: int
    flags: Flags
    layer_ids: LayerIds
    rope: Rope
    ids: np.ndarray | None
    shared_ids: np.ndarray | None
    mapped: list[Mapped]
    dropped: dict[str, str]  # name in the checkpoint -> reason
    warnings: list[str]


def read_draft(checkpoint: Checkpoint, target: Target, options: DraftOptions) -> Draft:
    """Raises ConfigError or ConversionError unless configuration, tensors and target fit together."""
    config = read_config(checkpoint.config)
    tensors = _canonical_names(checkpoint)
    _refuse_other_networks(config, tensors)
    warnings: list[str] = []
    dims, n_layer = _dimensions(checkpoint, config, tensors, target)
    ids = _vocabulary(checkpoint, config, tensors, dims, options, warnings)
    mapped, dropped = _apply_table(checkpoint, tensors, dims, n_layer, options, warnings)
    if ids is not None and dims["D"] == dims["V"] and is_identity(ids):
        ids = None
        mapped = [m for m in mapped if m.rule.gguf != "d2t"]
        dropped[tensors["d2t"]] = "the identity"
    flags = _flags(config, tensors, dims["A"], options, warnings)
    shared = _check_ownership(config, tensors, dims, ids, options)
    layer_ids = _layer_ids(config, dims["A"], target, options, warnings)
    geometry = config.geometry
    rope = read_rope(config.layer, geometry.head_dim, geometry.n_ctx, options.rope_base)
    producer = detect_producer(config, checkpoint.names())
    warnings += rope.warnings
    warnings += known_traps(producer.name, config, rope.base, flags.norm_output, options.rope_base is not None)
    warnings += _differences(config, n_layer)
    return Draft(config, producer, dims, n_layer, flags, layer_ids, rope, ids, shared, mapped, dropped, warnings)


def _canonical_names(checkpoint: Checkpoint) -> Tensors:
    tensors: Tensors = {}
    for name in checkpoint.names():
        key = canonical(name)
        if key in tensors:
            raise ConversionError(f"{checkpoint.source}: {tensors[key]!r} and {name[:200]!r} are the same tensor twice")
        tensors[key] = name
    return tensors


def _refuse_other_networks(config: DraftConfig, tensors: Tensors) -> None:
    """Draft heads that are not the network of EAGLE-3, each with its reason."""
    layer, raw = config.layer, config.raw
    kind = raw.text("speculators_model_type")
    eagle = config.eagle.data if config.eagle else {}
    experts = [k for k in ("num_experts", "num_local_experts", "n_routed_experts") if layer.get(k)]
    activation = layer.text("hidden_act") or "silu"

    def has(part: str) -> bool:  # a configuration copied from the target may speak of what the draft has not
        return f"layers.0.{part}.weight" in tensors

    reasons = [
        (kind not in (None, "eagle3"), f"speculators_model_type is {kind!r}, not eagle3"),
        (bool(layer.get("kv_lora_rank")) and not has("self_attn.k_proj"), "its attention is MLA (kv_lora_rank)"),
        (bool(experts) and not has("mlp.gate_proj"), f"its MLP is a mixture of experts ({', '.join(experts)})"),
        (eagle.get("use_aux_hidden_state") is False, "it reads the last hidden state only (use_aux_hidden_state)"),
        ((eagle.get("parallel_draft_step") or 1) != 1, "it drafts several tokens in parallel (parallel_draft_step)"),
        (activation not in ("silu", "swish"), f"its activation is {activation!r}, not silu"),
    ]
    reasons += [(True, reason + f" ({tensors[name]})") for name in tensors if (reason := match(REFUSED, name))]
    for applies, reason in reasons:
        if applies:
            raise ConversionError(f"this draft cannot be converted: {reason}")
    if "fc.weight" not in tensors:
        raise ConversionError("there is no fc.weight: not an EAGLE-3 draft (a target is converted without --target)")
    if not any(name.endswith("hidden_norm.weight") for name in tensors):
        raise ConversionError("there is no hidden_norm.weight: an EAGLE or EAGLE-2 head, which is another network")


def _dimensions(
    checkpoint: Checkpoint, config: DraftConfig, tensors: Tensors, target: Target
) -> tuple[dict[str, int], int]:
    """Sizes by letter, and the layer count. The tensors' own sizes count; shapes are checked against them later."""
    geometry, width = config.geometry, target.hidden_size
    if config.target_hidden_size not in (None, width):
        raise ConversionError(
            f"the draft was trained for a target of hidden size {config.target_hidden_size}, "
            f"{target.name} has {width}; name the right --target"
        )
    fc = checkpoint.info(tensors["fc.weight"]).shape
    if len(fc) != 2 or fc[1] == 0 or fc[1] % width or fc[1] // width > 64:
        raise ConversionError(
            f"fc.weight has shape {list(fc)}: its input is no multiple of the hidden size {width} of {target.name}; "
            "name the right --target"
        )
    n_vocab_draft = target.n_vocab
    if name := tensors.get("d2t"):
        n_vocab_draft = checkpoint.info(name).n_elements
    elif (name := tensors.get("lm_head.weight")) and (shape := checkpoint.info(name).shape):
        n_vocab_draft = shape[0]
    head = geometry.head_dim
    dims = {"H": geometry.hidden_size, "T": width, "A": fc[1] // width, "AT": fc[1], "F": geometry.n_ff}
    dims |= {"Q": geometry.n_head * head, "K": geometry.n_head_kv * head, "d": head}
    dims |= {"D": n_vocab_draft, "V": target.n_vocab}
    layers = {int(m[1]) for name in tensors if (m := re.match(r"layers\.(\d{1,6})\.", name))}
    if layers != set(range(len(layers))) or len(layers) > MAX_LAYERS:
        raise ConversionError(f"layers {sorted(layers)[:8]} are stored; expected 0, 1, ... without gaps")
    return dims, len(layers)


def _vocabulary(
    checkpoint: Checkpoint,
    config: DraftConfig,
    tensors: Tensors,
    dims: dict[str, int],
    options: DraftOptions,
    warnings: list[str],
) -> np.ndarray | None:
    """Absolute ids [D] if there is a d2t, after checking every statement about the vocabularies."""
    n_draft, n_vocab = dims["D"], dims["V"]
    stated = config.n_vocab_draft
    if stated is not None and stated != n_draft:
        raise ConfigError(f"config.json: draft_vocab_size is {stated}, but the tensors have {n_draft} rows")
    if config.n_vocab not in (None, n_vocab, n_draft):
        message = f"config.json: vocab_size is {config.n_vocab}, but the target has {n_vocab} tokens"
        if not options.force:
            raise ConversionError(f"{message}; name the right --target (--force if they are known to fit)")
        warnings.append(f"{message}; accepted by --force")
    name = tensors.get("d2t")
    if name is None:
        if n_draft != n_vocab:
            raise ConversionError(
                f"the head has {n_draft} rows for a target of {n_vocab} tokens, and there is no d2t to tell which"
            )
        return None
    for key in ("d2t", "t2d"):
        if key in tensors and checkpoint.info(tensors[key]).dtype not in INTEGER_DTYPES | {"BOOL", "F32", "F64"}:
            raise ConversionError(f"{key} is stored as {checkpoint.info(tensors[key]).dtype}, expected integers")
    t2d = checkpoint.read(tensors["t2d"]) if "t2d" in tensors else None
    ids, notes = map_vocabulary(checkpoint.read(name), t2d, n_vocab=n_vocab, absolute=options.absolute_d2t)
    warnings += notes
    return ids


def _apply_table(
    checkpoint: Checkpoint,
    tensors: Tensors,
    dims: dict[str, int],
    n_layer: int,
    options: DraftOptions,
    warnings: list[str],
) -> tuple[list[Mapped], dict[str, str]]:
    """Every tensor mapped or dropped for a reason, every required one present, every shape as the table says."""
    table = expand(n_layer, dims["A"])
    mapped, dropped = [], {}
    for name, source in tensors.items():
        if name in table:
            rule, layer = table[name]
            _check_tensor(checkpoint, source, rule, {**dims, "W": dims["H"] * (1 if layer else 2)})
            continue
        reason = match(DROPPED, name)
        if reason is None and not options.force:
            raise ConversionError(
                f"tensor {source[:200]!r} is not part of an EAGLE-3 draft as far as known; --force converts without it"
            )
        if reason is None:
            warnings.append(f"tensor {source[:200]!r} is unknown and left out")
        dropped[source] = reason or "unknown, left out by --force"
    missing = [rule.source for rule, _ in table.values() if rule.required and rule.source not in tensors]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise ConversionError(f"missing: {', '.join(missing[:4])}{more}; is the download complete?")
    mapped = [Mapped(tensors[name], rule) for name, (rule, _) in table.items() if name in tensors]
    return mapped, dropped


def _check_tensor(checkpoint: Checkpoint, source: str, rule: Rule, dims: dict[str, int]) -> None:
    info = checkpoint.info(source)
    expected = tuple(dims[letter] for letter in rule.shape)
    if rule.transform == "ids":
        return  # read and checked as a whole, in any shape
    if info.shape != expected:
        names = " x ".join(rule.shape)
        raise ConversionError(
            f"{source} has shape {list(info.shape)}, expected {list(expected)} ({names}) by config.json and the target"
        )
    if info.dtype not in FLOAT_DTYPES:
        raise ConversionError(f"{source} is stored as {info.dtype}; dequantize the checkpoint first")


def _flags(config: DraftConfig, tensors: Tensors, n_aux: int, options: DraftOptions, warnings: list[str]) -> Flags:
    residual = options.norm_before_residual
    residual = config.norm_before_residual if residual is None else residual
    if residual is None and config.is_speculators:
        raise ConfigError(
            "config.json does not say norm_before_residual, and readers of this format differ about its default; "
            "say --norm-before-residual or --no-norm-before-residual"
        )
    before_fc = _confirmed("norm_before_fc", config.norm_before_fc, "input_norm.weight" in tensors, warnings)
    each = _confirmed("fc_norm", config.fc_norm, any(name.startswith("fc_norm.") for name in tensors), warnings)
    if before_fc and each:
        raise ConfigError("norm_before_fc and fc_norm exclude each other, but this draft has both")
    _check_sets(tensors, n_aux)
    biased = any(name.endswith("_proj.bias") for name in tensors)
    if config.layer.flag("attention_bias") and not biased:
        raise ConfigError("config.json: attention_bias is true, but no bias is stored; is the download complete?")
    output = config.norm_output if options.norm_output is None else options.norm_output
    return Flags(bool(residual), before_fc, bool(output))


def _check_sets(tensors: Tensors, n_aux: int) -> None:
    """Optional tensors that come all together or not at all."""
    norms = [f"fc_norm.{k}.weight" for k in range(n_aux)]
    pairs = [[n, n.replace("q_norm", "k_norm")] for n in tensors if ".q_norm." in n]
    pairs += [[n, n.replace("k_norm", "q_norm")] for n in tensors if ".k_norm." in n]
    for names in (norms, *pairs):
        missing = [name for name in names if name not in tensors]
        if missing and len(missing) < len(names):
            raise ConversionError(f"{missing[0]} is missing, though others of its kind are stored; download again")


def _confirmed(flag: str, stated: bool | None, stored: bool, warnings: list[str]) -> bool:
    """A flag that the presence of its tensors must confirm."""
    if stated is not None and stated != stored:
        found = "are" if stored else "are not"
        raise ConfigError(f"config.json: {flag} is {str(stated).lower()}, but its weights {found} stored")
    if stored and stated is None:
        warnings.append(f"{flag} is taken as true: config.json does not state it, but its weights are stored")
    return stored


def _check_ownership(
    config: DraftConfig, tensors: Tensors, dims: dict[str, int], ids: np.ndarray | None, options: DraftOptions
) -> np.ndarray | None:
    """What is not stored is the target's, if it fits. Returns the target's rows to copy into the file, or None."""
    same_width = dims["H"] == dims["T"]
    if "embed_tokens.weight" not in tensors and not same_width:
        raise ConversionError(
            f"no embed_tokens.weight, and the target's has width {dims['T']}, not {dims['H']}: download again"
        )
    if "lm_head.weight" in tensors:
        return None
    if not same_width:
        raise ConversionError(
            f"no lm_head.weight, and the target's has width {dims['T']}, not {dims['H']}: download again"
        )
    if options.share_head:
        return np.arange(dims["V"]) if ids is None else ids
    if ids is not None:
        raise ConversionError(
            f"no lm_head.weight for the {dims['D']} draft tokens; --share-head takes the target's rows for them"
        )
    if config.logit_scale != 1:
        raise ConversionError("logit_scale needs a head of the draft's own; --share-head copies the target's")
    return None


def _layer_ids(config: DraftConfig, n_aux: int, target: Target, options: DraftOptions, warnings: list[str]) -> LayerIds:
    resolved = resolve_layer_ids(
        n_aux=n_aux,
        n_layer=target.n_layer,
        top=config.ids_top,
        nested=config.ids_nested,
        speculators=config.is_speculators,
        override=options.aux_layers,
    )
    if resolved.warning:
        warnings.append(f"{resolved.warning}: {list(resolved.boundaries)}; --aux-layers overrides")
    architecture = target.architecture
    if architecture and architecture not in FEATURE_TARGETS:
        warnings.append(f"llama.cpp does not hand out layer states of {architecture} targets: it cannot run this pair")
    if resolved.boundaries[-1] == target.n_layer and architecture not in LAST_BOUNDARY_TARGETS:
        message = f"it reads the state after the last block, which llama.cpp does not hand out for {architecture}"
        if not options.force:
            raise ConversionError(f"{message} targets; name other boundaries with --aux-layers, or --force")
        warnings.append(f"{message}; accepted by --force")
    return resolved


def _differences(config: DraftConfig, n_layer: int) -> list[str]:
    """Statements of config.json that the file does not bear out, or that nothing acts on."""
    notes = []
    if config.geometry.n_layer not in (None, n_layer):
        notes.append(f"num_hidden_layers is {config.geometry.n_layer}, but {n_layer} are stored")
    window = config.layer.integer("sliding_window")
    sliding = "sliding_attention" in config.layer.texts("layer_types") or config.layer.flag("use_sliding_window")
    if window and sliding:
        notes.append(f"it was trained with a sliding window of {window} tokens, and will run with full attention")
    return notes
