"""Memory of `EagleLlama` at Qwen3.5's vocabulary: a row of logits is a megabyte, a batch of them half a gigabyte."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from fixtures.llama_pairs import complete
from fixtures.tiny_gguf import Variant, write_draft, write_target

pytestmark = [pytest.mark.native, pytest.mark.slow]

N_VOCAB = 248_320
ROW = N_VOCAB * 4  # bytes of a row of logits
LARGE = Variant(n_vocab=N_VOCAB)
PROMPT = "abcdefghijklmnopqrstuvwxyz" * 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "model_path": write_target(folder / "target.gguf", LARGE),
        "draft_path": write_draft(folder / "draft.gguf", LARGE),
    }


def test_bytes_kept(files: dict[str, Any]) -> None:
    """numpy's and Python's memory. The parent's array of n_batch rows alone would be 512 of them, and a state 208.

    Its constructor makes that array here too, and it is dropped untouched.
    """
    from llama_eagle import EagleLlama

    tracemalloc.start()
    with EagleLlama(**files, n_draft=3, n_ctx=512, n_batch=512, n_threads=1, verbose=False) as llm:
        tracemalloc.reset_peak()
        assert complete(llm, PROMPT, temperature=0.8)["text"]
        assert complete(llm, PROMPT, temperature=0, max_tokens=26)["text"] == PROMPT[:26]
        assert llm.scores.shape == (1, N_VOCAB)
        state = llm.save_state()
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert state.scores.nbytes == 0
        assert len(pickle.dumps(state)) < ROW
        assert kept < 10 * ROW, f"{kept / ROW:.1f} rows"
        assert peak < 10 * ROW, f"{peak / ROW:.1f} rows"
        llm.reset()
        llm.load_state(state)
        assert complete(llm, PROMPT, temperature=0, max_tokens=26)["text"] == PROMPT[:26]


def test_rows_that_are_asked_for_are_kept(files: dict[str, Any]) -> None:
    from llama_eagle import EagleLlama

    with EagleLlama(**files, n_draft=3, n_ctx=256, n_threads=1, logits_all=True, verbose=False) as llm:
        llm.eval(llm.tokenize(b"abc"))
        state = llm.save_state()
        assert state.scores.shape == (3, N_VOCAB)
        assert np.argmax(state.scores, axis=1).tolist() == list(b"bcd")
