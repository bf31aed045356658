"""Configuration of a DFlash, DFlash2 or DSpark draft, and the GGUF keys that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.rope import is_interleaved, rotated
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.table import Dims
from llama_eagle.convert.targets.config import ModelConfig, common_keys, dense_dims
from llama_eagle.errors import ConfigError, ConversionError

_DFLASH = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "DFlash2DraftModel",
    "Qwen3DFlashDraftModel",  # NeMo Automodel, for DFlash2 too
    "Qwen3DFlash2DraftModel",
    "QwenDFlashDraftModel",  # AngelSlim
    "MuseGlimmerAssistantModel",
)
# Their classes rotate whole heads, also if config.json has a partial rotation, copied from a target. Their trainers use
# no causal mask.
_OWN_CLASSES = ("Qwen3DFlashDraftModel", "Qwen3DFlash2DraftModel", "QwenDFlashDraftModel")
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
MARKOV_HEADS = ("vanilla", "gated", "rnn")
_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def is_dflash(config: dict[str, Any], names: Collection[str] = ()) -> bool:
    """Return True if this is a draft that drafts in blocks, by its tensors, or else by the keys and class it states.

    names: of the tensors, without prefixes. The norm of the target's features belongs to the model here, and to a layer
    in EAGLE-3.
    """
    if any(name.endswith("hidden_norm.weight") for name in names):
        return "hidden_norm.weight" in names
    classes = config.get("architectures")
    known = isinstance(classes, list) and any(name in (*_DFLASH, *_DSPARK, *_OTHERS) for name in classes)
    stated = isinstance(config.get("dflash_config"), dict)
    return known or stated or config.get("speculators_model_type") in ("dflash", "dflash2", "dspark")


def with_class_defaults(config: dict[str, Any], n_vocab: int) -> dict[str, Any]:
    """Return config.json with the keys that Muse Glimmer's assistant leaves to its class. n_vocab: of the target."""
    if config.get("architectures") != ["MuseGlimmerAssistantModel"]:
        return config
    return {"vocab_size": n_vocab, "use_sliding_window": True, "is_causal": False, **config}


