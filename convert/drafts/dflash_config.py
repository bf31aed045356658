"""Configuration of a DFlash, DFlash2 or DSpark draft, and the GGUF keys that follow from it."""

from __future__ import annotations

from typing import Any

from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.rope import rotated
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.table import Dims
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims
from llama_eagle.errors import ConfigError, ConversionError

_DFLASH = ("DFlashDraftModel", "DFlashSpeculator", "DFlash2DraftModel")
_DSPARK = (
    gemma4.DSPARK,
    "Qwen3DSparkModel",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "Lfm2DSparkDraftModel",
    "LingDSparkModel",
)
_OTHERS = ("DeepseekV4DSparkModel",)  # with other blocks, which only upstream's converter reads

_FACTORS = {
    "attention_value_scale": "attention.value_scale",
    "output_multiplier": "logit_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "input_embedding_scale": "embedding_scale",
}
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def is_dflash(config: dict[str, Any]) -> bool:
    """Return True if this is the config.json of a draft that drafts in blocks."""
    names = config.get("architectures")
    known = isinstance(names, list) and any(name in (*_DFLASH, *_DSPARK, *_OTHERS) for name in names)
    return known or config.get("speculators_model_type") in ("dflash", "dflash2", "dspark")


class DFlashConfig(ModelConfig):
    """Configuration of the blocks: the top level, overlaid by transformer_layer_config.

    settings: those of the method, from dflash_config before the top level.
    """

    def __init__(self, config: dict[str, Any], source: str) -> None:
        super().__init__(config, source, part="transformer_layer_config")
        inner = self.root.child("dflash_config")
        self.settings = Fields({**self.data, **(inner.data if inner else {})}, self.where)
        self.architecture = next(iter(self.root.texts("architectures")), "")
        if self.architecture in _OTHERS:
            raise ConversionError(f"{source}: {self.architecture} is read by llama.cpp's convert_hf_to_gguf.py only")
        if (arch := self.settings.get("model_arch")) not in (None, "dflash"):
            raise ConversionError(f"{source}: a draft of another network (model_arch {arch!r}), not of DFlash")
        self.is_dspark = self.architecture in _DSPARK or "dspark" in (
            self.root.get("speculators_model_type"),
            self.settings.get("projector_type"),
        )
        is_second = self.settings.get("selector_rank") is not None
        has_markov = self.is_dspark and self.settings.get("markov_rank") != 0
        self.kind = "DSpark" if has_markov else "DFlash2" if is_second else "DFlash"
        self._refuse_other_parts()
        self.require("attention_bias", False)
        if self.architecture != gemma4.DSPARK:  # whose sizes are there
            self.require("per_layer_config", {})

    def _refuse_other_parts(self) -> None:
        """Refuse projectors and Markov heads of other networks, by name."""
        projector = self.settings.get("projector_type")
        if projector not in (None, "dflash", "dspark"):
            raise ConversionError(f"{self.where}: a projector of type {projector!r}, expected dflash or dspark")
        head = self.settings.get("markov_head_type")
        if self.kind == "DSpark" and head not in (None, "vanilla"):
            raise ConversionError(f"{self.where}: a Markov head of type {head!r}, only 'vanilla' is supported")

    @property
    def block_size(self) -> int:
        """Number of tokens drafted at once."""
        return self.settings.integer("block_size") or 16  # default: that of the authors' drafts

    def boundaries(self) -> list[int]:
        """Return the boundaries that it reads: aux_hidden_state_layer_ids unchanged, target_layer_ids as outputs."""
        if (ids := self.root.integers("aux_hidden_state_layer_ids")) is not None:
            return ids
        if (ids := self.settings.integers("target_layer_ids")) is None:
            raise ConfigError(f"{self.where}: target_layer_ids and aux_hidden_state_layer_ids are missing")
        return [i + 1 for i in ids]

    def samples_from_anchor(self) -> bool:
        """Return True if the block's first place drafts a token.

        By default it does in DSpark drafts, except those in the format of speculators.
        """
        stated = self.settings.flag("sample_from_anchor")
        speculators = any(self.root.get(key) for key in ("transformer_layer_config", "aux_hidden_state_layer_ids"))
        return self.is_dspark and not speculators if stated is None else stated


def sizes(config: DFlashConfig) -> dict[str, int]:
    dims, settings = dense_dims(config), config.settings
    kernel, group = settings.integer("conv_kernel_size") or 1, settings.integer("conv_group_size") or dims["embd"]
    rank = settings.integer({"DFlash2": "selector_rank", "DSpark": "markov_rank"}.get(config.kind, "")) or 0
    return {
        **dims,
        "aux": len(config.boundaries()),
        "kernel": kernel,
        "taps": 2 * kernel * (dims["embd"] // group),
        "rank": rank,
        "embd_rank": dims["embd"] + rank,
    }


def keys(config: DFlashConfig, dims: Dims) -> dict[str, Any]:
    """Return the keys without the architecture's prefix."""
    settings = config.settings
    found: dict[str, Any] = {"block_count": dims["n_layer"], **common_keys(config, dims)}
    if config.rope.get("partial_rotary_factor") is not None:
        found["rope.dimension_count"] = rotated(config.rope, dims["head"])
    found["block_size"] = config.block_size
    if config.kind == "DFlash2":
        found |= {name: settings.need_integer(name) for name in _DFLASH2}
    found |= {key: settings.need_number(name) for name, key in _FACTORS.items() if settings.get(name)}
    if config.architecture == gemma4.DSPARK:
        found |= {
            "embedding_scale": dims["embd"] ** 0.5,
            "attention.scale": 1.0,
            "hidden_activation": gemma4.ACTIVATION,
        }
        found["rope.dimension_count"] = dims["head"]
    found |= {"target_layers": config.boundaries(), **_window_keys(config, dims["n_layer"])}
    causal = settings.flag("causal") if settings.get("is_causal") is None else settings.flag("is_causal")
    if causal is not None:
        found["attention.causal"] = causal
    if config.kind == "DSpark" or config.samples_from_anchor():
        found["sample_from_anchor"] = config.samples_from_anchor()
    return found


def _window_keys(config: DFlashConfig, n_layer: int) -> dict[str, Any]:
    settings, kinds = config.settings, config.texts("layer_types")
    everywhere = settings.flag("use_swa") or False
    size = settings.integer("swa_window_size") or config.integer("sliding_window")
    # speculators writes no use_sliding_window, therefore the kinds of its layers decide.
    by_kind = bool(config.root.get("transformer_layer_config")) and "sliding_attention" in kinds
    if not size or not (everywhere or by_kind or config.flag("use_sliding_window")):
        return {}
    pattern = [True] * n_layer if everywhere else [kind == "sliding_attention" for kind in kinds]
    if len(pattern) != n_layer:
        raise ConfigError(f"{config.where}: layer_types must have num_hidden_layers ({n_layer}) entries")
    return {"attention.sliding_window": size, "attention.sliding_window_pattern": pattern}
