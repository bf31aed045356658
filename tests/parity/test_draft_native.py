"""Converted drafts in our engine, beside a real target: the logits and hidden states of the torch reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import CASES, GEMMA, make_draft
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import NativeError
from parity.eagle3_reference import Eagle3Reference
from parity.native_draft import N_STEPS, DenseTarget, NativeDraft, assert_equal

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


@pytest.fixture
def context(target: DenseTarget) -> Iterator[NativeTarget]:
    with NativeTarget(target.gguf) as native:
        yield native


@pytest.mark.parametrize("name", [*CASES, *GEMMA])
def test_chains(name: str, target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    """A prompt, a chain, a round that keeps two of its drafts, another chain."""
    spec = replace((CASES | GEMMA)[name], dtype="float32")
    folder = make_draft(tmp_path / "draft", spec, seed=7)
    report = convert_draft(folder, target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    own = spec.hidden != spec.target_hidden
    shared = {} if own else {"embedding": target.embedding, "head": target.head}
    reference = Eagle3Reference(folder, **shared)
    tokens = np.random.default_rng(5).integers(0, 480, 12).tolist()
    draft = NativeDraft(context, tmp_path / "draft.gguf", spec.hidden)
    try:
        draft.eval(tokens[:9])
        features = target.features(tokens[:9], report.layer_ids)
        reference.prefill(tokens[:9], features)
        expected = reference.chain(tokens[9], features[8], 8, N_STEPS)
        assert_equal(draft.chain(tokens[9]), expected)
        assert draft.session.draft_ids.tolist() == reference.target_ids.tolist()
        kept = [*tokens[:10], expected[0].token, expected[1].token]
        draft.verify([tokens[9], *(step.token for step in expected)], 3)
        features = target.features(kept, report.layer_ids)
        reference.trim(8)
        reference.prefill(kept[8:], features[8:], first=8)
        assert_equal(draft.chain(tokens[11]), reference.chain(tokens[11], features[11], 11, N_STEPS))
    finally:
        draft.close()


def test_a_draft_ends_before_it_becomes_too_improbable(
    target: DenseTarget, context: NativeTarget, tmp_path: Path
) -> None:
    """The rest is not computed, and missing nowhere: later drafts are those of a session that never stopped early."""
    spec = replace(CASES["safeailab"], dtype="float32")
    convert_draft(make_draft(tmp_path / "draft", spec, seed=7), target.gguf, tmp_path / "draft.gguf", DraftOptions())
    draft = NativeDraft(context, tmp_path / "draft.gguf", spec.hidden)
    try:
        draft.eval([3, 1, 4, 1, 5])
        ids, probs = draft.draft(9)
        cumulative = np.cumprod(np.float32(probs))
        for n in range(N_STEPS):
            assert draft.draft(9, float(cumulative[n]) * 1.01) == (ids[:n], probs[:n])
            draft.session.draft_logits(n)  # the token that was too much was computed
            if n + 1 < N_STEPS:
                with pytest.raises(NativeError, match=f"step {n + 1} was not drafted"):
                    draft.session.draft_logits(n + 1)
        assert draft.draft(9, float(cumulative[-1]) * 0.99) == (ids, probs)
        draft.draft(9, 1.0)
        draft.verify([9, ids[0]], 2)
        draft.draft(ids[1], 1.0)
        after = draft.draft(ids[1])
    finally:
        draft.close()
    with NativeTarget(target.gguf) as other:
        fresh = NativeDraft(other, tmp_path / "draft.gguf", spec.hidden)
        fresh.eval([3, 1, 4, 1, 5, 9, ids[0]])
        expected = fresh.draft(ids[1])
        fresh.close()
    assert after[0] == expected[0]
    assert np.allclose(after[1], expected[1], rtol=1e-4)
