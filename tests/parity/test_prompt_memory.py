"""The draft reads a prompt's features piece by piece: neither a prompt's length nor n_batch shows in the memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fixtures.tiny_gguf import Variant, write_draft, write_target
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import ContextOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads this process's memory from /proc"),
]

HIDDEN = 256
SHORT, LONG = 1024, 8192  # tokens
FEATURE_BYTES = 3 * HIDDEN * 4  # of a token


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def session(folder: Path, n_batch: int) -> Iterator[EagleSession]:
    variant = Variant(hidden=HIDDEN)
    files = PairOptions(write_target(folder / "t.gguf", variant), write_draft(folder / "d.gguf", variant))
    options = ContextOptions(n_ctx=LONG + 64, n_batch=n_batch, n_ubatch=128, n_threads=1, n_rs_seq=4)
    with (
        ModelPair(files) as pair,
        Context(pair.target, options) as context,
        EagleSession(context, pair.draft, SessionOptions(4)) as opened,
    ):
        yield opened


PROMPT = list(b"abcdefgh" * (LONG // 8))


def test_memory_does_not_grow_with_the_prompt(tmp_path: Path) -> None:
    with session(tmp_path, n_batch=512) as opened:
        opened.eval(PROMPT[:SHORT])
        before = resident_bytes()
        opened.eval(PROMPT[SHORT:])
        assert resident_bytes() - before < FEATURE_BYTES * (LONG - SHORT) / 4


def test_no_buffer_of_n_batch_rows(tmp_path: Path) -> None:
    with session(tmp_path, n_batch=LONG) as opened:
        before = resident_bytes()
        opened.eval(PROMPT[:8])
        assert resident_bytes() - before < FEATURE_BYTES * LONG / 4
