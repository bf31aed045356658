"""The speculators package, which none of us wrote, as second judge: it saves a draft, we convert it, both compute.

Needs the group `integrations`, and pip install --no-deps speculators==0.9.0 hs-connectors==0.9.0.
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import (
    CASES,
    LLAMA3,
    N_VOCAB,
    YARN,
    DraftSpec,
    draft_tensors,
    make_draft,
    make_target_gguf,
)
from fixtures.targets import make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.export import export_draft
from llama_eagle.errors import EagleError
from parity.eagle3_gguf import GGUFDraft
from parity.test_train_export import Pair
from safetensors.torch import load_file
from transformers import LlamaConfig, Qwen3Config

pytestmark = pytest.mark.slow

BASE = CASES["speculators"]
JUDGED = {
    "plain": replace(BASE, norm_before_residual=False),
    "norm-before-residual-llama3": replace(BASE, rope=LLAMA3),
    "norm-before-fc": CASES["speculators-norm-before-fc"],
    "fc-norm-norm-output": CASES["speculators-fc-norm"],
    "qwen3": CASES["speculators-qwen3"],
    "two-layers": CASES["speculators-two-layers"],
    "four-features": CASES["speculators-four-features"],
    "yarn-mscale": replace(BASE, rope={**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}),
    "yarn-betas": replace(BASE, rope={**YARN, "beta_fast": 8.0, "beta_slow": 2.0}),
    "full-vocabulary": replace(BASE, n_draft=N_VOCAB),
    "biases": replace(BASE, bias=True),
}
ROOT, N_STEPS, N_SLOTS = 3, 5, 10


def import_speculators() -> Any:
    """The package's models; what only its data pipeline needs (openai, datasets) is replaced by nothing."""
    for _ in range(8):
        try:
            import speculators.models.eagle3 as found
        except ModuleNotFoundError as error:
            name = str(error.name)
            if name.startswith("speculators") or not name.startswith(("openai", "datasets")):
                raise
            for module in [module for module in sys.modules if module.startswith("speculators")]:
                del sys.modules[module]
            sys.modules[name] = MagicMock(__spec__=None)
        else:
            return found
    raise ImportError("speculators needs more than its data pipeline's packages")


