"""Reader of drafts: all facts, checked for consistency before anything is written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
from llama_eagle.convert.drafts.config import (
    WHERE,
    DraftConfig,
    Masks,
    Window,
    other_layer_lists,
    read_config,
    read_window,
)
from llama_eagle.convert.drafts.family import DROPPED, GEMMA_BLOCK, REFUSED, canonical, match, table
from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.drafts.layers import DEFAULT_LAYERS, LayerIds, resolve_layer_ids, unpublished
from llama_eagle.convert.drafts.producers import DEEPSPEC, Producer, detect_producer, known_traps
from llama_eagle.convert.drafts.report import DraftOptions
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.drafts.vocab import is_identity, map_vocabulary
from llama_eagle.convert.rope import Rope, draft_rope, is_interleaved
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.source.stated import checkpoint_scheme
from llama_eagle.convert.source.storage import INTEGER_DTYPES
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Plan, plan
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.gguf.architectures import capture_problem

MAX_LAYERS = 64
DEPTHS, MAX_DEPTHS = 8, 64  # tokens of one pass of a P-EAGLE draft: speculators' default, our limit


@dataclass(frozen=True)
class Flags:
    norm_before_residual: bool
    norm_before_fc: bool
    norm_output: bool


@dataclass(frozen=True)
class Draft:
    """A draft that has been read.

    dims: sizes by the names of drafts/family.py. shared_ids: rows to copy from the target's head, or None.
    masks: of a P-EAGLE draft, else None.
    """

    config: DraftConfig
    producer: Producer
    dims: dict[str, int]
    n_layer: int
    flags: Flags
    layer_ids: LayerIds
    rope: Rope
    window: Window | None
    masks: Masks | None
    shared_ids: np.ndarray | None
    weights: Weights
    plan: Plan
    warnings: list[str]


@dataclass(frozen=True)
class _Reading:
    """Inputs of the functions below, and warnings for the user."""

    config: DraftConfig
    weights: Weights
    target: Target
    options: DraftOptions
    warnings: list[str] = field(default_factory=list)


def read_draft(checkpoint: Checkpoint, target: Target, options: DraftOptions) -> Draft:
    """Read a draft. Raises ConfigError or ConversionError unless configuration, tensors and target fit together."""
    config = read_config(checkpoint.config)
    weights = Weights(checkpoint, canonical, checkpoint_scheme(checkpoint, draft=True))
    if config.is_gemma:
        head, n_head_kv = gemma4.stored_heads(weights)
        config = replace(config, geometry=replace(config.geometry, head_dim=head, n_head_kv=n_head_kv))
    reading = _Reading(config, weights, target, options)
    _refuse_other_networks(reading)
    geometry = config.geometry
    rope = draft_rope(config.layer, geometry.head_dim, geometry.n_ctx, options.rope_base)
    n_layer = _count_layers(reading)
    dims = {**_dimensions(reading), "n_rot": rope.n_rot}
    ids = _vocabulary(reading, dims)
    planned = _match_table(reading, dims, n_layer, ids)
    flags = _flags(reading, dims["aux"])
    shared = _check_ownership(reading, dims, ids)
    layer_ids = _layer_ids(reading, dims["aux"])
    masks = _masks(reading)
    producer = detect_producer(config, checkpoint.names())
    window, note = read_window(config.layer, n_layer)
    traps = known_traps(
        producer.name,
        rope_base=rope.base,
        norm_output=flags.norm_output,
        overridden=options.rope_base is not None,
        no_layers=layer_ids.source == DEFAULT_LAYERS,
    )
    warnings = [
        *reading.warnings,
        *rope.warnings,
        *traps,
        *_differences(config, n_layer),
        *([note] if note else []),
    ]
    return Draft(
        config=config,
        producer=producer,
        dims=dims,
        n_layer=n_layer,
        flags=flags,
        layer_ids=layer_ids,
        rope=rope,
        window=window,
        masks=masks,
        shared_ids=shared,
        weights=reading.weights,
        plan=planned,
        warnings=warnings,
    )


def _refuse_other_networks(reading: _Reading) -> None:
    """Refuse draft heads that are not the network of EAGLE-3, each with its reason."""
    config, tensors = reading.config, reading.weights
    layer, raw = config.layer, config.raw
    kind = raw.text("speculators_model_type")
    eagle = config.eagle.data if config.eagle else {}
    experts = [k for k in ("num_experts", "num_local_experts", "n_routed_experts") if layer.get(k)]
    activation = layer.text("hidden_activation" if config.is_gemma else "hidden_act") or "silu"
    activations = (gemma4.ACTIVATION,) if config.is_gemma else ("silu", "swish")

    def has(part: str) -> bool:  # a configuration copied from the target may describe parts that the draft lacks
        return f"layers.0.{part}.weight" in tensors

    reasons = [
        (kind not in (None, "eagle3", "peagle"), f"speculators_model_type is {kind!r}, not eagle3 or peagle"),
        (bool(layer.get("kv_lora_rank")) and not has("self_attn.k_proj"), "its attention is MLA (kv_lora_rank)"),
        (bool(experts) and not has("mlp.gate_proj"), f"its MLP is a mixture of experts ({', '.join(experts)})"),
        (eagle.get("use_aux_hidden_state") is False, "it reads the last hidden state only (use_aux_hidden_state)"),
        ((eagle.get("parallel_draft_step") or 1) != 1, "it drafts several tokens in parallel (parallel_draft_step)"),
        (activation not in activations, f"its activation is {activation!r}, not {activations[0]}"),
        (config.is_gemma and "layers.1.hidden_norm.weight" in tensors, "it has several of Gemma's blocks"),
    ]
    reasons += [
        (True, f"{reason} ({tensors.stored_name(name)})")
        for name in tensors.names()
        if (reason := match(REFUSED if config.is_gemma else (*REFUSED, GEMMA_BLOCK), name))
    ]
    for applies, reason in reasons:
        if applies:
            raise ConversionError(f"this draft cannot be converted: {reason}")
    if "fc.weight" not in tensors:
        raise ConversionError("there is no fc.weight: not an EAGLE-3 draft (convert a target without --target)")
    if not any(name.endswith("hidden_norm.weight") for name in tensors.names()):
        raise ConversionError("there is no hidden_norm.weight: an EAGLE or EAGLE-2 head, which is not supported")


def _count_layers(reading: _Reading) -> int:
    layers = {int(m[1]) for name in reading.weights.names() if (m := re.match(r"layers\.(\d{1,6})\.", name))}
    if layers != set(range(len(layers))) or len(layers) > MAX_LAYERS:
        raise ConversionError(f"layers {sorted(layers)[:8]} are stored; expected 0, 1, ... without gaps")
    return len(layers)


def _dimensions(reading: _Reading) -> dict[str, int]:
    """Return sizes by name. The tensors' sizes take precedence; shapes are checked against them later."""
    config, weights, target = reading.config, reading.weights, reading.target
    geometry, width = config.geometry, target.hidden_size
    if config.target_hidden_size not in (None, width):
        raise ConversionError(
            f"the draft was trained for a target of hidden size {config.target_hidden_size}, "
            f"{target.name} has {width}; give the right --target"
        )
    fc = weights.shape("fc.weight")
    if len(fc) != 2 or fc[1] == 0 or fc[1] % width or fc[1] // width > 64:
        raise ConversionError(
            f"fc.weight has shape {list(fc)}: its input is not a multiple of the hidden size {width} of {target.name}; "
            "give the right --target"
        )
    return {
        "embd": geometry.hidden_size,
        "target": width,
        "aux": fc[1] // width,
        "ff": geometry.n_ff,
        "q": geometry.n_head * geometry.head_dim,
        "kv": geometry.n_head_kv * geometry.head_dim,
        "head": geometry.head_dim,
        "draft_vocab": _draft_tokens(reading),
        "vocab": target.n_vocab,
    }


