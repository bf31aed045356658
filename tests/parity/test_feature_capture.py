"""Boundaries that a session reads on their device, and those that somebody reads on the host: each as asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.native import NativeTarget
from llama_eagle.convert.drafts import convert_draft
from parity.native_draft import DenseTarget, NativeDraft

pytestmark = pytest.mark.native

N_UBATCH = 16
TEXT = np.random.default_rng(4).integers(0, 480, 100).tolist()
SPEC = CASES["safeailab"]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> DenseTarget:
    return DenseTarget(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def draft_path(dense: DenseTarget, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("draft")
    path = folder / "draft.gguf"
    return path, list(convert_draft(make_draft(folder / "hf", SPEC), dense.gguf, path).layer_ids)


@pytest.fixture
def target(dense: DenseTarget) -> Iterator[NativeTarget]:
    with NativeTarget(dense.gguf, n_ubatch=N_UBATCH) as found:
        yield found


def on_host(target: NativeTarget, il: int, n: int) -> np.ndarray | None:
    """[n, n_embd] of the last decode; None: the boundary is not captured."""
    get = target.lib.eagle_layer_rows
    get.restype = ctypes.POINTER(ctypes.c_float)
    rows = get(ctypes.c_void_p(target.ctx), il)
    return np.ctypeslib.as_array(rows, (n, target.n_embd)).copy() if rows else None


def capture(target: NativeTarget, il: int, enable: bool) -> None:
    assert target.lib.eagle_capture_layer(ctypes.c_void_p(target.ctx), il, ctypes.c_bool(enable)) == 0


def assert_rows(target: NativeTarget, dense: DenseTarget, il: int, first: int) -> None:
    """The host has boundary `il` of TEXT[first : first + N_UBATCH]."""
    expected = dense.features(TEXT[: first + N_UBATCH], [il])[first:].numpy()
    found = on_host(target, il, N_UBATCH)
    assert found is not None
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_session_alone_copies_nothing_to_the_host(target: NativeTarget, draft_path: tuple[Path, list[int]]) -> None:
    path, layer_ids = draft_path
    draft = NativeDraft(target, path, SPEC.hidden)
    draft.eval(TEXT)
    assert len(draft.chain(1)) == draft.n_steps
    assert [on_host(target, il, 1) for il in layer_ids] == [None] * len(layer_ids)
    draft.close()


@pytest.mark.parametrize("session_first", [False, True])
def test_a_boundary_read_in_both_places(
    dense: DenseTarget, target: NativeTarget, draft_path: tuple[Path, list[int]], session_first: bool
) -> None:
    path, layer_ids = draft_path
    both, session_only = layer_ids[0], layer_ids[1]
    if not session_first:
        capture(target, both, True)
    draft = NativeDraft(target, path, SPEC.hidden)
    if session_first:
        capture(target, both, True)
    draft.eval(TEXT[:N_UBATCH])
    assert_rows(target, dense, both, 0)
    assert on_host(target, session_only, 1) is None
    capture(target, both, False)  # the session still reads it
    draft.eval(TEXT[N_UBATCH : 2 * N_UBATCH])
    assert on_host(target, both, 1) is None
    with_host_copy = draft.chain(1)
    draft.close()
    with NativeTarget(dense.gguf, n_ubatch=N_UBATCH) as fresh:
        alone = NativeDraft(fresh, path, SPEC.hidden)
        alone.eval(TEXT[: 2 * N_UBATCH])
        assert [step[2:] for step in alone.chain(1)] == [step[2:] for step in with_host_copy]
        alone.close()


def test_capture_outlives_the_session(
    dense: DenseTarget, target: NativeTarget, draft_path: tuple[Path, list[int]]
) -> None:
    path, layer_ids = draft_path
    capture(target, layer_ids[0], True)
    draft = NativeDraft(target, path, SPEC.hidden)
    draft.eval(TEXT[:N_UBATCH])
    draft.close()
    target.n_past = N_UBATCH
    target.features(TEXT[N_UBATCH : 2 * N_UBATCH])
    assert_rows(target, dense, layer_ids[0], N_UBATCH)
    assert on_host(target, layer_ids[1], 1) is None
