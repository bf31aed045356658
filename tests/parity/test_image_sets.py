"""Drafts of a server's slots (eagle_drafts.h), which the context feeds: behind images they are those of a session.

What a session drafts is compared with torch in test_image_rows.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.f32_memory import f32_memory, f32_session
from fixtures.native import NativeTarget
from fixtures.vision_target import N_TOKENS, Part, VisionTarget
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.native import calls
from llama_eagle.native.calls import TOKENS, check, library
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession
from parity.native_draft import N_STEPS
from parity.native_mtp import LoadedHead
from parity.test_image_rows import LAYOUTS, TEXT, A, B, append, filled, make

pytestmark = pytest.mark.native

KINDS = {"qwen3vl": ["f32", "rope-mrope"], "qwen35": ["rope-mrope", "mtp"]}
OTHER = 1  # a sequence that is only copied to


class Request(ctypes.Structure):
    """eagle_draft_request."""

    _fields_ = (
        ("seq", c_int32),
        ("pos", c_int32),
        ("id_last", c_int32),
        ("n_max", c_int32),
        ("ids", TOKENS),
        ("n_out", c_int32),
    )


FUNCTIONS: dict[str, tuple[list[Any], Any]] = {  # of eagle_drafts.h
    "eagle_drafts_new": ([c_void_p, c_void_p, POINTER(calls.SessionParams), c_int32, POINTER(c_void_p)], c_int32),
    "eagle_drafts_free": ([c_void_p], None),
    "eagle_drafts_text": ([c_void_p, c_int32, TOKENS, c_int32], c_int32),
    "eagle_drafts_propose": ([c_void_p, POINTER(Request), c_int32, c_float], c_int32),
    "eagle_drafts_state_size": ([c_void_p, c_int32, c_int32], c_int64),
    "eagle_drafts_state_save": ([c_void_p, c_int32, c_void_p, c_int64], c_int32),
    "eagle_drafts_state_load": ([c_void_p, c_int32, c_void_p, c_int64, c_int32], c_int32),
}


class Drafts:
    """Drafts of a plain session's context, sequence 0."""

    def __init__(self, plain: EagleSession, draft: Any) -> None:
        self.plain, self.lib = plain, library()
        for name, (arguments, result) in FUNCTIONS.items():
            function = getattr(self.lib, name)
            function.argtypes, function.restype = arguments, result
        params = self.lib.eagle_session_default_params()
        params.n_draft_max = N_STEPS
        params.n_threads = 1
        self.handle = ctypes.c_void_p()
        out = ctypes.byref(self.handle)
        with f32_memory():
            check(self.lib.eagle_drafts_new(plain.ctx, draft.handle, ctypes.byref(params), 2, out), "eagle_drafts_new")

    @property
    def pos(self) -> int:
        """The position of the next row, by the images in the session's saved state: row, size, end and positions."""
        saved = np.frombuffer(self.plain.save_state(), np.int32)
        images, pos = saved[9 : 9 + saved[8]], self.plain.n_past
        while len(images):
            row, n, end = images[:3].tolist()
            images, pos = images[3 + 3 * n :], end + self.plain.n_past - row - n
        return pos

    def draft(self, token: int, seq: int = 0, pos: int | None = None) -> list[int]:
        ids = (ctypes.c_int32 * N_STEPS)()
        request = Request(seq, self.pos if pos is None else pos, token, N_STEPS, ids, 0)
        check(self.lib.eagle_drafts_propose(self.handle, ctypes.byref(request), 1, 0.0), "eagle_drafts_propose")
        return list(ids[: request.n_out])

    def set_text(self, tokens: Sequence[int]) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        check(self.lib.eagle_drafts_text(self.handle, 0, array, len(tokens)), "eagle_drafts_text")

    def copy(self, pos: int, end: int | None = None) -> int:
        """Sequence 0's part, as if `pos` came next, into the other one. The status of the loading."""
        size = self.lib.eagle_drafts_state_size(self.handle, 0, self.pos if end is None else end)
        data = ctypes.create_string_buffer(size)
        check(self.lib.eagle_drafts_state_save(self.handle, 0, data, len(data)), "eagle_drafts_state_save")
        return self.load(data, pos, OTHER)

    def load(self, data: Any, pos: int, seq: int) -> int:
        return int(self.lib.eagle_drafts_state_load(self.handle, seq, data, len(data or ""), pos))

    def close(self) -> None:
        self.lib.eagle_drafts_free(self.handle)


@dataclass(frozen=True)
class Both:
    """The same text in a session, and in a context with drafts."""

    target: VisionTarget
    session: EagleSession
    plain: EagleSession
    drafts: Drafts

    def append(self, parts: Sequence[Part]) -> None:
        append(self.target, self.session, parts)
        append(self.target, self.plain, parts)

    def verify(self, tokens: list[int], n_kept: int) -> None:
        for session in (self.session, self.plain):
            session.verify(tokens)
            session.commit(n_kept)

    def assert_same(self, token: int) -> list[int]:
        expected = self.session.draft(token, N_STEPS)
        assert len(expected) == N_STEPS
        assert self.drafts.draft(token) == expected
        return expected


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionTarget:
    return make(request.param, tmp_path_factory, mtp="mtp" in KINDS[request.param])


def kinds(target: VisionTarget) -> list[str]:
    return next(kinds for family, kinds in KINDS.items() if family in target.folder.as_posix())