def _draft_tokens(reading: _Reading) -> int:
    weights = reading.weights
    if "d2t" in weights:
        return weights.info("d2t").n_elements
    if "lm_head.weight" in weights and (shape := weights.shape("lm_head.weight")):
        return shape[0]
    return reading.target.n_vocab


def _vocabulary(reading: _Reading, dims: dict[str, int]) -> np.ndarray | None:
    """Return absolute ids [D], or None if the mapping is the identity; check all facts about the vocabularies."""
    config, weights, options = reading.config, reading.weights, reading.options
    n_draft, n_vocab = dims["draft_vocab"], dims["vocab"]
    stated = config.n_vocab_draft
    if stated is not None and stated != n_draft:
        raise ConfigError(f"config.json: draft_vocab_size is {stated}, but the tensors have {n_draft} rows")
    if config.n_vocab not in (None, n_vocab, n_draft):
        message = f"config.json: vocab_size is {config.n_vocab}, but the target has {n_vocab} tokens"
        if not options.force:
            raise ConversionError(f"{message}; give the right --target (--force if they are known to fit)")
        reading.warnings.append(f"{message}; accepted by --force")
    if "d2t" not in weights:
        if n_draft != n_vocab:
            raise ConversionError(
                f"the head has {n_draft} rows for a target of {n_vocab} tokens, but there is no d2t to map them"
            )
        return None
    for key in ("d2t", "t2d"):
        if key in weights and weights.info(key).dtype not in INTEGER_DTYPES | {"BOOL", "F32", "F64"}:
            raise ConversionError(f"{key} is stored as {weights.info(key).dtype}, expected integers")
    t2d = weights.read("t2d") if "t2d" in weights else None
    ids, notes = map_vocabulary(weights.read("d2t"), t2d, n_vocab=n_vocab, absolute=options.absolute_d2t)
    reading.warnings.extend(notes)
    weights.replace("d2t", ids)
    return None if n_draft == n_vocab and is_identity(ids) else ids


