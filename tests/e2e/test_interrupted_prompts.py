"""Ctrl-C while a prompt is computed: the piece that runs is not finished, and the instance goes on.

libc's raise() and abs() are the caller's abort callback here: it sends SIGINT in the middle of a graph, or ends it.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.llama_pairs import ALPHABET, complete, load, write_pairs
from llama_eagle.errors import NativeError
from llama_eagle.native.calls import ERR_ABORTED
from llama_eagle.sessions import text_memory

pytestmark = [pytest.mark.native, pytest.mark.skipif("sys.platform == 'win32'", reason="SIGINT is POSIX's here")]

PIECE = 32
TEXT = "\0" + (ALPHABET * 9)[: 6 * PIECE - 1]  # also has token 0
DRAFTS = pytest.mark.parametrize("draft", [None, "draft"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("models"))


def open_pair(files: dict[str, Path], draft: str | None, **options: Any) -> Any:
    return load(files, draft=draft, n_batch=PIECE, **{"n_ubatch": PIECE, "n_draft": 4, **options})


def while_computing(llm: Any, function: str | None, argument: int = 0) -> None:
    """Between two operations of every graph, libc's `function` is called; what is not 0 ends the graph."""
    import llama_cpp

    address = ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value if function else 0
    callback = llama_cpp.ggml_abort_callback(address or 0)
    llama_cpp.llama_set_abort_callback(llm._ctx.ctx, callback, ctypes.c_void_p(argument))


def interrupt_after(llm: Any, share: float) -> Callable[[str, float], None]:
    def on_progress(_what: str, done: float) -> None:
        if done >= share:
            while_computing(llm, "raise", signal.SIGINT)

    return on_progress


@DRAFTS
def test_the_piece_that_runs_is_not_finished(files: dict[str, Path], draft: str | None) -> None:
    with open_pair(files, draft) as llm:
        while_computing(llm, "raise", signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            llm.eval(llm.tokenize(TEXT.encode()))
        while_computing(llm, None)
        assert llm._session.n_past == 0
        expected = open_pair(files, None)
        assert complete(llm, TEXT)["text"] == complete(expected, TEXT)["text"]
        expected.close()


def test_progress_moves_within_a_piece(files: dict[str, Path]) -> None:
    """libc's usleep() waits 10 ms after every operation. No part of a piece of four micro-batches repeats a share."""
    seen: list[float] = []
    with open_pair(files, None, n_ubatch=PIECE // 4) as llm:
        llm._memory.on_progress = seen.append
        while_computing(llm, "usleep", 10_000)
        llm.eval(llm.tokenize(TEXT[: 2 * PIECE].encode()))
    assert seen == sorted(set(seen)) and seen[-1] == 1
    half = text_memory._work(0, PIECE) / text_memory._work(0, 2 * PIECE)
    assert half in seen and any(share < half for share in seen) and any(half < share < 1 for share in seen)


@DRAFTS
def test_what_was_read_before_need_not_be_read_again(files: dict[str, Path], draft: str | None) -> None:
    """From the checkpoint before the interrupted piece on."""
    with open_pair(files, draft, checkpoint_every=PIECE) as llm:
        llm._memory.on_progress = lambda done: interrupt_after(llm, 0.5)("prompt", done)
        with pytest.raises(KeyboardInterrupt):
            complete(llm, TEXT)
        llm._memory.on_progress = None
        while_computing(llm, None)
        answer = complete(llm, TEXT)
        assert 0 < answer["timings"]["prompt_n"] <= len(TEXT) // 2
        with open_pair(files, None) as fresh:
            assert answer["text"] == complete(fresh, TEXT)["text"]
            assert complete(llm, TEXT[:40])["text"] == complete(fresh, TEXT[:40])["text"]


@DRAFTS
def test_the_callers_own_callback_stays(files: dict[str, Path], draft: str | None) -> None:
    with open_pair(files, draft) as llm:
        for _ in range(2):
            llm.reset()
            while_computing(llm, "abs", 1)
            for _ in range(2):
                with pytest.raises(NativeError) as raised:
                    llm.eval([1, 2, 3])
                assert raised.value.code == ERR_ABORTED
                llm.reset()
        while_computing(llm, None)
        llm.eval([1, 2, 3])


@DRAFTS
def test_a_first_prompt_that_was_stopped_leaves_it_usable(files: dict[str, Path], draft: str | None) -> None:
    """Without a reset: it reads the next one from the beginning."""
    with open_pair(files, draft) as llm, open_pair(files, None) as fresh:
        while_computing(llm, "abs", 1)
        with pytest.raises(NativeError):
            complete(llm, TEXT)
        while_computing(llm, None)
        assert complete(llm, TEXT)["text"] == complete(fresh, TEXT)["text"]


@DRAFTS
def test_a_program_with_a_handler_of_its_own_is_left_alone(files: dict[str, Path], draft: str | None) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        with open_pair(files, draft) as llm:
            while_computing(llm, "raise", signal.SIGINT)
            llm.eval(llm.tokenize(TEXT.encode()))
            assert llm._session.n_past == len(TEXT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard
