"""Drafts behind images: the logits of the torch reference, with images anywhere in a text of two turns.

The images' rows come from transformers' own vision tower, so that nothing but our path is between the two.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.f32_memory import f32_session
from fixtures.native import NativeTarget
from fixtures.vision_target import N_TOKENS, Noise, Part, Seen, VisionTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.errors import IncompatibleModels, InputError, NativeError
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession
from parity.eagle3_reference import Eagle3Reference
from parity.mtp_reference import MTPReference
from parity.native_draft import N_STEPS, TOLERANCE, NativeDraft, assert_equal
from parity.native_mtp import NativeMtp

pytestmark = pytest.mark.native

A, B, C = Noise(2, 3, 1), Noise(4, 2, 2), Noise(1, 5, 3)
LAYOUTS: dict[str, tuple[list[Part], list[Part]]] = {  # two turns; a number: that number of tokens
    "none": ([[12]], [[7]]),
    "start": ([A, [9]], [[5]]),
    "middle": ([[6], B, [5]], [[4]]),
    "end": ([[8], C], [[3], A]),
    "three": ([A, [5], B, [1], C, [4]], [[3], B, [2], A]),
}


def filled(layout: Sequence[Part], rng: np.random.Generator) -> list[Part]:
    return [part if isinstance(part, Noise) else rng.integers(0, N_TOKENS, part[0]).tolist() for part in layout]


def make(family: str, tmp_path_factory: pytest.TempPathFactory, **options: Any) -> VisionTarget:
    made = VisionTarget(family, tmp_path_factory.mktemp(family), **options)
    made.model.config.image_token_id = N_TOKENS + 8  # one that no text has
    return made


@pytest.fixture(scope="module", params=["qwen3vl", "qwen35"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionTarget:
    return make(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=["qwen35", "qwen35moe"])
def with_head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionTarget:
    return make(request.param, tmp_path_factory, mtp=True)


class Reference:
    """A draft in torch, told all that the target saw."""

    def __init__(self, draft: Eagle3Reference | MTPReference, boundaries: Sequence[int]) -> None:
        self.draft, self.boundaries = draft, boundaries

    def place(self, seen: Seen, row: int) -> Any:
        """Return the position of a draft's row for the target's row; rows after the last one are tokens."""
        n_behind = row - len(seen.inputs)
        behind = (seen.positions.max() + 1 + n_behind).expand(3)
        position = behind if n_behind >= 0 else seen.positions[row]
        if isinstance(self.draft, MTPReference):
            return position + 1
        return position if self.draft.parts.any() else row

    def chain(self, seen: Seen, token: int) -> list[Any]:
        """Return a greedy draft after `token`."""
        draft, n = self.draft, len(seen.inputs)
        draft.reset()
        if isinstance(draft, MTPReference):
            draft.row(seen.inputs[0], torch.zeros(draft.width), torch.zeros(3, dtype=torch.long))
            for i in range(n - 1):
                draft.row(seen.inputs[i + 1], seen.state[i], self.place(seen, i))
            steps = [draft.row(token, seen.state[-1], self.place(seen, n - 1))]
            while len(steps) < N_STEPS:
                place = self.place(seen, n - 1 + len(steps))
                steps.append(draft.row(steps[-1].token, steps[-1].hidden, place))
            return steps
        for i in range(n - 1):
            draft.slot(seen.inputs[i + 1], draft.fuse(seen.features[i]), self.place(seen, i))
        steps = [draft.slot(token, draft.fuse(seen.features[-1]), self.place(seen, n - 1))]
        while len(steps) < N_STEPS:
            place = self.place(seen, n - 1 + len(steps))
            steps.append(draft.slot(steps[-1].token, steps[-1].hidden, place))
        return steps


def append(target: VisionTarget, session: EagleSession, parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, Noise):
            rows = target.embedded(part)
            session.eval_rows(rows)
        else:
            session.eval(list(part))


def compare(target: VisionTarget, native: NativeTarget, draft: NativeDraft, reference: Reference, layout: str) -> None:
    """After each turn a chain; a round that keeps two of its drafts; another chain."""
    rng = np.random.default_rng(7)
    text: list[Part] = []
    for turn in LAYOUTS[layout]:
        parts = filled(turn, rng)
        append(target, draft.session, parts)
        text += parts
        seen = target.see(text, reference.boundaries)
        expected = target.logits(seen).numpy()
        logits = np.ctypeslib.as_array(native.api.llama_get_logits_ith(native.ctx, -1), (native.n_vocab,))
        assert np.abs(logits - expected).max() < TOLERANCE * np.abs(expected).max()
        first, second = rng.integers(0, N_TOKENS, 2).tolist()
        chain = reference.chain(seen, first)
        assert_equal(draft.chain(first), chain)
        draft.verify([first, *(step.token for step in chain)], 3)
        text.append([first, chain[0].token, chain[1].token])
        assert_equal(draft.chain(second), reference.chain(target.see(text, reference.boundaries), second))


@contextmanager
def eagle3(target: VisionTarget, name: str, folder: Path, n_ubatch: int = 512) -> Iterator[tuple[Any, ...]]:
    folder = make_draft(folder / "draft", replace(CASES[name], dtype="float32"), seed=7)
    path = folder / "draft.gguf"
    report = convert_draft(folder, target.gguf, path, DraftOptions(outtype="f32"))
    reference = Eagle3Reference(folder, embedding=target.embedding, head=target.head)
    with NativeTarget(target.gguf, n_ubatch=n_ubatch, n_rs_seq=N_STEPS) as native:
        draft = NativeDraft(native, path, 64)
        try:
            yield native, draft, Reference(reference, report.layer_ids)
        finally:
            draft.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["f32", "rope-mrope-interleaved"])
def test_eagle3(target: VisionTarget, name: str, layout: str, tmp_path: Path) -> None:
    with eagle3(target, name, tmp_path) as (native, draft, reference):
        compare(target, native, draft, reference, layout)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("rope-")])
def test_every_rotation(target: VisionTarget, name: str, tmp_path: Path) -> None:
    with eagle3(target, name, tmp_path) as (native, draft, reference):
        compare(target, native, draft, reference, "three")


def test_images_in_pieces(target: VisionTarget, tmp_path: Path) -> None:
    with eagle3(target, "rope-mrope", tmp_path, n_ubatch=N_STEPS + 2) as (native, draft, reference):
        compare(target, native, draft, reference, "three")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mtp(with_head: VisionTarget, layout: str) -> None:
    target = with_head
    with NativeTarget(target.gguf, load_mtp=True, n_rs_seq=N_STEPS) as native:
        draft = NativeMtp(native)
        try:
            compare(target, native, draft, Reference(MTPReference(target.folder), ()), layout)
        finally:
            draft.close()


TEXT = [5, 17, 300, 41, 77, 12]


@contextmanager
def sessions(target: VisionTarget, folder: Path) -> Iterator[dict[str, tuple[NativeTarget, EagleSession]]]:
    """Without a draft, and with one."""
    draft = make_draft(folder / "draft", replace(CASES["rope-mrope"], dtype="float32"), seed=7)
    convert_draft(draft, target.gguf, folder / "draft.gguf", DraftOptions(outtype="f32"))
    with (
        NativeTarget(target.gguf, n_rs_seq=N_STEPS) as one,
        NativeTarget(target.gguf, n_rs_seq=N_STEPS) as two,
        Model(folder / "draft.gguf") as model,
        EagleSession(one, None, SessionOptions(N_STEPS)) as plain,
        f32_session(two, model, SessionOptions(N_STEPS)) as session,
    ):
        yield {"plain": (one, plain), "draft": (two, session)}


def last_logits(native: NativeTarget) -> np.ndarray:
    return np.ctypeslib.as_array(native.api.llama_get_logits_ith(native.ctx, -1), (native.n_vocab,)).copy()


@pytest.mark.parametrize("kind", ["plain", "draft"])
def test_an_image_is_kept_or_cut_as_a_whole(target: VisionTarget, kind: str, tmp_path: Path) -> None:
    with sessions(target, tmp_path) as both:
        native, session = both[kind]
        append(target, session, [TEXT, A, TEXT])
        expected = last_logits(native)
        for n_past in range(len(TEXT) + 1, len(TEXT) + A.n_rows):
            with pytest.raises(NativeError, match="end inside an image"):
                session.trim(n_past)
        assert session.n_past == 2 * len(TEXT) + A.n_rows
        if not session.trim(len(TEXT)):  # nor does a recurrent state go back over one
            assert "qwen3_5" in target.model.config.model_type
            session.reset()
            session.eval(TEXT)
        append(target, session, [A, TEXT])
        assert np.array_equal(last_logits(native), expected)


@pytest.mark.parametrize("kind", ["plain", "draft"])
def test_rounds_behind_an_image_are_undone(target: VisionTarget, kind: str, tmp_path: Path) -> None:
    with sessions(target, tmp_path) as both:
        native, session = both[kind]
        append(target, session, [TEXT, A])
        for n_kept in (0, 2, 0, 1):
            session.verify(TEXT[:4])
            session.commit(n_kept)
        session.eval([9])
        found = last_logits(native)
        session.reset()
        append(target, session, [TEXT, A, TEXT[:2], TEXT[:1], [9]])
        assert np.abs(found - last_logits(native)).max() < 1e-5 * np.abs(found).max()


@pytest.mark.parametrize("kind", ["plain", "draft"])
def test_a_saved_state_holds_images(target: VisionTarget, kind: str, tmp_path: Path) -> None:
    with sessions(target, tmp_path) as both:
        native, session = both[kind]
        append(target, session, [A, TEXT, B])
        size = native.api.llama_state_get_size(native.ctx)
        memory = (ctypes.c_uint8 * size)()
        native.api.llama_state_get_data(native.ctx, memory, size)
        saved, n_past = session.save_state(), session.n_past
        expected = session.draft(7, N_STEPS) if session.has_draft else []
        session.eval([7])
        logits = last_logits(native)
        session.reset()
        assert native.api.llama_state_set_data(native.ctx, memory, size) == size
        session.load_state(saved, n_past)
        assert not session.has_draft or session.draft(7, N_STEPS) == expected
        session.eval([7])
        assert np.array_equal(last_logits(native), logits)
        assert session.trim(0)
        with pytest.raises(IncompatibleModels):
            session.load_state(b"something else than a saved state", n_past)


def test_states_that_place_images_wrongly_are_refused(target: VisionTarget, tmp_path: Path) -> None:
    with sessions(target, tmp_path) as both:
        _, session = both["draft"]
        append(target, session, [TEXT, A])
        saved, n_past = session.save_state(), session.n_past
        places = np.frombuffer(saved, np.int32).tolist().index(len(TEXT), 9) * 4  # the image's first row
        for offset, value in ((0, -1), (0, n_past), (4, 0), (4, 1 << 20), (8, -5), (12, -1)):
            broken = bytearray(saved)
            broken[places + offset : places + offset + 4] = np.int32(value).tobytes()
            with pytest.raises(IncompatibleModels):
                session.load_state(bytes(broken), n_past)
        session.load_state(saved, n_past)


def test_rows_that_cannot_be_are_refused(target: VisionTarget, tmp_path: Path) -> None:
    """And the session goes on."""
    with sessions(target, tmp_path) as both:
        native, session = both["draft"]
        append(target, session, [TEXT])
        rows = target.embedded(A)
        for positions, n_positions in ((rows.positions + 1, 3), (rows.positions - 1, 3), (rows.positions[::-1], 3)):
            with pytest.raises(NativeError, match="is at position"):
                session.eval_rows(replace(rows, positions=np.ascontiguousarray(positions), n_positions=n_positions))
        with pytest.raises(InputError, match="do not fit"):
            session.eval_rows(replace(rows, n=native.n_ctx))
        append(target, session, [A, TEXT])
        found = last_logits(native)
        session.reset()
        append(target, session, [TEXT, A, TEXT])
        assert np.array_equal(found, last_logits(native))


def test_targets_without_mrope_take_no_images(target: VisionTarget, tmp_path: Path) -> None:
    from parity.native_draft import DenseTarget

    dense = DenseTarget(tmp_path / "dense")
    folder = make_draft(tmp_path / "draft", replace(CASES["f32"], dtype="float32"))
    convert_draft(folder, dense.gguf, tmp_path / "draft.gguf", DraftOptions())
    with NativeTarget(dense.gguf) as native:
        draft = NativeDraft(native, tmp_path / "draft.gguf", 64)
        with pytest.raises(IncompatibleModels, match="M-RoPE"):
            draft.session.eval_rows(target.embedded(A))
        draft.eval(TEXT)
        draft.close()
