"""A draft in our engine, chain by chain: the parity tests' probe beside fixtures.native.NativeTarget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from fixtures.f32_memory import f32_session
from fixtures.native import NativeTarget, draft_with_probs
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.native.calls import FLOATS, check
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import SessionOptions
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

    def __init__(self, target: NativeTarget, path: Path, hidden: int, n_steps: int = N_STEPS, **options: Any) -> None:
        self.hidden, self.n_steps = hidden, n_steps
        self.model = Model(path)
        self.session = f32_session(target, self.model, SessionOptions(n_steps, **options))

    def close(self) -> None:
        self.session.close()
        self.model.close()

    def eval(self, tokens: list[int]) -> None:
        self.session.eval(tokens)

    def chain(self, token: int) -> list[NativeStep]:
        """Each step of a draft."""
        ids, probs = self.draft(token)
        assert len(ids) == self.n_steps
        return [(self.session.draft_logits(i), self._hidden(i), ids[i], probs[i]) for i in range(self.n_steps)]

    def draft(self, token: int, p_min: float = 0.0) -> tuple[list[int], list[float]]:
        """Ids and the draft's probabilities of them."""
        return draft_with_probs(self.session, token, self.n_steps, p_min)

    def _hidden(self, i: int) -> np.ndarray:
        hidden = np.empty(self.hidden, np.float32)
        pointer = hidden.ctypes.data_as(FLOATS)
        check(self.session._lib.eagle_draft_step(self.session._handle, i, None, pointer), "eagle_draft_step")
        return hidden

    def verify(self, tokens: list[int], n_kept: int) -> None:
        self.session.verify(tokens)
        self.session.commit(n_kept)


def assert_equal(found: list[NativeStep], expected: list[Step]) -> None:
    for (logits, hidden, token, prob), step in zip(found, expected, strict=True):
        for ours, theirs in ((logits, step.logits.numpy()), (hidden, step.hidden.numpy())):
            assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
        assert token == step.token
        assert abs(prob - float(step.logits.softmax(-1).max())) < TOLERANCE
