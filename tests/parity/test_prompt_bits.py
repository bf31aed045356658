"""A prompt has the same bits with a draft and without, wherever its end falls in the pieces that it is decoded in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.drafts import convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession
from parity.native_draft import NativeDraft

pytestmark = pytest.mark.native

HIDDEN = 64
N_RS_SEQ = 8
N_BATCH, N_UBATCH = 80, 32  # of a batch, the last piece is smaller
N_TOKENS = (20, 32, 33, 39, 40, 41, 64, 65, 80, 81, 90, 113, 200)


def last_row(target: NativeTarget) -> np.ndarray:
    pointer = target.api.llama_get_logits_ith(target.ctx, -1)
    return np.ctypeslib.as_array(pointer, (target.n_vocab,)).copy()


@pytest.mark.parametrize("family", ["qwen35", "qwen3"])
def test_a_prompt_has_the_bits_it_has_without_a_draft(family: str, tmp_path: Path) -> None:
    folder, target, draft = (tmp_path / name for name in ("target", "target.gguf", "draft.gguf"))
    make_target(family, folder, seed=3, dtype="float32")
    convert_target(folder, target, TargetOptions(outtype="f16"))
    convert_draft(make_draft(tmp_path / "draft", CASES["modelopt"]), target, draft)
    sizes = {"n_batch": N_BATCH, "n_ubatch": N_UBATCH}
    with NativeTarget(target, **sizes) as plain, NativeTarget(target, **sizes, n_rs_seq=N_RS_SEQ) as drafted:
        without = EagleSession(plain, None, SessionOptions(0))
        with_draft = NativeDraft(drafted, draft, HIDDEN, N_RS_SEQ)
        for n in N_TOKENS:
            text = np.random.default_rng(n).integers(0, 480, n).tolist()
            without.reset()
            without.eval(text)
            with_draft.session.reset()
            with_draft.eval(text)
            assert np.array_equal(last_row(plain), last_row(drafted)), n
        with_draft.close()
        without.close()
