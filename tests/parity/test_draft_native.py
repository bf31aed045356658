"""Converted drafts in our engine, beside a real target: the logits and hidden states of the torch reference."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fixtures.eagle3_checkpoints import CASES, make_draft
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle._native import SessionParams, check
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import NativeError
from parity.eagle3_reference import Eagle3Reference, Step

pytestmark = pytest.mark.native

TOLERANCE = 1e-4
N_STEPS = 5


class Target:
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


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("target"))


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

    def chain(self, token: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """(logits, hidden, id) of each step."""
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


def assert_equal(found: list[tuple[np.ndarray, np.ndarray, int]], expected: list[Step]) -> None:
    for (logits, hidden, token), step in zip(found, expected, strict=True):
        for ours, theirs in ((logits, step.logits.numpy()), (hidden, step.hidden.numpy())):
            assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
        assert token == step.token


def assert_top(draft: NativeDraft, expected: list[Step], target_ids: torch.Tensor) -> None:
    """The likeliest tokens of each step, in order, with their probabilities."""
    for i, step in enumerate(expected):
        ids, probs = draft.top(i, 5)
        best = step.logits.softmax(-1).topk(5)
        assert ids == target_ids[best.indices].tolist()
        assert np.abs(probs - best.values.numpy()).max() < TOLERANCE
    for step, k in ((len(expected), 1), (0, 0), (0, len(target_ids) + 1)):
        with pytest.raises(NativeError):
            draft.top(step, k)


@pytest.fixture
def context(target: Target) -> Iterator[NativeTarget]:
    with NativeTarget(target.gguf) as native:
        yield native


@pytest.mark.parametrize("name", CASES)
def test_chains(name: str, target: Target, context: NativeTarget, tmp_path: Path) -> None:
    """A prompt, a chain, a round that keeps two of its drafts, another chain."""
    spec = replace(CASES[name], dtype="float32")
    folder = make_draft(tmp_path / "draft", spec, seed=7)
    report = convert_draft(folder, target.gguf, tmp_path / "draft.gguf", DraftOptions(outtype="f32"))
    own = spec.hidden != spec.target_hidden
    shared = {} if own else {"embedding": target.embedding, "head": target.head}
    reference = Eagle3Reference(folder, **shared)
    tokens = np.random.default_rng(5).integers(0, 480, 12).tolist()
    draft = NativeDraft(context, tmp_path / "draft.gguf", spec.hidden)
    try:
        draft.eval(tokens[:9])
        features = target.features(tokens[:9], report.layer_ids)
        reference.prefill(tokens[:9], features)
        expected = reference.chain(tokens[9], features[8], 8, N_STEPS)
        assert_equal(draft.chain(tokens[9]), expected)
        assert_top(draft, expected, reference.target_ids)
        kept = [*tokens[:10], expected[0].token, expected[1].token]
        draft.verify([tokens[9], *(step.token for step in expected)], 3)
        features = target.features(kept, report.layer_ids)
        reference.trim(8)
        reference.prefill(kept[8:], features[8:], first=8)
        assert_equal(draft.chain(tokens[11]), reference.chain(tokens[11], features[11], 11, N_STEPS))
    finally:
        draft.close()


def test_a_draft_ends_before_it_becomes_too_improbable(target: Target, context: NativeTarget, tmp_path: Path) -> None:
    """The rest is not computed, and missing nowhere: later drafts are those of a session that never stopped early."""
    spec = replace(CASES["safeailab"], dtype="float32")
    convert_draft(make_draft(tmp_path / "draft", spec, seed=7), target.gguf, tmp_path / "draft.gguf", DraftOptions())
    draft = NativeDraft(context, tmp_path / "draft.gguf", spec.hidden)
    try:
        draft.eval([3, 1, 4, 1, 5])
        ids, probs = draft.draft(9)
        cumulative = np.cumprod(np.float32(probs))
        for n in range(N_STEPS):
            assert draft.draft(9, float(cumulative[n]) * 1.01) == (ids[:n], probs[:n])
            draft.top(n, 1)  # the token that was too much was computed
            if n + 1 < N_STEPS:
                with pytest.raises(NativeError, match=f"step {n + 1} was not drafted"):
                    draft.top(n + 1, 1)
        assert draft.draft(9, float(cumulative[-1]) * 0.99) == (ids, probs)
        draft.draft(9, 1.0)
        draft.verify([9, ids[0]], 2)
        draft.draft(ids[1], 1.0)
        after = draft.draft(ids[1])
    finally:
        draft.close()
    with NativeTarget(target.gguf) as other:
        fresh = NativeDraft(other, tmp_path / "draft.gguf", spec.hidden)
        fresh.eval([3, 1, 4, 1, 5, 9, ids[0]])
        expected = fresh.draft(ids[1])
        fresh.close()
    assert after[0] == expected[0]
    assert np.allclose(after[1], expected[1], rtol=1e-4)