class DFlashConfig(ModelConfig):
    """Configuration of the blocks: the top level, overlaid by transformer_layer_config.

    settings: those of the method, from dflash_config before the top level. layers: boundaries named by the user.
    """

    def __init__(self, config: dict[str, Any], source: str, layers: Sequence[int] | None = None) -> None:
        super().__init__(config, source, part="transformer_layer_config")
        self.layers = layers
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
        self.is_interleaved = is_interleaved(self)
        self.notes = [
            *self._unknown_class(),
            *self._whole_heads(),
            *self._captured_layers(),
            *self._plain_logits(),
            *self._two_causalities(),
        ]
        if self.architecture == gemma4.DSPARK:
            self.require("is_neox_style", True)
            self.require("rope_is_neox_style", True)
        else:  # sizes of Gemma's layers are there
            self.require("per_layer_config", {})

    def _unknown_class(self) -> list[str]:
        if self.architecture in (*_DFLASH, *_DSPARK, ""):
            return []
        return [f"the class {self.architecture} is unknown: its tensors and keys are read as those of {self.kind}"]

    def _whole_heads(self) -> list[str]:
        """Leave out a partial rotation that the class of the draft ignores. Returns a note for the user."""
        part = self.rope.get("partial_rotary_factor", 1)
        if part == 1 or self.architecture not in _OWN_CLASSES:
            return []
        self.rope = Fields({**self.rope.data, "partial_rotary_factor": None}, self.rope.where)
        return [f"partial_rotary_factor {part} is ignored, as by {self.architecture}, which rotates whole heads"]

    def _plain_logits(self) -> list[str]:
        """Return notes on factors of the logits that a Markov head is trained without. Gemma's is trained with them."""
        if self.kind != "DSpark" or self.architecture == gemma4.DSPARK:
            return []
        stated = [name for name in ("output_multiplier", "final_logit_softcapping") if self.settings.get(name)]
        return [f"{name} has no effect in a DSpark draft" for name in stated if self.settings.number(name) != 1]

    def _two_causalities(self) -> list[str]:
        stated = self.settings.flag("is_causal")
        if stated in (None, self.causal):
            return []
        return [f"is_causal {stated} is ignored: causal is {self.causal}"]

    def _captured_layers(self) -> list[str]:
        """Return a note if AngelSlim's trainer may have read other layers than target_layer_ids."""
        key, ids = "aux_hidden_states_layer_ids", self.settings.integers("target_layer_ids") or []
        n_target = self.integer("num_target_layers") or 0
        captured = [1, n_target // 2 - 1, n_target - 4]
        stated = self.layers is not None or self.root.get(key) is not None
        if self.architecture != "QwenDFlashDraftModel" or stated or len(ids) != 3 or ids == captured:
            return []
        boundaries = f" {','.join(str(i + 1) for i in captured)}" if n_target > 4 else ""
        return [
            f"{key} is not stated, without which AngelSlim's trainer reads the outputs 1, L/2 - 1 and L - 4 instead of "
            f"target_layer_ids {ids}; if drafts are not accepted, convert with --aux-layers{boundaries}"
        ]

    def _refuse_other_parts(self) -> None:
        """Refuse projectors and Markov heads of other networks, by name."""
        projector = self.settings.get("projector_type")
        if projector not in (None, "dflash", "dspark"):
            raise ConversionError(f"{self.where}: a projector of type {projector!r}, expected dflash or dspark")
        if self.kind == "DSpark" and self.markov not in MARKOV_HEADS:
            raise ConversionError(
                f"{self.where}: markov_head_type is {self.markov!r}, expected {', '.join(MARKOV_HEADS)}"
            )
        if self.kind == "DSpark" and self.markov == "rnn" and not self.samples_from_anchor():
            raise ConversionError(
                f"{self.where}: a recurrent Markov head (rnn) with sample_from_anchor false is not supported"
            )

    @property
    def causal(self) -> bool | None:
        """Causality of the blocks in all layers, None if it is not stated."""
        causal = self.settings.flag("causal")  # NeMo's JetSpec drafts also have is_causal, of their parent class
        return self.settings.flag("is_causal") if causal is None else causal

    def windows_are_causal(self) -> bool:
        """Return whether rows of a block attend to earlier ones alone in layers with a window, if nothing says so."""
        if self.is_speculators:
            second = self.root.get("speculators_model_type") == "dflash2"
            stated = self.root.flag("sliding_window_non_causal")
            return not (second if stated is None else stated)
        return self.architecture not in _OWN_CLASSES and "sliding_attention" in self.texts("layer_types")

    @property
    def is_speculators(self) -> bool:
        """True for the format of the speculators package."""
        return any(self.root.get(key) for key in ("transformer_layer_config", "aux_hidden_state_layer_ids"))

    @property
    def markov(self) -> str:
        """Type of the Markov head."""
        return (self.settings.text("markov_head_type") or MARKOV_HEADS[0]).lower()

    @property
    def block_size(self) -> int:
        """Number of tokens drafted at once."""
        return self.settings.integer("block_size") or 16  # default: that of the authors' drafts

    @property
    def mask_token(self) -> int:
        """Id of the token in all places of a block but the first."""
        token, n_vocab = self.settings.get("mask_token_id"), self.need_integer("vocab_size")
        if type(token) is not int or not 0 <= token < n_vocab:
            found = "missing" if token is None else token
            raise ConfigError(
                f"{self.where}: the mask token is {found}, expected an id below {n_vocab}; set "
                "dflash_config.mask_token_id (in the format of speculators: mask_token_id) to that of the training"
            )
        return token

    def boundaries(self) -> list[int]:
        """Return the boundaries that it reads: those of the user, or of config.json.

        aux_hidden_state_layer_ids are boundaries. target_layer_ids are outputs, and so are aux_hidden_states_layer_ids,
        by which AngelSlim's trainer captures.
        """
        if self.layers is not None:
            return list(self.layers)
        outputs = {"target_layer_ids": self.settings, "aux_hidden_states_layer_ids": self.root}
        found = {name: [i + 1 for i in ids] for name, part in outputs.items() if (ids := part.integers(name))}
        if ids := self.root.integers("aux_hidden_state_layer_ids"):
            found["aux_hidden_state_layer_ids"] = ids
        if not found:
            raise ConfigError(
                f"{self.where}: target_layer_ids and aux_hidden_state_layer_ids are missing; give the layers with "
                f"--aux-layers{self._usual_layers()}"
            )
        if len(set(map(tuple, found.values()))) > 1:
            stated = "; ".join(f"{name}: {','.join(map(str, ids))}" for name, ids in found.items())
            raise ConfigError(f"{self.where}: the layers differ (as boundaries: {stated}); give one with --aux-layers")
        return next(iter(found.values()))

    def _usual_layers(self) -> str:
        """Return the layers that the classes of z-lab, NeMo and AngelSlim assume without ids, as an option's value."""
        n_target, n = self.integer("num_target_layers"), self.need_integer("num_hidden_layers")
        if n_target is None or n_target < n + 4:
            return ""
        last = n_target - 3
        ids = [n_target // 2] if n == 1 else [round(1 + i * (last - 1) / (n - 1)) for i in range(n)]
        return f" (trained with the default of its class: {','.join(str(i + 1) for i in ids)})"

    def samples_from_anchor(self) -> bool:
        """Return True if the block's first place drafts a token.

        By default it does in DSpark drafts, except those in the format of speculators.
        """
        stated = self.settings.flag("sample_from_anchor")
        return self.is_dspark and not self.is_speculators if stated is None else stated


def sizes(config: DFlashConfig) -> dict[str, int]:
    dims, settings = dense_dims(config), config.settings
    kernel, group = settings.integer("conv_kernel_size") or 1, settings.integer("conv_group_size") or dims["embd"]
    rank = settings.integer({"DFlash2": "selector_rank", "DSpark": "markov_rank"}.get(config.kind, "")) or 0
    return {
        **dims,
        "n_rot": rotated(config.rope, dims["head"]),
        "aux": len(config.boundaries()),
        "kernel": kernel,
        "taps": 2 * kernel * (dims["embd"] // group),
        "rank": rank,
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
    causal = config.causal if config.causal is not None else _causal_windows(config, found)
    if causal is not None:
        found["attention.causal"] = causal
    if config.kind == "DSpark" or config.samples_from_anchor():
        found["sample_from_anchor"] = config.samples_from_anchor()
    return found


def _causal_windows(config: DFlashConfig, found: dict[str, Any]) -> bool | None:
    """Return whether rows of a block attend to earlier ones alone, None if the pattern of windows in `found` says so.

    Our engine takes layers with a window as causal if others have none, and the rest as not causal.
    """
    pattern = found.get("attention.sliding_window_pattern")
    if not pattern:
        return None
    causal = config.windows_are_causal()
    return causal if causal == all(pattern) else None


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
