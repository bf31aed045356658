"""Converted drafts against a plain torch reference: the same logits and hidden states along prefill and chains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import CASES, N_VOCAB, STOCK, DraftSpec, make_draft
from fixtures.targets import make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from parity.eagle3_gguf import GGUFDraft
from parity.eagle3_reference import Eagle3Reference
from safetensors.torch import load_file

TOLERANCE = 1e-4
N_STEPS = 5


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_target("qwen3", tmp_path_factory.mktemp("target"), seed=3)
    return folder


@pytest.fixture(scope="session")
def shared(target_folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's embeddings and head, float32."""
    state = load_file(target_folder / "model.safetensors")
    return state["model.embed_tokens.weight"].float(), state["lm_head.weight"].float()


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def compare(folder: Path, file: Path, shared: tuple[torch.Tensor, torch.Tensor], spec: DraftSpec) -> None:
    """Prefill of 6 slots, a chain, a rollback to the target's features, another chain."""
    embedding, head = shared
    fits = spec.hidden == spec.target_hidden
    reference = Eagle3Reference(folder, embedding=embedding if fits else None, head=head if fits else None)
    draft = GGUFDraft(file, embedding.numpy() if fits else None, head.numpy() if fits else None)
    random = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, N_VOCAB, (9,), generator=random).tolist()
    features = torch.randn(8, spec.n_aux * spec.target_hidden, generator=random)
    expected = reference.prefill(tokens[:7], features)
    for i, step in enumerate(expected):
        check(draft.slot(tokens[i + 1], draft.fuse(features[i].double().numpy()), i), step)
    for kept in (6, 7):
        reference.trim(kept)
        draft.kv = [slots[:kept] for slots in draft.kv]
        steps = reference.chain(tokens[kept + 1], features[kept], kept, N_STEPS)
        token, hidden = tokens[kept + 1], draft.fuse(features[kept].double().numpy())
        for i, step in enumerate(steps):
            _, hidden, _ = check(draft.slot(token, hidden, kept + i), step)
            token = step.token
        reference.trim(kept)
        reference.slot(tokens[kept + 1], reference.fuse(features[kept]), kept)
        draft.kv = [slots[:kept] for slots in draft.kv]
        draft.slot(tokens[kept + 1], draft.fuse(features[kept].double().numpy()), kept)


def check(found: tuple, step: object) -> tuple:
    logits, hidden, token = found
    assert relative_error(logits, step.logits.numpy()) < TOLERANCE
    assert relative_error(hidden, step.hidden.numpy()) < TOLERANCE
    assert token == step.token
    return found


@pytest.mark.parametrize("name", CASES)
def test_converted_draft_computes_the_same(
    name: str, tmp_path: Path, target_folder: Path, shared: tuple[torch.Tensor, torch.Tensor]
) -> None:
    folder = make_draft(tmp_path / "draft", CASES[name], seed=7)
    report = convert_draft(folder, target_folder, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    assert report.layout == ("stock" if name in STOCK else "extended")
    draft = GGUFDraft(tmp_path / "draft.gguf")
    assert (draft.stock_faults() == []) == (name in STOCK), draft.stock_faults()
    assert ("extended" in draft.w) == (name not in STOCK)
    compare(folder, tmp_path / "draft.gguf", shared, CASES[name])


@pytest.mark.parametrize("prefix", ["model.", "eagle_module.", "draft_model."])
def test_prefixes(prefix: str, tmp_path: Path, target_folder: Path, shared: tuple) -> None:
    spec = replace(CASES["nvidia-v3"], embedding=True)
    folder = make_draft(tmp_path / "draft", spec, seed=1, prefix=prefix)
    convert_draft(folder, target_folder, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    compare(folder, tmp_path / "draft.gguf", shared, spec)