def build(spec: DraftSpec, folder: Path) -> torch.nn.Module:
    """The package's own model with our random weights, saved by the package."""
    eagle3 = import_speculators()
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    layer = (Qwen3Config if spec.qk_norm else LlamaConfig)(
        vocab_size=spec.n_vocab,
        hidden_size=spec.hidden,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.n_layer,
        num_attention_heads=spec.n_head,
        num_key_value_heads=spec.n_head_kv,
        head_dim=spec.heads,
        max_position_embeddings=4096,
        attention_bias=spec.bias,
        rope_parameters=spec.rope or {"rope_type": "default", "rope_theta": 1e4},
    )
    layer._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(speculative_tokens=3)
    config = eagle3.Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=spec.n_draft,
        norm_before_residual=spec.norm_before_residual,
        norm_before_fc=bool(spec.norm_before_fc),
        fc_norm=bool(spec.fc_norm),
        norm_output=bool(spec.norm_output),
        eagle_aux_hidden_state_layer_ids=list(spec.ids_top or ()),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    model = eagle3.Eagle3DraftModel(config)
    missing, unexpected = model.load_state_dict(draft_tensors(spec, seed=7), strict=False)
    assert not unexpected
    assert all(name.startswith("verifier_") for name in missing), missing
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("name", JUDGED)
def test_converted_draft_agrees_with_the_package(name: str, tmp_path: Path) -> None:
    spec = JUDGED[name]
    model = build(spec, tmp_path / "draft")
    convert_draft(
        tmp_path / "draft", make_target_gguf(tmp_path / "t.gguf"), tmp_path / "d.gguf", DraftOptions(outtype="f32")
    )
    draft = GGUFDraft(tmp_path / "d.gguf")
    tokens, features = _inputs(spec)
    steps = _passes(model, spec, N_STEPS)
    hidden = np.empty(0)
    for position in range(ROOT + N_STEPS):
        fused = position <= ROOT
        source = draft.fuse(features[position].double().numpy()) if fused else hidden
        logits, hidden, _ = draft.slot(int(tokens[position]), source, position)
        slot, step = (position, 0) if fused else (ROOT, position - ROOT)
        expected = steps[step][slot].numpy()
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("n_draft", [160, 512])
def test_a_trained_draft_loads_in_the_package(n_draft: int, tmp_path: Path) -> None:
    """`--format speculators`: every weight arrives, and the logits of all slots and steps are those of our trainer."""
    eagle3 = import_speculators()
    pair = Pair(tmp_path, n_draft)
    folder = pair.export(tmp_path / "draft", "speculators")
    config = eagle3.Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = eagle3.Eagle3DraftModel.from_pretrained(folder, config=config).float().eval()
    loaded = model.state_dict()
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert name in loaded or (n_draft == 512 and name in ("d2t", "t2d")), name
        assert name not in loaded or torch.equal(loaded[name].to(tensor.dtype), tensor), name
    steps: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, out: steps.append(out[0]))
    tokens = torch.randint(0, 480, (1, 12), generator=torch.Generator().manual_seed(2))
    features, *_ = pair.target.run(tokens)
    with torch.no_grad():  # theirs pairs a slot's features with the token in the same place
        model(features[:, :-1], tokens[:, 1:], torch.zeros(1, 11, dtype=torch.long), ttt_steps=N_STEPS)
        stored = pair.target.frozen().embedding.bfloat16().float()
        hidden = pair.draft.unroll(stored[tokens], features, features, N_STEPS)
        ours = [pair.draft.lm_head(pair.draft.norm(x[0])) for x in hidden]
    assert len(ours) == len(steps) == N_STEPS
    for found, expected in zip(ours, steps, strict=True):
        assert (found - expected[: len(found)]).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", ["plain", "qwen3", "fc-norm-norm-output", "norm-before-fc", "two-layers"])
def test_an_exported_gguf_loads_in_the_package(name: str, tmp_path: Path) -> None:
    """`export --to speculators` of a GGUF in BF16: every weight arrives, and the logits are the draft's."""
    eagle3 = import_speculators()
    spec = replace(JUDGED[name], embedding=True)
    source, target = make_draft(tmp_path / "source", spec), make_target("qwen3", tmp_path / "target", seed=1)
    convert_draft(source, target, tmp_path / "d.gguf")
    export_draft(tmp_path / "d.gguf", target, tmp_path / "out", "speculators")
    config = eagle3.Eagle3SpeculatorConfig.from_pretrained(tmp_path / "out")
    config.transformer_layer_config._attn_implementation = "eager"
    model = eagle3.Eagle3DraftModel.from_pretrained(tmp_path / "out", config=config).float().eval()
    loaded = model.state_dict()
    for tensor_name, tensor in load_file(tmp_path / "out/model.safetensors").items():
        assert torch.equal(loaded[tensor_name].to(tensor.dtype), tensor), tensor_name
    steps: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, out: steps.append(out[0]))
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 480, (1, N_SLOTS), generator=random)
    features = torch.randn(1, N_SLOTS, spec.n_aux * spec.target_hidden, generator=random)
    with torch.no_grad():
        model(features, tokens, torch.zeros(1, N_SLOTS, dtype=torch.long), ttt_steps=1)
    convert_draft(source, target, tmp_path / "f32.gguf", DraftOptions(outtype="f32"))
    draft = GGUFDraft(tmp_path / "f32.gguf")
    for position in range(N_SLOTS):
        fused = draft.fuse(features[0, position].double().numpy())
        logits, _, _ = draft.slot(int(tokens[0, position]), fused, position)
        expected = steps[0][position].numpy()
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


