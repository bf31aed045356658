"""Sessions that draft with an MTP head: other files, saved states, the ends of memories, models that do not fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.mtp_files import write_head_alone
from fixtures.native import NativeTarget, accept, fix_window, load_model
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import IncompatibleModels
from parity.mtp_reference import MTPReference
from parity.native_draft import N_STEPS, NativeStep, assert_equal
from parity.native_mtp import LoadedHead, MtpTarget, NativeMtp, Rounds

pytestmark = pytest.mark.native

N_BLOCKS = 8  # of the tiny targets
TEXT = [7, 300, 41, 41, 470, 0, 129, 88, 402, 5]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> MtpTarget:
    return MtpTarget("qwen35", tmp_path_factory.mktemp("qwen35"))


def assert_same(found: list[NativeStep], expected: list[NativeStep]) -> None:
    for (logits, hidden, token, prob), (their_logits, their_hidden, their_token, their_prob) in zip(
        found, expected, strict=True
    ):
        assert np.array_equal(logits, their_logits) and np.array_equal(hidden, their_hidden)
        assert (token, prob) == (their_token, their_prob)


@contextmanager
def loaded(path: Path, *, load_mtp: bool = True) -> Iterator[LoadedHead]:
    model = load_model(path, load_mtp=load_mtp)
    import llama_cpp

    yield LoadedHead(model, path)
    llama_cpp.llama_model_free(model)


def chain_after(context: NativeTarget, draft: NativeMtp) -> list[NativeStep]:
    draft.eval(TEXT)
    chain = draft.chain(9)
    draft.close()
    return chain


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe", "qwen3next"])
def test_a_file_with_the_head_alone(family: str, tmp_path: Path) -> None:
    target = MtpTarget(family, tmp_path)
    path = write_head_alone(target.gguf, tmp_path / "mtp-target.gguf", N_BLOCKS)
    with target.open() as context, loaded(path) as companion:
        own = chain_after(context, NativeMtp(context))
        context.api.llama_memory_clear(context.api.llama_get_memory(context.ctx), True)
        assert_same(chain_after(context, NativeMtp(context, head=companion)), own)


def test_a_file_with_a_trimmed_head(target: MtpTarget, tmp_path: Path) -> None:
    """A FastMTP-32K file: fewer rows, and a map that says which tokens they are."""
    ids = [470, 3, 88, 11, 402, 5, 300, 41, 129, 7, 0]
    path = write_head_alone(target.gguf, tmp_path / "fast.gguf", N_BLOCKS, ids)
    with target.open(n_ubatch=256) as context, loaded(path) as companion:
        draft = NativeMtp(context, head=companion)
        assert draft.session.draft_ids.tolist() == ids
        rounds = Rounds(target, draft, MTPReference(target.folder, ids))
        rounds.eval(33)
        for n_kept in (5, 0, 3):
            rounds.round(n_kept)
        draft.session.reset()
        draft.close()
        draft = NativeMtp(context, head=companion, n_vocab_draft=8)  # rounded up, more rows than there are
        assert draft.session.draft_ids.tolist() == ids
        draft.close()
        params = context.api.llama_context_default_params()
        params.ctx_type = 1  # LLAMA_CONTEXT_TYPE_MTP: llama.cpp's own graph of the head, which knows no map
        assert not context.api.llama_init_from_model(companion.handle, params)


def test_a_draft_before_the_first_token(target: MtpTarget) -> None:
    """As upstream's server drafts after a prompt of one token: x_0 with zeros."""
    with target.open() as context:
        draft, reference = NativeMtp(context), MTPReference(target.folder)
        chain = draft.chain(9)
        assert_equal(chain, reference.chain(9, torch.zeros(reference.width), N_STEPS))
        draft.close()


def test_saved_states(target: MtpTarget) -> None:
    """Nothing evaluated; rows that wait; rows taken in; after a round."""
    steps: list[Any] = [
        lambda draft: None,
        lambda draft: draft.eval(TEXT),
        lambda draft: draft.eval([i % 480 for i in range(300)]),
        lambda draft: draft.verify([1, 2, 3], 2),
    ]
    with target.open() as context, target.open() as other:
        draft, restored = NativeMtp(context), NativeMtp(other)
        for step in steps:
            step(draft)
            data, n_past = draft.session.save_state(), draft.session.n_past
            expected = draft.chain(11)
            restored.session.load_state(data, n_past)
            assert_same(restored.chain(11), expected)
        restored.session.load_state(None, 0)
        draft.session.reset()
        assert_same(restored.chain(11), draft.chain(11))
        restored.session.load_state(None, 100)  # nothing known: no draft until something is
        assert restored.session.n_draft_room == 0
        draft.close()
        restored.close()


def test_every_position_up_to_the_end_of_the_context(target: MtpTarget) -> None:
    with target.open(n_ctx=256) as context:
        draft = NativeMtp(context)
        rounds = Rounds(target, draft, MTPReference(target.folder))
        rounds.eval(240)
        while (n := context.n_ctx - draft.session.n_past) > 1:
            assert draft.session.n_draft_room == min(N_STEPS, n - 1)
            draft.n_steps = draft.session.n_draft_room
            rounds.round(min(3, draft.n_steps + 1))
        assert draft.session.n_draft_room == 0
        draft.close()


