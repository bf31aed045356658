"""Gemma 4's assistants, which draft with the keys and values of their target, in the layout of llama.cpp's converter.

Sources: Gemma4AssistantForCausalLM and Gemma4TextConfig of transformers, gemma4-assistant.cpp of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert import rows
from llama_eagle.convert.drafts.family import DROPPED, canonical, match
from llama_eagle.convert.drafts.gemma4 import block as gemma4
from llama_eagle.convert.drafts.report import DraftOptions, DraftReport
from llama_eagle.convert.drafts.target import Target
from llama_eagle.convert.drafts.write import StockDraft, draft_report, write_draft
from llama_eagle.convert.rope import proportional_factors
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.config import Fields, key_value_heads
from llama_eagle.convert.source.stated import checkpoint_scheme
from llama_eagle.convert.source.weights import Weights
from llama_eagle.convert.table import Row, Section, computed, plan
from llama_eagle.convert.writer import GGUFOutput, Progress
from llama_eagle.errors import ConfigError, ConversionError
from llama_eagle.gguf.names import ASSISTANT

NAMES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
_GLOBAL_HEAD = 512  # transformers' default of global_head_dim
_ROPE: dict[str, dict[str, Any]] = {  # transformers' defaults
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_activation": (gemma4.ACTIVATION,),
    "attention_bias": (False,),
    "enable_moe_block": (False,),
    "use_double_wide_mlp": (False,),
    "hidden_size_per_layer_input": (0,),
    "use_bidirectional_attention": ("vision",),
    "tie_word_embeddings": (True,),
}
_MODEL = (
    Row("embed_tokens.weight", "token_embd.weight", ("vocab", "embd")),
    rows.norm("norm.weight", "output_norm.weight", "embd"),
    Row("pre_projection.weight", "nextn.pre_projection.weight", ("embd", "2*target")),
    Row("post_projection.weight", "nextn.post_projection.weight", ("target", "embd")),
)
_LAYER = (*gemma4.NORMS, *rows.DENSE)
_UNUSED = (
    (r"lm_head\.weight", "the same as the embeddings"),
    (r"masked_embedding\..*", "chooses a part of the vocabulary; all of it is computed"),
    (r"layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*", "keys and values are the target's"),
    *DROPPED,
)


def is_assistant(config: dict[str, Any]) -> bool:
    """Return True if this is the config.json of an assistant."""
    names = config.get("architectures")
    return isinstance(names, list) and any(name in NAMES for name in names)


@dataclass(frozen=True)
class _Layer:
    """A layer's attention. is_full: without a sliding window."""

    is_full: bool
    head: int
    n_head_kv: int


class AssistantConfig(Fields):
    """The text_config of an assistant. kinds: of its layers; root: the top level."""

    def __init__(self, config: dict[str, Any], source: str) -> None:
        self.root = Fields(config, f"{source}: config.json")
        text = self.root.child("text_config") or self.root
        super().__init__(text.data, text.where)
        for name, allowed in _FIXED.items():
            self.require(name, *allowed)
        self.n_layer, self.n_head = (self.need_integer(f"num_{name}") for name in ("hidden_layers", "attention_heads"))
        self.kinds = self.texts("layer_types")
        if len(self.kinds) != self.n_layer or set(self.kinds) - set(_ROPE):
            raise ConfigError(f"{self.where}: layer_types must have one of {', '.join(_ROPE)} for each layer")
        self.layers = [self._layer(i, kind == "full_attention") for i, kind in enumerate(self.kinds)]
        if len({(layer.is_full, layer.head) for layer in self.layers}) > len(set(self.kinds)):
            raise ConfigError(f"{self.where}: layers of one kind have heads of different sizes")

    def _layer(self, i: int, is_full: bool) -> _Layer:
        """Return a layer's sizes: per_layer_config takes precedence over the keys of earlier transformers."""
        own = self.child("per_layer_config")
        if own is not None:
            own = own.child(str(i)) or Fields({}, own.where)
        elif is_full:
            names = {"head_dim": "global_head_dim"}
            if self.flag("attention_k_eq_v"):
                names["num_key_value_heads"] = "num_global_key_value_heads"
            own = Fields(
                {"head_dim": _GLOBAL_HEAD} | {k: self.get(v) for k, v in names.items() if self.get(v)}, self.where
            )
        merged = Fields({**self.data, **(own.data if own else {})}, self.where)
        merged.require("num_attention_heads", self.n_head)
        return _Layer(is_full, merged.need_integer("head_dim", 256), key_value_heads(merged, self.n_head))

    def head(self, is_full: bool) -> int:
        """Return the size of a head of one kind; of the other if there is none."""
        found = sorted(self.layers, key=lambda layer: layer.is_full != is_full)
        return found[0].head

    def rope(self, kind: str) -> Fields:
        stated = self.child("rope_parameters")
        found = (stated and stated.child(kind)) or Fields(_ROPE[kind], self.where)
        found.require("rope_type", *{"default", _ROPE[kind]["rope_type"]})
        found.require("factor", 1)
        if kind == "sliding_attention" or found.get("rope_type", "default") == "default":
            found.require("partial_rotary_factor", 1)
        return found

    def sizes(self) -> dict[str, int]:
        return {
            "embd": self.need_integer("hidden_size"),
            "target": self.root.need_integer("backbone_hidden_size"),
            "vocab": self.need_integer("vocab_size"),
            "ff": self.need_integer("intermediate_size"),
            "experts": 0,
            **{f"head.{i}": layer.head for i, layer in enumerate(self.layers)},
            **{f"q.{i}": layer.head * self.n_head for i, layer in enumerate(self.layers)},
        }

    def factors(self) -> np.ndarray:
        """Return the divisors of the frequencies of layers without a window, [head / 2]."""
        return proportional_factors(self.rope("full_attention"), self.head(True))

    def keys(self) -> dict[str, Any]:
        """Return the keys without the architecture's prefix."""
        full, windowed = self.head(True), self.head(False)
        return {
            "block_count": self.n_layer,
            "context_length": self.need_integer("max_position_embeddings"),
            "embedding_length": self.need_integer("hidden_size"),
            "embedding_length_out": self.root.need_integer("backbone_hidden_size"),
            "embedding_length_per_layer_input": 0,
            "feed_forward_length": self.need_integer("intermediate_size"),
            "nextn_predict_layers": self.n_layer,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": [layer.n_head_kv for layer in self.layers],
            "attention.layer_norm_rms_epsilon": self.need_epsilon("rms_norm_eps"),
            "attention.key_length": full,
            "attention.value_length": full,
            "attention.key_length_swa": windowed,
            "attention.value_length_swa": windowed,
            "attention.sliding_window": self.need_integer("sliding_window"),
            "attention.sliding_window_pattern": [not layer.is_full for layer in self.layers],
            "attention.shared_kv_layers": self.n_layer,
            "rope.freq_base": self.rope("full_attention").need_number("rope_theta"),
            "rope.freq_base_swa": self.rope("sliding_attention").need_number("rope_theta"),
            "rope.dimension_count": full,
            "rope.dimension_count_swa": windowed,
        }