def _inputs(spec: DraftSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [N_SLOTS] and features [N_SLOTS, A * T], always the same."""
    random = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, N_VOCAB, (N_SLOTS,), generator=random)
    return tokens, torch.randn(N_SLOTS, spec.n_aux * spec.target_hidden, generator=random)


def _passes(model: torch.nn.Module, spec: DraftSpec, n_steps: int) -> list[torch.Tensor]:
    """Return the package's logits [N_SLOTS, D] of each step."""
    tokens, features = _inputs(spec)
    steps: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, out: steps.append(out[0]))
    with torch.no_grad():
        model(features[None], tokens[None], torch.zeros(1, N_SLOTS, dtype=torch.long), ttt_steps=n_steps)
    return steps


def _our_first_pass(file: Path, spec: DraftSpec) -> np.ndarray:
    draft = GGUFDraft(file)
    tokens, features = _inputs(spec)
    pairs = enumerate(zip(tokens.tolist(), features.double().numpy(), strict=True))
    return np.stack([draft.slot(token, draft.fuse(row), i)[0] for i, (token, row) in pairs])


def _changes(config: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return (part, key, another value): of all numbers and flags that are stated, and of some that are not.

    Partial rotations are left out: conversions follow vLLM there, with a warning.
    """
    found: list[tuple[str, str, Any]] = []
    layer = config["transformer_layer_config"]
    for part, values in (("", config), ("transformer_layer_config", layer)):
        for key, value in values.items():
            if isinstance(value, bool):
                found.append((part, key, not value))
            elif isinstance(value, (int, float)):
                found += [(part, key, value * 2), (part, key, value + 1)]
    rope = {"rope_type": "default", "rope_theta": 1e4}
    more: dict[str, list[Any]] = {
        "hidden_act": ["gelu", "relu"], "mlp_bias": [True], "attention_bias": [True], "model_type": ["qwen3", "qwen2"],
        "per_layer_config": [{"0": {"rms_norm_eps": 0.1}}], "attention_dropout": [0.5], "head_dim": [16],
        "rope_parameters": [
            {**rope, "rope_theta": 1e6}, {**rope, "rope_type": "linear", "factor": 4.0}, {**rope, **LLAMA3},
            {**rope, **YARN}, {**rope, "rope_type": "dynamic", "factor": 2.0},
        ],
    }  # fmt: skip
    return found + [("transformer_layer_config", key, value) for key, values in more.items() for value in values]


def test_each_key_alone(tmp_path: Path) -> None:
    """The logits are those of the package with the changed key, or the conversion is refused."""
    spec, folder = JUDGED["plain"], tmp_path / "draft"
    build(spec, folder)
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    original = json.loads((folder / "config.json").read_text())
    target, outcomes = make_target_gguf(tmp_path / "t.gguf"), {"right": [], "refused": [], "wrong": []}
    for part, key, value in _changes(original):
        config = copy.deepcopy(original)
        (config[part] if part else config)[key] = value
        (folder / "config.json").write_text(json.dumps(config))
        name = f"{part}.{key} = {value}"
        try:
            convert_draft(folder, target, tmp_path / "d.gguf", DraftOptions(outtype="f32"))
        except EagleError:
            outcomes["refused"].append(name)
            continue
        try:
            stated = Eagle3SpeculatorConfig.from_pretrained(folder)
            stated.transformer_layer_config._attn_implementation = "eager"
            model = Eagle3DraftModel(stated).eval()
            missing, _ = model.load_state_dict(draft_tensors(spec, seed=7), strict=False)
            assert all(each.startswith("verifier_") for each in missing)
        except Exception:  # a value that the package refuses, in many ways, or that needs other weights
            outcomes["refused"].append(f"{name} (by speculators alone)")
            continue
        theirs, ours = _passes(model, spec, 1)[0].numpy(), _our_first_pass(tmp_path / "d.gguf", spec)
        error = np.abs(ours - theirs).max() / np.abs(theirs).max() if ours.shape == theirs.shape else np.inf
        outcomes["right" if error < 1e-4 else "wrong"].append(f"{name} ({error:.2g})")
    print(outcomes)
    assert not outcomes["wrong"], "\n".join(outcomes["wrong"])
    assert len(outcomes["right"]) > 10 and len(outcomes["refused"]) > 5, outcomes
