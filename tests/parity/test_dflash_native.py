"""DFlash, DFlash2 and DSpark drafts in our engine, next to a real target: the logits of the torch reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.dflash import CASES, OURS, make_dflash
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import IncompatibleModels
from llama_eagle.gguf.pairing import require_models
from parity.dflash_reference import DFlashReference, Drafted
from parity.native_draft import N_STEPS, TOLERANCE, DenseTarget, NativeDraft, NativeStep

pytestmark = pytest.mark.native
SPECS = {**CASES, **OURS}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


@pytest.fixture
def context(target: DenseTarget) -> Iterator[NativeTarget]:
    with NativeTarget(target.gguf) as native:
        yield native


def assert_equal(found: list[NativeStep], expected: Drafted) -> None:
    assert [token for _, _, token, _ in found] == expected.tokens
    for (logits, hidden, _, _), *theirs in zip(found, expected.logits, expected.hidden, strict=True):
        for ours, reference in zip((logits, hidden), theirs, strict=True):
            assert np.abs(ours - reference.numpy()).max() < TOLERANCE * np.abs(reference.numpy()).max()


@pytest.mark.parametrize("name", SPECS)
def test_blocks(name: str, target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    """A prompt, a block, a round that keeps two of its tokens, another block, and a shorter one."""
    spec = replace(SPECS[name], dtype="float32")
    folder = make_dflash(tmp_path / "draft", spec, seed=7)
    report = convert_draft(folder, target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    reference = DFlashReference(folder, embedding=target.embedding, head=target.head)
    tokens = np.random.default_rng(5).integers(0, 480, 81).tolist()
    draft = NativeDraft(context, tmp_path / "draft.gguf", 64)
    try:
        draft.eval(tokens[:-1])
        expected = reference.block(target.features(tokens[:-1], report.layer_ids), tokens[-1], N_STEPS)
        assert_equal(draft.chain(tokens[-1]), expected)
        assert draft.session.draft_ids.tolist() == reference.target_ids.tolist()
        draft.verify([tokens[-1], *expected.tokens], 3)
        kept, last = [*tokens, *expected.tokens[:2]], expected.tokens[2]
        features = target.features(kept, report.layer_ids)
        assert_equal(draft.chain(last), reference.block(features, last, N_STEPS))
        draft.n_steps = 2
        assert_equal(draft.chain(last), reference.block(features, last, 2))
    finally:
        draft.close()


class Pair:
    """A session with a random draft, and the reference of the same."""

    def __init__(self, name: str, target: DenseTarget, context: NativeTarget, folder: Path, **options: int) -> None:
        checkpoint = make_dflash(folder / "draft", replace(SPECS[name], dtype="float32"), seed=7)
        report = convert_draft(checkpoint, target.gguf, folder / "draft.gguf", DraftOptions(outtype="f32"))
        self.target, self.layer_ids = target, report.layer_ids
        self.reference = DFlashReference(checkpoint, embedding=target.embedding, head=target.head)
        self.draft = NativeDraft(context, folder / "draft.gguf", 64, **options)

    def expected(self, tokens: list[int], last: int) -> Drafted:
        features = self.target.features(tokens, self.layer_ids)
        return self.reference.block(features, last, self.draft.n_steps)


@pytest.fixture
def pair(target: DenseTarget, context: NativeTarget, tmp_path: Path) -> Iterator[Pair]:
    made = Pair("dflash-window", target, context, tmp_path)
    yield made
    made.draft.close()


def test_every_number_of_accepted_tokens(pair: Pair) -> None:
    """Rows that were verified and taken back leave nothing behind, nor does a round without a draft."""
    tokens, last = [7, 300, 41, 41, 470], 9
    pair.draft.eval(tokens)
    for n_kept in (0, 1, 3, N_STEPS + 1, 2):
        expected = pair.expected(tokens, last)
        assert_equal(pair.draft.chain(last), expected)
        rows = [last, *expected.tokens]
        pair.draft.verify(rows, n_kept)
        tokens = [*tokens, *rows[:n_kept]]
        last = rows[n_kept] if n_kept < len(rows) else 17
    pair.draft.verify([last], 1)
    assert_equal(pair.draft.chain(5), pair.expected([*tokens, last], 5))
    pair.draft.session.trim(4)
    pair.draft.verify([3], 1)
    assert_equal(pair.draft.chain(5), pair.expected([*tokens[:4], 3], 5))


def test_saved_states(pair: Pair, target: DenseTarget, tmp_path: Path) -> None:
    with NativeTarget(target.gguf) as other:
        restored = NativeDraft(other, tmp_path / "draft.gguf", 64)
        for step in (lambda: pair.draft.eval([1, 2, 3]), lambda: pair.draft.verify([4, 5, 6], 2)):
            step()
            data, n_past = pair.draft.session.save_state(), pair.draft.session.n_past
            restored.session.load_state(data, n_past)
            for ours, theirs in zip(restored.chain(11), pair.draft.chain(11), strict=True):
                assert np.array_equal(ours[0], theirs[0]) and ours[2:] == theirs[2:]
        restored.session.load_state(None, 100)
        assert restored.session.n_draft_room == 0
        restored.close()


def test_the_end_of_the_context(pair: Pair) -> None:
    """Blocks end with it, and the longest is that of the training."""
    pair.draft.eval([i % 480 for i in range(250)])
    assert pair.draft.session.n_draft_room == 5
    assert len(pair.draft.draft(9)[0]) == 5
    for n_past, n in ((252, 3), (255, 0)):
        pair.draft.eval([1] * (n_past - pair.draft.session.n_past))
        assert (pair.draft.session.n_draft_room, len(pair.draft.draft(9)[0])) == (n, n)


@pytest.mark.parametrize(("name", "longest"), [("dflash-causal", 7), ("dspark", 16), ("dflash-anchor", 16)])
def test_the_longest_draft(name: str, longest: int, target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    pair = Pair(name, target, context, tmp_path, n_steps=20)
    pair.draft.eval([1, 2, 3])
    assert len(pair.draft.draft(9)[0]) == longest
    pair.draft.close()


@pytest.mark.parametrize("name", ["dflash-window", "dflash2", "dspark"])
def test_drafts_end_before_they_become_too_improbable(
    name: str, target: DenseTarget, context: NativeTarget, tmp_path: Path
) -> None:
    pair = Pair(name, target, context, tmp_path)
    pair.draft.eval([3, 1, 4])
    ids, probs = pair.draft.draft(9)
    cumulative = np.cumprod(np.float32(probs))
    for n in range(N_STEPS):
        assert pair.draft.draft(9, float(cumulative[n]) * 1.01) == (ids[:n], probs[:n])
    pair.draft.close()


@pytest.mark.parametrize("name", ["dflash", "dflash2"])
def test_a_trimmed_head(name: str, target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    """Its rows are those of the whole head, and the choice of the next token knows their tokens."""
    pair = Pair(name, target, context, tmp_path)
    pair.draft.close()
    draft = NativeDraft(context, tmp_path / "draft.gguf", 64, n_vocab_draft=64)
    context.api.llama_memory_clear(context.api.llama_get_memory(context.ctx), True)
    tokens = [7, 300, 41, 41, 470]
    draft.eval(tokens)
    chain, ids = draft.chain(9), draft.session.draft_ids
    assert len(ids) == 64 and {7, 300, 41, 470} <= set(ids.tolist())
    reference = pair.reference
    reference.head, reference.target_ids = reference.head[ids.tolist()], torch.from_numpy(ids).long()
    assert_equal(chain, pair.expected(tokens, 9))
    draft.close()


def test_a_draft_of_another_width_is_refused(target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    folder = make_dflash(tmp_path / "draft", SPECS["dflash"])
    convert_draft(folder, target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    other = make_target("qwen3", tmp_path / "other", seed=3, dtype="float32", hidden_size=32)
    convert_target(other, tmp_path / "other.gguf", TargetOptions(outtype="f32"))
    with pytest.raises(IncompatibleModels, match="trained for a hidden size of 64, the target has 32"):
        require_models(tmp_path / "other.gguf", tmp_path / "draft.gguf")
    with NativeTarget(tmp_path / "other.gguf") as narrow, pytest.raises(IncompatibleModels, match="size is 64"):
        NativeDraft(narrow, tmp_path / "draft.gguf", 64)
