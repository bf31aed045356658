"""An MTP head in our engine beside the torch reference: the same text, rounds and drafts for both."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fixtures.f32_memory import f32_session
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.sessions.options import SessionOptions
from parity.mtp_reference import MTPReference, TargetStates
from parity.native_draft import N_STEPS, NativeDraft, assert_equal

N_TOKENS = 480  # of the tiny targets' text


@dataclass(frozen=True)
class LoadedHead:
    """A model with the head, the target itself or another, as EagleSession takes it."""

    handle: Any
    path: Path


class NativeMtp(NativeDraft):
    """A session whose drafter is the target's own MTP head, or `head`; K and V in float32."""

    def __init__(
        self, target: NativeTarget, n_steps: int = N_STEPS, head: LoadedHead | None = None, **options: Any
    ) -> None:
        self.hidden, self.n_steps = target.n_embd, n_steps
        draft: Any = head or LoadedHead(target.model, target.model_path)
        self.session = f32_session(target, draft, SessionOptions(n_steps, **options))

    def close(self) -> None:
        self.session.close()


class MtpTarget:
    """A tiny target with an MTP head: checkpoint, GGUF and torch."""

    def __init__(self, family: str, folder: Path, seed: int = 5) -> None:
        self.folder = make_target(family, folder / "target", seed=seed, dtype="float32", mtp=True)
        self.gguf = folder / "target.gguf"
        convert_target(self.folder, self.gguf, TargetOptions(outtype="f32"))
        self.states = TargetStates(self.folder)

    def open(self, n_ubatch: int = 512, n_rs_seq: int = N_STEPS, **options: Any) -> NativeTarget:
        sizes = {"n_ctx": 1024, "n_ubatch": n_ubatch, "n_rs_seq": n_rs_seq}
        return NativeTarget(self.gguf, load_mtp=True, **{**sizes, **options})


class Rounds:
    """One text in an engine's memory and in the reference's; every draft of both is compared."""

    def __init__(self, target: MtpTarget, draft: NativeMtp, reference: MTPReference, seed: int = 5) -> None:
        self.target, self.draft, self.reference = target, draft, reference
        self.rng = random.Random(seed)
        self.text: list[int] = []

    def eval(self, n: int) -> None:
        tokens = self.rng.choices(range(N_TOKENS), k=n)
        self.draft.eval(tokens)
        self.text += tokens

    def round(self, n_kept: int) -> None:
        """Drafts after a random token, compares the chain, and keeps as many rows of the round."""
        hidden = self._prefill()
        id_last = self.rng.randrange(N_TOKENS)
        chain = self.draft.chain(id_last)
        assert_equal(chain, self.reference.chain(id_last, hidden, self.draft.n_steps))
        rows = [id_last, *(step[2] for step in chain)]
        self.draft.verify(rows, n_kept)
        self.text += rows[:n_kept]

    def _prefill(self) -> torch.Tensor:
        """The reference's memory of the text; returns the target's state after it."""
        hidden = self.target.states.hidden(self.text)
        self.reference.reset()
        self.reference.prefill(self.text, hidden[:-1])
        return hidden[-1]
