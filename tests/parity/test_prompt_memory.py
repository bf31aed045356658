"""The draft reads a prompt's features piece by piece: a prompt eight times as long takes no more memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.tiny_gguf import Variant, write_draft, write_target
from llama_eagle.models import Context, ContextOptions, ModelPair, PairOptions
from llama_eagle.session import EagleSession, SessionOptions

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads this process's memory from /proc"),
]

HIDDEN = 256
SHORT, LONG = 1024, 8192  # tokens
FEATURE_BYTES = 3 * HIDDEN * 4  # of a token


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_with_the_prompt(tmp_path: Path) -> None:
    variant = Variant(hidden=HIDDEN)
    files = PairOptions(write_target(tmp_path / "t.gguf", variant), write_draft(tmp_path / "d.gguf", variant))
    options = ContextOptions(n_ctx=LONG + 64, n_batch=512, n_ubatch=128, n_threads=1, n_rs_seq=4)
    with (
        ModelPair(files) as pair,
        Context(pair.target, options) as context,
        EagleSession(context, pair.draft, SessionOptions(4)) as session,
    ):
        prompt = list(b"abcdefgh" * (LONG // 8))
        session.eval(prompt[:SHORT])
        before = resident_bytes()
        session.eval(prompt[SHORT:])
        assert resident_bytes() - before < FEATURE_BYTES * (LONG - SHORT) / 4