def _match_table(reading: _Reading, dims: dict[str, int], n_layer: int, ids: np.ndarray | None) -> Plan:
    """Map or drop every tensor, check that every required one is present and that every shape matches the table."""

    def dropped(name: str) -> str | None:
        if reason := match(DROPPED, name):
            return reason
        stored = reading.weights.stored_name(name)[:200]
        if not reading.options.force:
            raise ConversionError(f"tensor {stored!r} is unknown in an EAGLE-3 draft; --force converts without it")
        reading.warnings.append(f"tensor {stored!r} is unknown and was dropped")
        return "unknown, dropped by --force"

    gemma = None
    if reading.config.is_gemma:
        gemma = "layers.0.self_attn.v_proj.weight" not in reading.weights
    config = reading.config
    interleaved = is_interleaved(Fields({**config.raw.data, **config.layer.data}, config.layer.where))
    if interleaved and config.is_gemma:
        raise ConfigError(f"{WHERE}: is_neox_style is false, which is not supported for Gemma's block")
    sections = table(n_layer, dims["aux"], config.logit_scale, gemma, interleaved=interleaved)
    planned = plan(sections, reading.weights, dims, dropped)
    if ids is None and "d2t" in reading.weights:
        planned.tensors = [tensor for tensor in planned.tensors if tensor.name != "d2t"]
        planned.dropped["d2t"] = "the identity"
    return planned


def _flags(reading: _Reading, n_aux: int) -> Flags:
    config, tensors, options = reading.config, reading.weights, reading.options
    residual = options.norm_before_residual
    residual = config.norm_before_residual if residual is None else residual
    if residual is None and config.is_speculators:
        raise ConfigError(
            "config.json has no norm_before_residual, and readers of this format differ about its default; "
            "give --norm-before-residual or --no-norm-before-residual"
        )
    before_fc = _confirmed(reading, "norm_before_fc", config.norm_before_fc, "input_norm.weight" in tensors)
    each = _confirmed(reading, "fc_norm", config.fc_norm, any(name.startswith("fc_norm.") for name in tensors.names()))
    if before_fc and each:
        raise ConfigError("norm_before_fc and fc_norm exclude each other, but this draft has both")
    _check_sets(tensors, n_aux)
    biased = any(name.endswith("_proj.bias") for name in tensors.names())
    if config.layer.flag("attention_bias") and not biased:
        raise ConfigError("config.json: attention_bias is true, but no bias is stored; is the download complete?")
    output = config.norm_output if options.norm_output is None else options.norm_output
    return Flags(bool(residual), before_fc, bool(output))


def _masks(reading: _Reading) -> Masks | None:
    """Return the mask rows of a P-EAGLE draft, whose learned states for them are stored."""
    masks, is_stored = reading.config.masks, "mask_hidden" in reading.weights
    if masks is None and not is_stored:
        return None
    if not is_stored:
        raise ConversionError("config.json describes a P-EAGLE draft, but there is no mask_hidden; download again")
    token, n_vocab = masks.token if masks else None, reading.target.n_vocab
    if token is None or not 0 <= token < n_vocab:
        raise ConfigError(
            f"{WHERE}: the mask token of this P-EAGLE draft is {token}, expected an id below {n_vocab} as mask_token_id"
        )
    n_depths = masks.n_depths if masks else None
    if n_depths is None:
        reading.warnings.append(f"{WHERE} states no num_depths: up to {DEPTHS} tokens a pass, speculators' default")
    elif not 1 <= n_depths <= MAX_DEPTHS:
        raise ConfigError(f"{WHERE}: the draft proposes {n_depths} tokens in one pass, expected 1 to {MAX_DEPTHS}")
    return Masks(token, n_depths or DEPTHS)


