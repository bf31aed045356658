"""A draft's config.json, read with types and without invented defaults.

Producers put the same facts in three places: the top level, a nested `eagle_config`, and (speculators) a
`transformer_layer_config` for the geometry. None is preferred silently: a disagreement of two places is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.source.config import Fields, head_size, key_value_heads
from llama_eagle.errors import ConfigError

WHERE = "config.json"
ACCEPTANCE = "held_out_acceptance"  # of our trainer: rates by position on its held-out data
TRAINED_LENGTH = "trained_length"  # of our trainer: tokens of its longest text


@dataclass(frozen=True)
class Geometry:
    """Configured sizes. Those that tensors determine (H, F, layers) are compared with them later."""

    hidden_size: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_layer: int | None
    n_ctx: int
    rms_eps: float


@dataclass(frozen=True)
class Window:
    """Sliding-window attention: in the marked layers, a token attends to the last `size` tokens, including itself."""

    size: int
    pattern: tuple[bool, ...]


@dataclass(frozen=True)
class Masks:
    """P-EAGLE: rows of a mask token, which propose the tokens after the first in the same pass.

    token: None if no key names it. n_depths: tokens of a pass, the first one included; None if no key states it.
    """

    token: int | None
    n_depths: int | None


# Keys of the mask token: speculators and NeMo; vLLM.
_MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


def read_masks(raw: Fields) -> Masks | None:
    """Return the mask rows of a P-EAGLE draft; None if config.json does not describe one."""
    is_parallel = raw.flag("parallel_drafting") or "PEagleDraftModel" in raw.texts("architectures")
    if raw.text("speculators_model_type") != "peagle" and not is_parallel:
        return None
    tokens = {key: token for key in _MASK_KEYS if (token := raw.integer(key)) is not None}
    if len(set(tokens.values())) > 1:
        raise ConfigError(f"{raw.where}: the mask tokens differ: {tokens}; correct one of them")
    return Masks(next(iter(tokens.values()), None), raw.integer("num_depths") or _proposed(raw))


def _proposed(raw: Fields) -> int | None:
    """Return the number of tokens of the default proposal in the format of speculators."""
    speculators = raw.child("speculators_config")
    methods = speculators.get("proposal_methods") if speculators else None
    default = speculators.get("default_proposal_method") if speculators else None
    for method in methods if isinstance(methods, list) else []:
        if isinstance(method, dict) and default in (None, method.get("proposal_type")):
            return Fields(method, f"{raw.where}: proposal_methods").integer("speculative_tokens")
    return None


def read_window(layer: Fields, n_layer: int) -> tuple[Window | None, str | None]:
    """Return the window of a draft of n_layer layers, and a warning if config.json describes another number."""
    size, kinds = layer.integer("sliding_window"), layer.texts("layer_types")
    if size is None or not ("sliding_attention" in kinds or layer.flag("use_sliding_window")):
        return None, None
    if not kinds:  # transformers' convention for Qwen: from this layer on
        first = layer.get("max_window_layers", 0)
        if type(first) is not int:
            raise layer.bad("max_window_layers", "an integer")
        kinds = ["full_attention"] * min(max(first, 0), n_layer) + ["sliding_attention"] * (n_layer - max(first, 0))
    if len(kinds) != n_layer:
        note = f"layer_types has {len(kinds)} layers, {n_layer} are stored: its sliding window of {size} is ignored"
        return None, note
    pattern = tuple(kind == "sliding_attention" for kind in kinds)
    return (Window(size, pattern) if any(pattern) else None), None


# Keys of the layers that a draft reads, at the top level or in eagle_config; the first is the most common.
LAYER_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
_NAMES_LAYERS = re.compile(
    r"(?i)layer.*(id|index|indices|idx|capture|feature|aux)|(aux|feature|hidden|capture|target|selected).*layers?$"
)
_OTHER_LAYERS = {"mlp_only_layers", "no_rope_layers"}  # layers of Qwen's and Llama's own blocks
_OTHER_LISTS = {"eos_token_id", "bos_token_id", "pad_token_id", "mrope_section"}
_DIGITS = re.compile(r"[\d\s,.'\"\[\]-]+")


@dataclass(frozen=True)
class DraftConfig:
    """A draft's configuration. Flags are None if no place states them."""

    raw: Fields
    layer: Fields  # where geometry and RoPE are: transformer_layer_config, else the top level
    eagle: Fields | None  # nested eagle_config
    architecture: str
    is_speculators: bool
    geometry: Geometry
    n_vocab: int | None
    n_vocab_draft: int | None
    target_hidden_size: int | None
    norm_before_residual: bool | None
    norm_before_fc: bool | None
    fc_norm: bool | None
    norm_output: bool | None
    ids_top: list[int] | None  # LAYER_KEYS at the top level
    ids_nested: list[int] | None  # the same in eagle_config
    logit_scale: float
    logit_softcap: float | None
    masks: Masks | None
    acceptance: list[float]  # by position, on the trainer's held-out data; empty if unknown
    trained_length: int | None

    @property
    def is_gemma(self) -> bool:
        """True if its block is Gemma 4's."""
        return self.architecture == gemma4.EAGLE3