def test_a_memory_that_slides(target: MtpTarget) -> None:
    """Past its context the draft is that of a new head over the last rows."""
    with target.open(n_ctx=2048) as context, target.open(n_ctx=2048) as other:
        draft, restored = NativeMtp(context, n_ctx_draft=64), NativeMtp(other, n_ctx_draft=64)
        reference = MTPReference(target.folder)
        reference.window = 64
        rounds = Rounds(target, draft, reference)
        for n, slides in ((50, False), (20, True), (940, True), (400, True)):  # the memory is a ring of 1024 rows
            rounds.eval(n)
            rounds.round(3)
            assert ("from the last 64 tokens" in draft.session.draft_notice) == slides
            restored.session.load_state(draft.session.save_state(), draft.session.n_past)
            assert_same(restored.chain(11), draft.chain(11))
            rounds.round(0)
        draft.session.reset()
        rounds.text.clear()
        rounds.eval(10)
        rounds.round(1)
        draft.close()
        restored.close()


def test_a_window_that_changes(target: MtpTarget) -> None:
    """Narrower and wider again, also than the text was while another one was used."""
    with target.open(n_ctx=2048) as context:
        draft, reference = NativeMtp(context), MTPReference(target.folder)
        rounds = Rounds(target, draft, reference)
        for n, window in ((300, 40), (600, 300), (20, 900), (400, 64), (200, 1100)):
            fix_window(draft.session, window)
            reference.window = window
            rounds.eval(n)
            rounds.round(3)
        draft.close()


def test_a_draft_ends_before_it_becomes_too_improbable(target: MtpTarget) -> None:
    with target.open() as context:
        draft = NativeMtp(context)
        draft.eval(TEXT)
        ids, probs = draft.draft(9)
        cumulative = np.cumprod(np.float32(probs))
        for n in range(N_STEPS):
            assert draft.draft(9, float(cumulative[n]) * 1.01) == (ids[:n], probs[:n])
        whole = draft.chain(9)
        draft.draft(9, 1.0)
        assert_same(draft.chain(9), whole)
        draft.close()


def greedy_text(target: MtpTarget, lengths: Sequence[int], n: int, **options: Any) -> list[int]:
    """n tokens after TEXT; round i drafts lengths[i % len(lengths)] tokens."""
    with target.open(n_rs_seq=8) as context:
        draft = NativeMtp(context, 8, **options)
        draft.eval(TEXT[:-1])
        text = [TEXT[-1]]
        for n_draft in itertools.cycle(lengths):
            drafted = draft.session.draft(text[-1], n_draft) if n_draft else []
            draft.session.verify([text[-1], *drafted])
            said = accept(draft.session, [text[-1], *drafted])
            draft.session.commit(len(said))
            text.extend(said)
            if len(text) > n:
                draft.close()
                return text[:n]
    raise AssertionError


@pytest.mark.parametrize("n_vocab_draft", [0, 64])
def test_the_text_is_that_without_a_draft(n_vocab_draft: int, target: MtpTarget) -> None:
    expected = greedy_text(target, [0], 300)
    assert greedy_text(target, range(9), 300, n_vocab_draft=n_vocab_draft) == expected


class TestModelsThatDoNotFit:
    """Each is refused with what was found and what helps, and leaves the context usable."""

    def refused(self, context: NativeTarget, head: LoadedHead, message: str) -> None:
        with pytest.raises(IncompatibleModels, match=message):
            NativeMtp(context, head=head)
        NativeMtp(context).close()

    def test_another_vocabulary(self, target: MtpTarget, tmp_path: Path) -> None:
        folder = make_target("qwen35-text", tmp_path / "more", mtp=True, vocab_size=640)
        convert_target(folder, tmp_path / "more.gguf", TargetOptions())
        with target.open() as context, loaded(tmp_path / "more.gguf") as model:
            self.refused(context, model, "file has 640 tokens, the target 512")

    def test_a_map_beyond_the_vocabulary(self, target: MtpTarget, tmp_path: Path) -> None:
        path = write_head_alone(target.gguf, tmp_path / "map.gguf", N_BLOCKS, [1, 2, 3], named=[1, 2, 512])
        with target.open() as context, loaded(path) as model:
            self.refused(context, model, "vocabulary map names token 512 of a target with 512")


def test_whole_models_without_a_fitting_head_draft_as_small_models(target: MtpTarget, tmp_path: Path) -> None:
    convert_target(target.folder, tmp_path / "none.gguf", TargetOptions(outtype="f32", mtp=False))
    convert_target(
        make_target("qwen35-text", tmp_path / "wide", mtp=True, hidden_size=128),
        tmp_path / "wide.gguf",
        TargetOptions(),
    )
    with target.open() as context:
        for name in ("none.gguf", "wide.gguf"):
            with loaded(tmp_path / name) as model:
                draft = NativeMtp(context, head=model)
                assert draft.session.draft_kind == "small model"
                draft.close()