@contextmanager
def both(target: VisionTarget, kind: str, folder: Path, n_ubatch: int = 512) -> Iterator[Both]:
    options: dict[str, Any] = {"n_ubatch": n_ubatch, "n_rs_seq": N_STEPS, "load_mtp": kind == "mtp"}
    with ExitStack() as stack:
        one, two = (stack.enter_context(NativeTarget(target.gguf, n_seq=n, **options)) for n in (1, 2))
        heads: list[Any] = [LoadedHead(native.model, native.model_path) for native in (one, two)]
        if kind != "mtp":
            source = make_draft(folder / kind, replace(CASES[kind], dtype="float32"), seed=7)
            convert_draft(source, target.gguf, folder / f"{kind}.gguf", DraftOptions(outtype="f32"))
            heads = [stack.enter_context(Model(folder / f"{kind}.gguf"))] * 2
        session = stack.enter_context(f32_session(one, heads[0], SessionOptions(N_STEPS)))
        plain = stack.enter_context(EagleSession(two, None, SessionOptions(N_STEPS)))
        drafts = Drafts(plain, heads[1])
        stack.callback(drafts.close)
        yield Both(target, session, plain, drafts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_draft_what_a_session_drafts(target: VisionTarget, layout: str, tmp_path: Path) -> None:
    """After each turn; after a round that keeps two of its drafts; and in a copy."""
    for kind in kinds(target):
        with both(target, kind, tmp_path) as pair:
            rng = np.random.default_rng(7)
            for turn in LAYOUTS[layout]:
                pair.append(filled(turn, rng))
                first, second = rng.integers(0, N_TOKENS, 2).tolist()
                drafted = pair.assert_same(first)
                pair.verify([first, *drafted], 3)
                expected = pair.assert_same(second)
                assert pair.drafts.copy(pair.drafts.pos) == 0
                assert pair.drafts.draft(second, OTHER) == expected


def test_images_in_pieces(target: VisionTarget, tmp_path: Path) -> None:
    """Cut within lines, two images side by side."""
    with both(target, kinds(target)[-1], tmp_path, n_ubatch=N_STEPS + 2) as pair:
        pair.append([TEXT, B, A, TEXT])
        pair.assert_same(7)
        assert pair.drafts.pos < pair.plain.n_past


def test_they_go_back_over_images(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Truncates between two images and before both, then continues with another text."""
    target = make("qwen3vl", tmp_path_factory)
    with both(target, "rope-mrope", tmp_path) as pair:
        pair.append([TEXT, A, TEXT, B, TEXT])
        for n_past in (2 * len(TEXT) + A.n_rows, len(TEXT), 2):
            for session in (pair.session, pair.plain):
                assert session.trim(n_past)
            pair.append([B, TEXT[:2]])
            pair.assert_same(9)


def test_what_is_of_another_text_is_forgotten(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """As after a prompt that came out of the server's cache; what is known of images must not be of the text."""
    target = make("qwen3vl", tmp_path_factory)
    with both(target, "rope-mrope", tmp_path) as pair:
        pair.append([TEXT, A, TEXT])
        pair.drafts.set_text([*TEXT, *TEXT])
        expected = pair.assert_same(9)
        pair.drafts.set_text([*TEXT, *[99] * len(TEXT)])
        assert pair.drafts.draft(9) != expected


def test_a_state_of_another_end_is_refused(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    target = make("qwen3vl", tmp_path_factory)
    with both(target, "rope-mrope", tmp_path) as pair:
        pair.append([TEXT, A, TEXT])
        for pos in (pair.drafts.pos - 1, pair.plain.n_past):
            assert pair.drafts.copy(pos) == calls.ERR_INCOMPATIBLE
            assert pair.drafts.draft(9, OTHER) == []
        pair.assert_same(9)


def test_a_gap_costs_drafts_alone(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """A text that was not decoded here: behind it, it drafts from what follows, images included."""
    target = make("qwen3vl", tmp_path_factory)
    with both(target, "f32", tmp_path) as pair:
        append(target, pair.plain, [TEXT, A])
        assert pair.drafts.load(None, pair.drafts.pos, 0) == 0
        assert pair.drafts.draft(9) == []
        append(target, pair.plain, [TEXT, B, TEXT])
        assert len(pair.drafts.draft(9)) == N_STEPS


def test_a_shift_of_the_context(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The rows after the removed ones remain, and no others: as if a different text had been before them."""
    target = make("qwen3vl", tmp_path_factory)
    rng = np.random.default_rng(3)
    text, other = rng.integers(0, N_TOKENS, (2, 220)).tolist()
    n_kept, n_removed = 4, 90
    with both(target, "f32", tmp_path) as pair:
        pair.append([text])
        drafts, n_past = pair.drafts, len(text) - n_removed
        whole = drafts.draft(9)
        shifted = [*text[:n_kept], *text[n_kept + n_removed :]]
        drafts.set_text(shifted)
        found = drafts.draft(9, pos=n_past)
        assert drafts.copy(n_past, n_past) == 0
        assert drafts.draft(9, OTHER, pos=n_past) == found
    with both(target, "f32", tmp_path) as pair:
        pair.append([text])
        pair.drafts.set_text([*other[: n_kept + n_removed], *text[n_kept + n_removed :]])
        assert pair.drafts.draft(9) == found != whole