def _check_sets(tensors: Weights, n_aux: int) -> None:
    """Check optional tensors that must be stored all together or not at all."""
    norms = [f"fc_norm.{k}.weight" for k in range(n_aux)]
    pairs = [[n, n.replace("q_norm", "k_norm")] for n in tensors.names() if ".q_norm." in n]
    pairs += [[n, n.replace("k_norm", "q_norm")] for n in tensors.names() if ".k_norm." in n]
    for names in (norms, *pairs):
        missing = [name for name in names if name not in tensors]
        if missing and len(missing) < len(names):
            raise ConversionError(f"{missing[0]} is missing, though others of its kind are stored; download again")


def _confirmed(reading: _Reading, flag: str, stated: bool | None, stored: bool) -> bool:
    """Return a flag after comparing it with the presence of its tensors."""
    if stated is not None and stated != stored:
        found = "are" if stored else "are not"
        raise ConfigError(f"config.json: {flag} is {str(stated).lower()}, but its weights {found} stored")
    if stored and stated is None:
        reading.warnings.append(f"{flag} is assumed true: config.json does not state it, but its weights are stored")
    return stored


def _check_ownership(reading: _Reading, dims: dict[str, int], ids: np.ndarray | None) -> np.ndarray | None:
    """Check that the target's tensors can replace missing ones. Returns the target's rows to copy, or None."""
    tensors = reading.weights
    same_width = dims["embd"] == dims["target"]
    if "embed_tokens.weight" not in tensors and not same_width:
        raise ConversionError(
            f"no embed_tokens.weight, and the target's has width {dims['target']}, not {dims['embd']}: download again"
        )
    if "lm_head.weight" in tensors:
        return None
    if not same_width:
        raise ConversionError(
            f"no lm_head.weight, and the target's has width {dims['target']}, not {dims['embd']}: download again"
        )
    if reading.options.share_head:
        return np.arange(dims["vocab"]) if ids is None else ids
    if ids is not None:
        raise ConversionError(
            f"no lm_head.weight for the {dims['draft_vocab']} draft tokens; --share-head copies the target's rows"
        )
    if reading.config.logit_scale != 1:
        raise ConversionError("logit_scale needs an output head in the draft; --share-head copies the target's")
    return None


def _layer_ids(reading: _Reading, n_aux: int) -> LayerIds:
    config, target, options, warnings = reading.config, reading.target, reading.options, reading.warnings
    _check_other_lists(reading)
    resolved = resolve_layer_ids(
        n_aux=n_aux,
        n_layer=target.n_layer,
        top=config.ids_top,
        nested=config.ids_nested,
        speculators=config.is_speculators,
        outputs=config.architecture in DEEPSPEC,
        override=options.aux_layers,
    )
    if resolved.warning:
        warnings.append(f"{resolved.warning}: {list(resolved.boundaries)}; --aux-layers overrides")
    architecture = target.architecture
    if architecture and (problem := capture_problem(architecture)):
        warnings.append(f"{problem}. It cannot run this pair")
    if message := unpublished(resolved.boundaries, target):
        if not options.force:
            raise ConversionError(f"{message}; give other boundaries with --aux-layers, or --force")
        warnings.append(f"{message}; accepted by --force")
    return resolved


def _check_other_lists(reading: _Reading) -> None:
    """Refuse or warn about a list of layers under an unknown name, depending on the need for one."""
    config, override = reading.config, reading.options.aux_layers
    stated = config.ids_nested if config.ids_top is None else config.ids_top
    for key, value, is_named in other_layer_lists(config, reading.target.n_layer):
        if value == stated:
            continue
        if is_named and stated is None and override is None:
            raise ConversionError(
                f"{WHERE}: {key} is {str(value)[:80]}: the key is unknown, but seems to list the layers that the draft "
                "reads. Give them with --aux-layers"
            )
        if override is None:
            reading.warnings.append(f"{WHERE}: {key} is {str(value)[:80]}, which is ignored")


def _differences(config: DraftConfig, n_layer: int) -> list[str]:
    """Return warnings about statements of config.json that differ from the file or have no effect."""
    notes = []
    if config.geometry.n_layer not in (None, n_layer):
        notes.append(f"num_hidden_layers is {config.geometry.n_layer}, but {n_layer} are stored")
    return notes
