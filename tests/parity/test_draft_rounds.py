"""Long prompts in pieces, then rounds that keep any number of their rows: chains as the torch reference has them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from parity.eagle3_reference import Eagle3Reference
from parity.native_draft import DenseTarget, NativeDraft, assert_equal

pytestmark = pytest.mark.native

N_STEPS = 8
# Tokens of the prompt, n_batch, n_ubatch. The engine itself takes 512 rows at a time.
IN_PIECES = (150, 64, 24)
IN_LARGE_PIECES = (600, 600, 256)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("safeailab", IN_LARGE_PIECES),
        ("f32", IN_PIECES),
        ("speculators-fc-norm", IN_PIECES),
        ("nvidia-v3", IN_PIECES),
        ("speculators-window", IN_LARGE_PIECES),
        ("specforge-windows", IN_PIECES),
        ("everything", IN_PIECES),
        ("everything", IN_LARGE_PIECES),
    ],
)
def test_every_number_of_kept_rows(name: str, sizes: tuple[int, int, int], target: DenseTarget, tmp_path: Path) -> None:
    n_prompt, n_batch, n_ubatch = sizes
    spec = replace(CASES[name], dtype="float32")
    folder = make_draft(tmp_path / "draft", spec, seed=7)
    layer_ids = convert_draft(folder, target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32")).layer_ids
    shared = {} if spec.hidden != spec.target_hidden else {"embedding": target.embedding, "head": target.head}
    reference = Eagle3Reference(folder, **shared)
    rng = random.Random(5)
    text = [rng.randrange(480) for _ in range(n_prompt)]  # in the target's memory
    n_kept_rows = rng.sample(range(N_STEPS + 2), N_STEPS + 2)
    with NativeTarget(target.gguf, n_ctx=1024, n_batch=n_batch, n_ubatch=n_ubatch) as context:
        draft = NativeDraft(context, tmp_path / "draft.gguf", spec.hidden, N_STEPS)
        draft.eval(text)
        n_slots = 0  # of the reference that hold the text
        for n_kept in n_kept_rows:
            features = target.features(text, layer_ids)
            reference.trim(n_slots)
            reference.prefill(text[n_slots:], features[n_slots:], first=n_slots)
            n_slots = len(text) - 1
            id_last = rng.randrange(480)
            chain = draft.chain(id_last)
            assert_equal(chain, reference.chain(id_last, features[-1], n_slots, N_STEPS))
            rows = [id_last, *(step[2] for step in chain)]
            draft.verify(rows, n_kept)
            text += rows[:n_kept]
        draft.close()


def test_trim_forgets_waiting_rows(target: DenseTarget, tmp_path: Path) -> None:
    """Rows that were kept one by one and trimmed again leave nothing behind."""
    spec = replace(CASES["f32"], dtype="float32")
    path = tmp_path / "draft.gguf"
    convert_draft(make_draft(tmp_path / "draft", spec, seed=7), target.gguf, path, DraftOptions(outtype="f32"))
    text = random.Random(6).choices(range(480), k=60)
    chains = []
    for n_more, then in ((9, text[55:]), (0, text[50:])):
        with NativeTarget(target.gguf, n_ubatch=24) as context:
            draft = NativeDraft(context, path, spec.hidden, N_STEPS)
            draft.eval(text[:50])
            for token in [*text[50:55], 1, 2, 3, 4][:n_more]:
                draft.verify([token], 1)
            if n_more:
                assert draft.session.trim(55)
            for token in then:
                draft.verify([token], 1)
            chains.append(draft.chain(5))
            draft.close()
    for (logits, _, token, _), (expected, _, expected_token, _) in zip(*chains, strict=True):
        assert token == expected_token
        assert abs(logits - expected).max() < 1e-5 * abs(expected).max()


def test_a_text_longer_than_the_memory_leaves_nothing_behind(target: DenseTarget, tmp_path: Path) -> None:
    """As if the rows that were overwritten had not been; the memory is a ring of 1024 rows."""
    spec = replace(CASES["f32"], dtype="float32")
    path = tmp_path / "draft.gguf"
    convert_draft(make_draft(tmp_path / "draft", spec, seed=7), target.gguf, path, DraftOptions(outtype="f32"))
    long, more = random.Random(6).choices(range(480), k=1800), [*range(70)]
    chains = []
    for before in (long, long[:10]):
        with NativeTarget(target.gguf, n_ctx=2048) as context:
            draft = NativeDraft(context, path, spec.hidden, n_ctx_draft=64)
            draft.eval(before)
            draft.session.trim(10)
            draft.eval(more)
            chains.append(draft.chain(5))
            draft.close()
    for (logits, _, token, _), (expected, _, expected_token, _) in zip(*chains, strict=True):
        assert token == expected_token
        assert abs(logits - expected).max() < 1e-5 * abs(expected).max()
