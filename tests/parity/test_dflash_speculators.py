"""Block drafts of the speculators package: its own classes save a draft, we convert it, our engine has their logits.

Needs what test_speculators.py needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fixtures.dflash import (
    FFN,
    GEOMETRY,
    GROUP,
    HEAD,
    HEADS,
    HIDDEN,
    KERNEL,
    KV_HEADS,
    N_VOCAB,
    RANK,
    DFlashSpec,
    dflash_tensors,
)
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.train.dspark import draft as training
from llama_eagle.train.model import Geometry
from parity.native_draft import N_STEPS, TOLERANCE, DenseTarget, NativeDraft
from parity.test_speculators import import_speculators
from transformers import Qwen3Config

pytestmark = [pytest.mark.slow, pytest.mark.native]
IDS, MASK, N_TEXT = [2, 5, 7], 500, 81
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
WINDOW = {"sliding_window": 512, "use_sliding_window": True, "layer_types": KINDS}  # wider than the text


@dataclass(frozen=True)
class Case:
    """kind: of the package. gate: type of a Markov head. layer, top: keys of the layers and of the draft."""

    kind: str
    gate: str = ""
    n_draft: int = N_VOCAB
    layer: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> DFlashSpec:
        return DFlashSpec(self.kind, n_draft=self.n_draft, head=self.n_draft < N_VOCAB, gate=self.gate, dtype="float32")


CASES = {
    "dflash": Case("dflash", n_draft=160),
    "windows": Case("dflash", layer=WINDOW),
    "windows that see the whole block": Case("dflash", layer=WINDOW, top={"sliding_window_non_causal": True}),
    "windows alone": Case("dflash", layer={**WINDOW, "layer_types": ["sliding_attention"] * 3}),
    "dflash2": Case("dflash2"),
    "dflash2, windows": Case("dflash2", layer=WINDOW),
    "dflash2, windows that are causal": Case("dflash2", layer=WINDOW, top={"sliding_window_non_causal": False}),
    "vanilla": Case("dspark", n_draft=160),
    "vanilla, after the anchor": Case("dspark", top={"sample_from_anchor": False}),
    "vanilla, windows": Case("dspark", layer=WINDOW),
    "gated": Case("dspark", "gated", n_draft=160),
    "gated, after the anchor": Case("dspark", "gated", top={"sample_from_anchor": False}),
    "rnn": Case("dspark", "rnn", n_draft=160),
    "rnn, a confidence head of the states alone": Case("dspark", "rnn", top={"confidence_head_with_markov": False}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


def build(case: Case, target: DenseTarget, folder: Path) -> Any:
    """Return the package's model with our random weights, saved by the package."""
    import_speculators()
    from speculators import SpeculatorModel, SpeculatorModelConfig
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    own: dict[str, dict[str, Any]] = {
        "dflash": {},
        "dflash2": {"conv_kernel_size": KERNEL, "conv_group_size": GROUP, "selector_rank": RANK, "selector_top_k": 4},
        "dspark": {"markov_rank": RANK, "markov_head_type": case.gate or "vanilla"},
    }
    layer = Qwen3Config(**GEOMETRY | {"num_hidden_layers": 3} | case.layer)
    layer._attn_implementation = "eager"
    from_anchor = case.top.get("sample_from_anchor", case.kind == "dspark")
    config = SpeculatorModelConfig.registry[case.kind](
        transformer_layer_config=layer,
        draft_vocab_size=case.n_draft,
        block_size=N_STEPS if from_anchor else N_STEPS + 1,
        aux_hidden_state_layer_ids=IDS,
        mask_token_id=MASK,
        speculators_config=SpeculatorsConfig(
            algorithm=case.kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=N_STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3ForCausalLM"]),
        ),
        **own[case.kind] | case.top,
    )
    model = SpeculatorModel.registry[case.kind](config).float()
    state, ours = model.state_dict(), dflash_tensors(case.spec, seed=7)
    ours |= {"embed_tokens.weight": target.embedding} | ({} if case.spec.head else {"lm_head.weight": target.head})
    model.load_state_dict(state | {name: tensor for name, tensor in ours.items() if _fits(state, name, tensor)})
    model.save_pretrained(folder)
    return model.eval()


