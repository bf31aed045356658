"""A draft in our engine, chain by chain: the parity tests' probe beside fixtures.native.NativeTarget."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch
import transformers
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle._native import SessionParams, check
from llama_eagle.convert.targets import TargetOptions, convert_target
from parity.eagle3_reference import Step

TOLERANCE = 1e-4  # of a step's largest value
N_STEPS = 5

NativeStep = tuple[np.ndarray, np.ndarray, int, float]  # logits, hidden, id, its probability


class DenseTarget:
    """A tiny dense target as a checkpoint, as a GGUF and in torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_target("qwen3", folder, seed=3, dtype="float32")
        self.gguf = folder / "target.gguf"
        convert_target(self.folder, self.gguf, TargetOptions(outtype="f32"))
        self.model = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.embedding = self.model.get_input_embeddings().weight.detach()
        self.head = self.model.lm_head.weight.detach()

    def features(self, tokens: list[int], boundaries: list[int]) -> torch.Tensor:
        """[n, A * T]: the residual streams entering the blocks, side by side."""
        with torch.no_grad():
            hidden = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([hidden[i][0] for i in boundaries], -1)


class NativeDraft:
    """A session of our engine that drafts chains of `n_steps`; KV memory in float32."""

    def __init__(self, target: NativeTarget, path: Path, hidden: int, n_steps: int = N_STEPS) -> None:
        self.lib, self.api, self.hidden, self.n_steps = target.lib, target.api, hidden, n_steps
        self.model = self.api.llama_model_load_from_file(str(path).encode(), self.api.llama_model_default_params())
        assert self.model, f"{path} does not load"
        params: SessionParams = self.lib.eagle_session_default_params()
        params.n_draft_max, params.type_kv = n_steps, self.api.GGML_TYPE_F32
        self.session = ctypes.c_void_p()
        status = self.lib.eagle_session_new(target.ctx, self.model, ctypes.byref(params), ctypes.byref(self.session))
        check(status, "eagle_session_new")

    def close(self) -> None:
        self.lib.eagle_session_free(self.session)
        self.api.llama_model_free(self.model)

    def eval(self, tokens: list[int]) -> None:
        check(self.lib.eagle_eval(self.session, (ctypes.c_int32 * len(tokens))(*tokens), len(tokens)), "eagle_eval")

    def chain(self, token: int) -> list[NativeStep]:
        """Each step of a draft."""
        ids, probs = self.draft(token)
        assert len(ids) == self.n_steps
        return [(*self._step(i), ids[i], probs[i]) for i in range(self.n_steps)]

    def draft(self, token: int, p_min: float = 0.0) -> tuple[list[int], list[float]]:
        """Ids and the draft's probabilities of them."""
        ids, probs, n_out = (ctypes.c_int32 * self.n_steps)(), (ctypes.c_float * self.n_steps)(), ctypes.c_int32()
        status = self.lib.eagle_draft(self.session, token, self.n_steps, p_min, ids, probs, ctypes.byref(n_out))
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

    def trim(self, n_past: int) -> None:
        check(self.lib.eagle_trim(self.session, n_past), "eagle_trim")


def assert_equal(found: list[NativeStep], expected: list[Step]) -> None:
    for (logits, hidden, token, prob), step in zip(found, expected, strict=True):
        for ours, theirs in ((logits, step.logits.numpy()), (hidden, step.hidden.numpy())):
            assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
        assert token == step.token
        assert abs(prob - float(step.logits.softmax(-1).max())) < TOLERANCE