def _table(config: AssistantConfig) -> list[Section]:
    def attention(i: int) -> tuple[Row, ...]:
        return (
            Row("self_attn.q_proj.weight", "attn_q.weight", (f"q.{i}", "embd")),
            Row("self_attn.o_proj.weight", "attn_output.weight", ("embd", f"q.{i}")),
            rows.norm("self_attn.q_norm.weight", "attn_q_norm.weight", f"head.{i}"),
        )

    layers = [Section((*_LAYER, *attention(i)), f"layers.{i}.", f"blk.{i}.") for i in range(config.n_layer)]
    return [Section(_MODEL), *layers]


def _read(checkpoint: Checkpoint, target: Target) -> StockDraft[AssistantConfig]:
    config = AssistantConfig(checkpoint.config, checkpoint.source)
    dims = config.sizes()
    if (target.architecture, target.hidden_size, target.n_vocab) != ("gemma4", dims["target"], dims["vocab"]):
        raise ConversionError(
            f"the assistant is for a gemma4 model with a hidden size of {dims['target']} and {dims['vocab']} tokens, "
            f"{target.name} is a {target.architecture} model with {target.hidden_size} and {target.n_vocab}; give the "
            "right --target"
        )
    weights = Weights(checkpoint, canonical, checkpoint_scheme(checkpoint, draft=True))
    planned = plan(_table(config), weights, dims, lambda name: match(_UNUSED, name))
    if "full_attention" in config.kinds:
        planned.tensors.append(computed("rope_freqs.weight", config.factors(), "pairs that are not rotated"))
    return StockDraft(config, checkpoint, target, weights, dims, planned)


def _declare(out: GGUFOutput, draft: StockDraft[AssistantConfig], outtype: str) -> DraftReport:
    """Declare keys and tensors; "auto" keeps the stored type."""
    table = draft.declare(out, ASSISTANT, draft.config.keys(), outtype)
    return draft_report(
        draft.checkpoint,
        draft.target,
        producer="Gemma 4 assistant",
        evidence=[f"architecture {draft.config.root.texts('architectures')[0]}"],
        layout="stock",
        extended_because=[],
        layer_ids=[],
        layer_ids_source="it reads the target's keys and values",
        settings={"n_vocab": draft.dims["vocab"], "n_layer": draft.config.n_layer},
        tensors=table,
        n_bytes=out.n_bytes,
    )


def convert_assistant(
    checkpoint: Checkpoint, target: Target, output: Path, options: DraftOptions, progress: Progress | None
) -> DraftReport:
    """Convert an assistant. Errors are convert_draft's."""
    options.refuse_eagle3("an assistant of Gemma 4")
    draft = _read(checkpoint, target)
    return write_draft(lambda out, kind: _declare(out, draft, kind), ASSISTANT, output, options, progress)
