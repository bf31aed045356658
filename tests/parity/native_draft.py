"""A draft in our engine, chain by chain: the parity tests' probe beside fixtures.native.NativeTarget."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from fixtures.native import NativeTarget
from llama_eagle._native import SessionParams, check
from parity.eagle3_reference import Step

TOLERANCE = 1e-4  # of a step's largest value
N_STEPS = 5

NativeStep = tuple[np.ndarray, np.ndarray, int]  # logits, hidden, id


class NativeDraft:
    """A session of our engine; KV memory in float32."""

    def __init__(self, target: NativeTarget, path: Path, hidden: int) -> None:
        self.lib, self.api, self.hidden = target.lib, target.api, hidden
        self.model = self.api.llama_model_load_from_file(str(path).encode(), self.api.llama_model_default_params())
        assert self.model, f"{path} does not load"
        params: SessionParams = self.lib.eagle_session_default_params()
        params.n_draft_max, params.type_kv = N_STEPS, self.api.GGML_TYPE_F32
        self.session = ctypes.c_void_p()
        status = self.lib.eagle_session_new(target.ctx, self.model, ctypes.byref(params), ctypes.byref(self.session))
        check(status, "eagle_session_new")

    def close(self) -> None:
        self.lib.eagle_session_free(self.session)
        self.api.llama_model_free(self.model)

    def eval(self, tokens: list[int]) -> None:
        check(self.lib.eagle_eval(self.session, (ctypes.c_int32 * len(tokens))(*tokens), len(tokens)), "eagle_eval")

    def chain(self, token: int) -> list[NativeStep]:
        """Each step of a draft of N_STEPS tokens."""
        ids, _ = self.draft(token)
        assert len(ids) == N_STEPS
        return [(*self._step(i), ids[i]) for i in range(N_STEPS)]

    def draft(self, token: int, p_min: float = 0.0) -> tuple[list[int], list[float]]:
        """Ids and the draft's probabilities of them."""
        ids, probs, n_out = (ctypes.c_int32 * N_STEPS)(), (ctypes.c_float * N_STEPS)(), ctypes.c_int32()
        status = self.lib.eagle_draft(self.session, token, N_STEPS, p_min, ids, probs, ctypes.byref(n_out))
        check(status, "eagle_draft")
        return ids[: n_out.value], probs[: n_out.value]

    def _step(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        logits = np.empty(self.lib.eagle_n_vocab_draft(self.session), np.float32)
        hidden = np.empty(self.hidden, np.float32)
        pointers = (a.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for a in (logits, hidden))
        check(self.lib.eagle_draft_step(self.session, i, *pointers), "eagle_draft_step")
        return logits, hidden

    def top(self, step: int, k: int) -> tuple[list[int], np.ndarray]:
        ids, probs = (ctypes.c_int32 * k)(), (ctypes.c_float * k)()
        check(self.lib.eagle_draft_top(self.session, step, k, ids, probs), "eagle_draft_top")
        return list(ids), np.array(probs)

    def verify(self, tokens: list[int], n_kept: int) -> None:
        rows = (ctypes.c_int32 * len(tokens))(*tokens)
        check(self.lib.eagle_verify(self.session, rows, len(tokens)), "eagle_verify")
        check(self.lib.eagle_commit(self.session, n_kept), "eagle_commit")


def assert_equal(found: list[NativeStep], expected: list[Step]) -> None:
    for (logits, hidden, token), step in zip(found, expected, strict=True):
        for ours, theirs in ((logits, step.logits.numpy()), (hidden, step.hidden.numpy())):
            assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
        assert token == step.token