def read_config(data: dict[str, Any]) -> DraftConfig:
    raw = Fields(data)
    eagle = raw.child("eagle_config")
    layer = raw.child("transformer_layer_config") or raw
    nested = eagle or Fields({})
    if raw.texts("architectures") != [gemma4.EAGLE3]:  # whose sizes are there
        layer.require("per_layer_config", {})
    scale = raw.number("logit_scale")
    if scale is not None and scale <= 0:
        raise ConfigError(f"{WHERE}: logit_scale is {scale}, expected a positive number")
    return DraftConfig(
        raw=raw,
        layer=layer,
        eagle=eagle,
        architecture=next(iter(raw.texts("architectures")), ""),
        is_speculators=_is_speculators(raw),
        geometry=_geometry(layer),
        n_vocab=layer.integer("vocab_size") or raw.integer("vocab_size"),
        n_vocab_draft=_agreed(raw.integer("draft_vocab_size"), nested.integer("draft_vocab_size"), "draft_vocab_size"),
        target_hidden_size=raw.integer("target_hidden_size") or nested.integer("target_hidden_size"),
        norm_before_residual=_flag(raw, nested, "norm_before_residual"),
        norm_before_fc=_norm_before_fc(raw, nested),
        fc_norm=_flag(raw, nested, "fc_norm", "use_aux_norm"),
        norm_output=_flag(raw, nested, "norm_output", "return_hidden_post_norm"),
        ids_top=_layer_ids(raw),
        ids_nested=_layer_ids(nested),
        logit_scale=1.0 if scale is None else scale,
        logit_softcap=layer.number("final_logit_softcapping"),
        masks=read_masks(raw),
        acceptance=acceptance(raw),
        trained_length=raw.integer(TRAINED_LENGTH),
    )


def acceptance(raw: Fields) -> list[float]:
    """Return the held-out acceptance rates by position that our trainer measured; empty without."""
    rates = raw.get(ACCEPTANCE, [])
    if not isinstance(rates, list) or not all(isinstance(rate, (int, float)) and 0 <= rate <= 1 for rate in rates):
        raise raw.bad(ACCEPTANCE, "rates from 0 to 1")
    return [float(rate) for rate in rates]


def _layer_ids(fields: Fields) -> list[int] | None:
    """Return the ids of the layers that the draft reads, under any of their names; different ids are an error."""
    found = {key: ids for key in LAYER_KEYS if (ids := fields.integers(key)) is not None}
    if len({tuple(sorted(ids)) for ids in found.values()}) > 1:
        raise ConfigError(f"{fields.where}: the layer ids differ: {found}; correct one of them, or use --aux-layers")
    return next(iter(found.values()), None)


def other_layer_lists(config: DraftConfig, n_layer: int) -> Iterator[tuple[str, Any, bool]]:
    """Yield entries that could name layers under unknown keys: (key, value, True if the key's name suggests it)."""
    for place, key, value in _entries(config.raw.data):
        if key in LAYER_KEYS and place in ("", "eagle_config."):
            continue
        is_named = bool(_NAMES_LAYERS.search(key)) and key not in _OTHER_LAYERS
        if is_named and value and isinstance(value, (list, str)) and _DIGITS.fullmatch(str(value)):
            yield f"{place}{key}", value, True
        elif _is_list_of_layers(value, n_layer) and key not in _OTHER_LISTS | _OTHER_LAYERS:
            yield f"{place}{key}", value, False


def _entries(data: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield entries at any depth, through objects and lists of them: (parent keys, each with a dot; key; value)."""
    for key, value in data.items():
        yield place, key, value
        for n, inner in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(inner, dict):
                yield from _entries(inner, f"{place}{key}." if n is None else f"{place}{key}.{n}.")


def _is_list_of_layers(value: Any, n_layer: int) -> bool:
    """Return True if these could be the states of n_layer blocks; the last one is that after all of them."""
    return isinstance(value, list) and bool(value) and all(type(v) is int and 0 <= v <= n_layer for v in value)


def _is_speculators(raw: Fields) -> bool:
    keys = ("speculators_model_type", "speculators_version", "speculators_config")
    names = ("Eagle3Speculator", "Eagle3DraftModel", "PEagleDraftModel")
    return any(raw.get(key) is not None for key in keys) or any(a in names for a in raw.texts("architectures"))


def _geometry(layer: Fields) -> Geometry:
    hidden, n_head = layer.need_integer("hidden_size"), layer.need_integer("num_attention_heads")
    n_head_kv, head_dim = key_value_heads(layer, n_head), head_size(layer, hidden, n_head)
    if head_dim % 2:
        raise ConfigError(f"{layer.where}: head_dim is {head_dim}; rotary embeddings need an even one")
    return Geometry(
        hidden_size=hidden,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_ff=layer.need_integer("intermediate_size"),
        n_layer=layer.integer("num_hidden_layers"),
        n_ctx=layer.need_integer("max_position_embeddings"),
        rms_eps=layer.need_epsilon("rms_norm_eps"),
    )


def _agreed(top: Any, nested: Any, what: str) -> Any:
    """Return the value from the place that states it; different values are an error."""
    if top is not None and nested is not None and top != nested:
        raise ConfigError(
            f"{WHERE}: {what} is {top} at the top level but {nested} in eagle_config; correct one of them"
        )
    return nested if top is None else top


def _flag(raw: Fields, nested: Fields, *names: str) -> bool | None:
    """Return a flag under any of its names, from either place."""
    value: bool | None = None
    for name in names:
        value = _agreed(value, _agreed(raw.flag(name), nested.flag(name), name), " or ".join(names))
    return value


def _norm_before_fc(raw: Fields, nested: Fields) -> bool | None:
    """Return the flag; the nested value takes precedence here, as in SGLang and vLLM."""
    inner = nested.flag("norm_before_fc")
    return raw.flag("norm_before_fc") if inner is None else inner
