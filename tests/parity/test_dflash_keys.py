"""Each key of a block draft's config.json changed alone: the logits of the torch reference, or a refusal.

A change without effect is allowed for the keys of INERT alone, so no key is ignored in silence.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from fixtures.dflash import CASES, make_dflash
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import EagleError
from parity.dflash_reference import DFlashReference
from parity.native_draft import N_STEPS, TOLERANCE, DenseTarget, NativeDraft

pytestmark = [pytest.mark.slow, pytest.mark.native]

BASES = ("dflash-window", "dflash-factors", "dflash2", "dspark", "dspark-speculators", "dspark-gemma")
PART = {"dspark-speculators": "transformer_layer_config"}  # the place of the blocks' own keys
INERT = {  # of training and generation, sizes that the target has, the class (a hint), the longest draft and context
    "attention_dropout", "initializer_range", "use_cache", "chunk_size_feed_forward", "is_encoder_decoder",
    "output_attentions", "output_hidden_states", "return_dict", "tie_word_embeddings", "architectures", "model_type",
    "max_window_layers", "block_size", "max_position_embeddings", "problem_type", "has_embed_tokens", "pad_token_id",
    "hidden_activation", "projector_type",
}  # fmt: skip
WINDOW = {"use_sliding_window", "sliding_window", "layer_types"}  # without effect alone
GEMMA = {  # keys of Gemma's other layers, and sizes that its tensors decide
    "head_dim", "num_key_value_heads", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v",
    "rope_theta", "per_layer_config", "input_embedding_scale",
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e4}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
OTHERS: dict[str, list[Any]] = {  # values in addition to those of _values()
    "hidden_act": ["gelu", "relu"],
    "hidden_activation": ["silu"],
    "rms_norm_eps": [0.05],
    "is_neox_style": [False],
    "rope_is_neox_style": [False],
    "is_causal": [True],
    "causal": [True],
    "sample_from_anchor": [True, False],
    "layer_types": [["sliding_attention"] * 3, ["full_attention"] * 3, ["linear_attention"] * 3],
    "sliding_window": [None, 8],
    "target_layer_ids": [[0, 3, 5], [6, 4, 1], [1, 4, 7], [1, 4]],
    "aux_hidden_state_layer_ids": [[1, 3, 6], [0, 5, 7]],
    "mask_token_id": [17, 511, 512],
    "markov_head_type": ["gated", "rnn"],
    "projector_type": ["domino", "dspark"],
    "attention_value_scale": [0.25],
    "output_multiplier": [3.0],
    "input_embedding_scale": [4.0],
    "final_logit_softcapping": [5.0],
    "per_layer_config": [{"0": {"rms_norm_eps": 0.1}}],
    "architectures": [["DFlashDraftModel"], ["Qwen3DFlashDraftModel"]],
    "rope_parameters": [
        ROPE, {**ROPE, "partial_rotary_factor": 0.5}, {**ROPE, "rope_type": "linear", "factor": 4.0}, YARN,
        {**YARN, "beta_fast": 8.0}, {**YARN, "attention_factor": 1.5}, {**ROPE, "rope_type": "llama3", "factor": 8.0},
        {**ROPE, "rope_type": "dynamic", "factor": 2.0},
    ],
}  # fmt: skip


def _values(key: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value * 2, value + 1)
    yield from (other for other in OTHERS.get(key, ()) if other != value)


def changes(config: dict[str, Any], part: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (part, key, another value) of stated keys, of transformers' Qwen3 class and of OTHERS."""
    own = transformers.Qwen3Config().to_dict()
    anywhere = {*config, *config.get("dflash_config", {}), *config.get("transformer_layer_config", {})}
    for place in ("", "dflash_config", "transformer_layer_config"):
        stated = config if not place else config.get(place, {})
        more = {key: own[key] for key in own if place == part and key not in anywhere}
        more |= {key: None for key in OTHERS if not place and key not in own and key not in anywhere}
        for key, value in {**more, **stated}.items():
            if not isinstance(value, dict) and key not in ("dtype", "transformers_version"):
                yield from ((place, key, other) for other in _values(key, value))


class Judge:
    """The native engine and the reference, after the same tokens."""

    def __init__(self, target: DenseTarget, folder: Path, output: Path) -> None:
        self.target, self.folder, self.output = target, folder, output
        self.tokens = np.random.default_rng(5).integers(0, 480, 81).tolist()

    def ours(self) -> np.ndarray | str:
        """Return the logits of a block, or the refusal."""
        self.warnings: list[str] = []
        try:
            report = convert_draft(self.folder, self.target.gguf, self.output, DraftOptions(outtype="f32"))
        except EagleError as error:
            assert error.exit_code == 3 and "\n" not in str(error)
            return str(error)
        self.warnings = report.warnings
        with NativeTarget(self.target.gguf) as context:
            draft = NativeDraft(context, self.output, 64)
            try:
                draft.eval(self.tokens[:-1])
                return np.stack([logits for logits, *_ in draft.chain(self.tokens[-1])])
            finally:
                draft.close()

    def theirs(self, config: dict[str, Any]) -> np.ndarray:
        reference = DFlashReference(self.folder, embedding=self.target.embedding, head=self.target.head)
        outputs = {**config, **config.get("dflash_config", {})}.get("target_layer_ids", ())
        ids = config.get("aux_hidden_state_layer_ids") or [i + 1 for i in outputs]
        features = self.target.features(self.tokens[:-1], ids)
        return reference.block(features, self.tokens[-1], N_STEPS).logits.numpy()

    def outcome(self, config: dict[str, Any], ours: np.ndarray | str) -> str:
        if isinstance(ours, str):
            return "refused"
        theirs = self.theirs(config)
        return "right" if np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max() else "wrong"


@pytest.mark.parametrize("base", BASES)
def test_no_key_is_ignored(base: str, tmp_path: Path) -> None:
    folder = make_dflash(tmp_path / "draft", replace(CASES[base], dtype="float32"), seed=7)
    judge = Judge(DenseTarget(tmp_path / "target"), folder, tmp_path / "draft.gguf")
    original, before = json.loads((folder / "config.json").read_text()), judge.ours()
    assert isinstance(before, np.ndarray)
    inert = (
        INERT
        | (set() if base.startswith("dspark") else {"markov_head_type"})
        | (GEMMA if base == "dspark-gemma" else set())
        | (set() if base == "dflash-window" else WINDOW)
    )
    outcomes: dict[str, list[str]] = {"right": [], "refused": [], "inert": [], "wrong": []}
    effects: dict[str, bool] = {}
    for part, key, value in changes(original, PART.get(base, "")):
        config = copy.deepcopy(original)
        (config[part] if part else config)[key] = value
        (folder / "config.json").write_text(json.dumps(config))
        ours = judge.ours()
        is_used = isinstance(ours, str) or not np.array_equal(ours, before) or any(key in w for w in judge.warnings)
        effects[key] = is_used or effects.get(key, False)
        outcome = judge.outcome(config, ours) if is_used or key not in inert else "inert"
        outcomes[outcome].append(f"{part}.{key} = {value}")
    assert not outcomes["wrong"], "\n".join(outcomes["wrong"])
    ignored = {key for key, is_used in effects.items() if not is_used} - inert
    assert not ignored
    assert len(outcomes["right"]) > 8 and len(outcomes["refused"]) > 8, outcomes
