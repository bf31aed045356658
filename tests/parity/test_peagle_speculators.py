"""P-EAGLE drafts of the speculators package: it saves a draft, we convert it, and our engine has its logits.

Needs what test_speculators.py needs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import PEAGLE, DraftSpec, draft_tensors
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from parity.native_draft import TOLERANCE, DenseTarget, NativeDraft
from parity.test_speculators import import_speculators
from transformers import LlamaConfig, Qwen3Config

pytestmark = [pytest.mark.slow, pytest.mark.native]
N_ROWS, N_DEPTHS = 21, 8


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


def build(spec: DraftSpec, folder: Path) -> torch.nn.Module:
    """The package's own model with our random weights, saved by the package."""
    import_speculators()
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    windowed = spec.windowed or (False,) * spec.n_layer
    settings: dict[str, Any] = {
        "vocab_size": spec.n_vocab,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.n_layer,
        "num_attention_heads": spec.n_head,
        "num_key_value_heads": spec.n_head_kv,
        "head_dim": spec.heads,
        "max_position_embeddings": 4096,
        "rope_parameters": spec.rope or {"rope_type": "default", "rope_theta": 1e4},
    }
    if any(windowed):
        settings |= {"sliding_window": spec.window, "use_sliding_window": True}
        settings["layer_types"] = ["sliding_attention" if one else "full_attention" for one in windowed]
    layer = (Qwen3Config if spec.qk_norm or any(windowed) else LlamaConfig)(**settings)
    layer._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=spec.n_draft,
        norm_before_residual=spec.norm_before_residual,
        norm_before_fc=bool(spec.norm_before_fc),
        fc_norm=bool(spec.fc_norm),
        norm_output=bool(spec.norm_output),
        eagle_aux_hidden_state_layer_ids=list(spec.ids_top or ()),
        mask_token_id=spec.mask_token,
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=N_DEPTHS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    model = PEagleDraftModel(config)
    missing, unexpected = model.load_state_dict(draft_tensors(spec, seed=7), strict=False)
    assert not unexpected
    assert all(name.startswith("verifier_") for name in missing), missing
    model.save_pretrained(folder)
    return model.eval()


def whole_chains(seq_length: int, num_depths: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row and depth of every prediction within the text. The package draws some, and leaves gaps in chains."""
    depths = range(num_depths)
    rows = torch.cat([torch.arange(seq_length - depth) for depth in depths])
    return rows, torch.cat([torch.full((seq_length - depth,), depth) for depth in depths])


def theirs(model: torch.nn.Module, tokens: torch.Tensor, features: torch.Tensor) -> dict[tuple[int, int], np.ndarray]:
    """Return the package's logits [D] by row and depth. Row i reads tokens[i + 1] and features[i]."""
    from speculators.losses import resolve_loss_config
    from speculators.models.peagle import core

    n, found = len(features), []
    model.lm_head.register_forward_hook(lambda module, args, out: found.append(out[0].numpy()))
    with torch.no_grad(), patch.object(core, "generate_cod_sample_indices", whole_chains):
        model(
            features[None],
            tokens[None, 1:],
            torch.zeros(1, n, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, n, model.hidden_size),
            loss_config=resolve_loss_config("kl_div", "eager"),
            num_depths=N_DEPTHS,
        )
    rows, depths = whole_chains(n, N_DEPTHS)
    return dict(zip(zip(rows.tolist(), depths.tolist(), strict=True), found[0], strict=True))


@pytest.mark.parametrize("name", ["plain", "four-layers-qwen3", "one-layer", "norm-before-fc", "fc-norm-window"])
def test_the_engine_agrees_with_the_package(name: str, target: DenseTarget, tmp_path: Path) -> None:
    """After prompts of several lengths, every depth has the logits of the package's training pass."""
    spec = replace(PEAGLE[name], qk_norm=PEAGLE[name].qk_norm or bool(PEAGLE[name].windowed))
    model = build(spec, tmp_path / "draft")
    report = convert_draft(tmp_path / "draft", target.gguf, tmp_path / "d.gguf", DraftOptions(outtype="f32"))
    tokens = np.random.default_rng(3).integers(0, 480, N_ROWS + 1)
    expected = theirs(model, torch.from_numpy(tokens), target.features(tokens[:-1].tolist(), report.layer_ids))
    compared = 0
    with NativeTarget(target.gguf) as context:
        draft = NativeDraft(context, tmp_path / "d.gguf", spec.hidden, n_steps=N_DEPTHS)
        for n in (1, 5, 12, 13):
            draft.eval(tokens[draft.session.n_past : n].tolist())
            for depth, (logits, *_) in enumerate(draft.chain(int(tokens[n]))):
                reference = expected[n - 1, depth]
                assert np.abs(logits - reference).max() < TOLERANCE * np.abs(reference).max()
                compared += 1
        draft.close()
    assert compared == 4 * N_DEPTHS
