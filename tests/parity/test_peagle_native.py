"""P-EAGLE drafts in our engine, next to a real target: the logits of the torch reference, all tokens from one pass."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import PEAGLE, make_draft
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.native.calls import check
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession
from parity.eagle3_reference import Eagle3Reference, Step
from parity.native_draft import N_STEPS, DenseTarget, NativeDraft, assert_equal
from parity.test_image_sets import OTHER, Drafts, Request

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


@pytest.fixture
def context(target: DenseTarget) -> Iterator[NativeTarget]:
    with NativeTarget(target.gguf) as native:
        yield native


class Pair:
    """A session with a random draft, and the reference of the same."""

    def __init__(self, name: str, target: DenseTarget, context: NativeTarget, folder: Path, **options: int) -> None:
        spec = replace(PEAGLE[name], dtype="float32")
        checkpoint = make_draft(folder / "draft", spec, seed=7)
        report = convert_draft(checkpoint, target.gguf, folder / "draft.gguf", DraftOptions(outtype="f32"))
        self.target, self.layer_ids = target, report.layer_ids
        self.reference = Eagle3Reference(checkpoint, embedding=target.embedding, head=target.head)
        self.draft = NativeDraft(context, folder / "draft.gguf", 64, **options)

    def expected(self, tokens: list[int], last: int) -> list[Step]:
        """The draft after `tokens`, which the target has read, and the next token `last`."""
        features = self.target.features(tokens, self.layer_ids)
        self.reference.reset()
        self.reference.prefill(tokens, features)
        return self.reference.masked(last, features[-1], len(tokens) - 1, self.draft.n_steps)


@pytest.mark.parametrize("name", PEAGLE)
def test_blocks(name: str, target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    """A prompt, a block, a round that keeps two of its tokens, another block, and one of a single token."""
    pair, tokens = Pair(name, target, context, tmp_path), np.random.default_rng(5).integers(0, 480, 41).tolist()
    draft = pair.draft
    try:
        assert draft.session.draft_kind == "P-EAGLE" and draft.session.drafts_blocks
        draft.eval(tokens[:-1])
        expected = pair.expected(tokens[:-1], tokens[-1])
        assert_equal(draft.chain(tokens[-1]), expected)
        assert draft.session.draft_ids.tolist() == pair.reference.target_ids.tolist()
        ids = [step.token for step in expected]
        draft.verify([tokens[-1], *ids], 3)
        kept = [*tokens, *ids[:2]]
        assert_equal(draft.chain(ids[2]), pair.expected(kept, ids[2]))
        draft.n_steps = 1
        assert_equal(draft.chain(ids[2]), pair.expected(kept, ids[2]))
    finally:
        draft.close()


@pytest.fixture
def pair(target: DenseTarget, context: NativeTarget, tmp_path: Path) -> Iterator[Pair]:
    made = Pair("fc-norm-window", target, context, tmp_path)
    yield made
    made.draft.close()


def test_every_number_of_accepted_tokens(pair: Pair) -> None:
    """Rows that were verified and taken back leave nothing behind, nor does a round without a draft."""
    tokens, last = [7, 300, 41, 41, 470], 9
    pair.draft.eval(tokens)
    for n_kept in (0, 1, 3, 2, 4, N_STEPS + 1, 5):
        expected = pair.expected(tokens, last)
        assert_equal(pair.draft.chain(last), expected)
        rows = [last, *(step.token for step in expected)]
        pair.draft.verify(rows, n_kept)
        tokens = [*tokens, *rows[:n_kept]]
        last = rows[n_kept] if n_kept < len(rows) else 17
    pair.draft.verify([last], 1)
    assert_equal(pair.draft.chain(5), pair.expected([*tokens, last], 5))


def test_saved_states(pair: Pair, target: DenseTarget, tmp_path: Path) -> None:
    with NativeTarget(target.gguf) as other:
        restored = NativeDraft(other, tmp_path / "draft.gguf", 64)
        for step in (lambda: pair.draft.eval([1, 2, 3]), lambda: pair.draft.verify([4, 5, 6], 2)):
            step()
            data, n_past = pair.draft.session.save_state(), pair.draft.session.n_past
            restored.session.load_state(data, n_past)
            for ours, theirs in zip(restored.chain(11), pair.draft.chain(11), strict=True):
                assert np.array_equal(ours[0], theirs[0]) and ours[2:] == theirs[2:]
        restored.close()


def test_the_longest_draft(target: DenseTarget, context: NativeTarget, tmp_path: Path) -> None:
    """It is that of the training, and at the end of the context the target's room."""
    pair = Pair("nemo", target, context, tmp_path, n_steps=20)
    pair.draft.eval([i % 480 for i in range(240)])
    assert len(pair.draft.draft(9)[0]) == 6
    for n_past, n in ((252, 3), (255, 0)):
        pair.draft.eval([1] * (n_past - pair.draft.session.n_past))
        assert len(pair.draft.draft(9)[0]) == n
    pair.draft.close()


def test_drafts_end_before_they_become_too_improbable(pair: Pair) -> None:
    pair.draft.eval([3, 1, 4])
    ids, probs = pair.draft.draft(9)
    cumulative = np.cumprod(np.float32(probs))
    for n in range(N_STEPS):
        assert pair.draft.draft(9, float(cumulative[n]) * 1.01) == (ids[:n], probs[:n])


def test_several_sequences_at_once(pair: Pair, target: DenseTarget, tmp_path: Path) -> None:
    """One graph drafts for a sequence with one new row and for another with several what each would get alone."""
    tokens, lasts = [7, 300, 41, 41, 470, 12], (9, 250)
    pair.draft.eval(tokens)
    expected = [pair.draft.draft(last)[0] for last in lasts]
    assert expected[0] != expected[1]
    with (
        NativeTarget(target.gguf, n_seq=2) as native,
        Model(tmp_path / "draft.gguf") as model,
        EagleSession(native, None, SessionOptions(N_STEPS)) as plain,
    ):
        drafts = Drafts(plain, model)
        plain.eval(tokens)
        assert drafts.copy(len(tokens)) == 0
        assert drafts.draft(lasts[0]) == expected[0]
        ids = [(ctypes.c_int32 * N_STEPS)() for _ in lasts]
        seqs = enumerate(zip((0, OTHER), lasts, strict=True))
        requests = (Request * 2)(*(Request(seq, len(tokens), last, N_STEPS, ids[i], 0) for i, (seq, last) in seqs))
        check(drafts.lib.eagle_drafts_propose(drafts.handle, requests, 2, 0.0), "eagle_drafts_propose")
        assert [list(each) for each in ids] == expected
        drafts.close()