def _fits(state: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> bool:
    return name in state and state[name].shape == tensor.shape


def block(model: Any, features: torch.Tensor, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden states and logits of the rows that propose tokens after the last of `tokens`, in its forward pass.

    features [n, A * T]: of the tokens before the last one. The text goes on as in training, which no row reads.
    """
    from speculators.models.dflash import core

    n = len(tokens) - 1 + 2 * model.block_size
    states = torch.zeros(1, n, features.shape[1])
    states[0, : len(features)] = features
    text = torch.tensor([tokens + [1] * (n - len(tokens))])
    anchor = torch.tensor([len(tokens) - 1]), torch.tensor([True])
    with torch.no_grad(), patch.object(core, "select_anchors", lambda *_: anchor):
        hidden, logits, *_ = model._backbone_forward(
            states, text, torch.ones(1, n), torch.zeros(1, n, 64), torch.zeros(1, n, dtype=torch.long), max_anchors=1
        )
    first = 0 if model.config.sample_from_anchor else 1
    return hidden[0, first:], logits[0, first:]


def chosen(model: Any, hidden: torch.Tensor, logits: torch.Tensor, token: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield logits [D] and token of each row, chosen one after another by the package's own head."""
    before, n_first = [token], 0 if model.config.sample_from_anchor else 1
    for i, row in enumerate(logits):
        best = int(row.argmax())
        if model.config.speculators_model_type == "dspark":
            rows = torch.tensor([before])
            row = row + model.markov_head.block_bias(prev_token_ids=rows, hidden_states=hidden[None, : i + 1])[0, -1]
            best = int(row.argmax())
        elif model.config.speculators_model_type == "dflash2":
            ids, scores = model.candidate_selector.select(row[None], hidden[i : i + 1], torch.tensor([before[-1]]))
            best = int(ids[0, scores[0].argmax()])
        before.append(int(best + model.d2t[best]) if model.d2t is not None else best)
        assert n_first + i < model.block_size
        yield row.detach().numpy(), before[-1]


@pytest.mark.parametrize("name", CASES)
def test_the_engine_agrees_with_the_package(name: str, target: DenseTarget, tmp_path: Path) -> None:
    case = CASES[name]
    model = build(case, target, tmp_path / "draft")
    report = convert_draft(tmp_path / "draft", target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    assert report.layer_ids == IDS
    tokens = np.random.default_rng(5).integers(0, 480, N_TEXT).tolist()
    rows = block(model, target.features(tokens[:-1], IDS), tokens)
    with NativeTarget(target.gguf) as context:
        draft = NativeDraft(context, tmp_path / "draft.gguf", 64)
        draft.eval(tokens[:-1])
        found = draft.chain(tokens[-1])
        draft.close()
    with torch.no_grad():
        expected = list(chosen(model, *rows, tokens[-1]))
    assert len(found) == len(expected) == N_STEPS
    for (logits, _, token, _), (theirs, best) in zip(found, expected, strict=True):
        assert np.abs(logits - theirs).max() < TOLERANCE * np.abs(theirs).max()
        assert token == best


def test_a_draft_in_training_is_the_packages(
    target: DenseTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of our blocks attend to earlier ones alone, as the package's layers with a window do."""
    monkeypatch.setattr(training, "RANK", RANK)
    case = Case("dspark", n_draft=160, layer={**WINDOW, "layer_types": ["sliding_attention"] * 3})
    model = build(case, target, tmp_path)
    state = model.state_dict()
    geometry = Geometry(
        hidden_size=HIDDEN, n_head=HEADS, n_head_kv=KV_HEADS, head_dim=HEAD, ffn_size=FFN, n_vocab=N_VOCAB,
        n_vocab_draft=160, n_aux=3, n_ctx=4096, rms_eps=1e-6, rope_base=1e6,
    )  # fmt: skip
    draft = training.BlockDraft(geometry, target.embedding[MASK], state["lm_head.weight"], n_layers=3)
    draft.load_state_dict({name: state[name] for name in draft.state_dict()})
    tokens = np.random.default_rng(5).integers(0, 480, N_TEXT).tolist()
    features = target.features(tokens[:-1], IDS)
    expected = list(chosen(model, *block(model, features, tokens), tokens[-1]))
    text = torch.tensor([tokens + [1] * N_STEPS])
    given = torch.zeros(1, text.shape[1], features.shape[1])
    given[0, : len(features)] = features
    with torch.no_grad():
        steps = draft.unroll(target.embedding[text], given, given, N_STEPS)
        rows = draft.norm(torch.stack([step[0, N_TEXT - 2] for step in steps]))
        before = torch.tensor([tokens[-1], *(token for _, token in expected[:-1])])
        x, weight = draft.with_markov(rows, before)
    theirs = np.stack([logits for logits, _ in expected])
    assert np.abs((x @ weight.T).numpy() - theirs).max() < TOLERANCE * np.abs(theirs).max()
