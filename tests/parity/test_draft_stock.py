"""Converted drafts in llama.cpp's own eagle3 graph instead of our engine: logits and hidden states of the reference.

native/tests/stock_draft.cpp drives the graph through llama.cpp's own interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.eagle3_checkpoints import CASES, N_VOCAB, STOCK, TARGET_HIDDEN, DraftSpec, make_draft
from fixtures.programs import run_program
from fixtures.targets import make_target
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target
from parity.eagle3_reference import Eagle3Reference, Step
from safetensors.torch import load_file

pytestmark = pytest.mark.native

TOLERANCE = 1e-4
N_SLOTS, N_STEPS = 8, 5


@dataclass
class Target:
    folder: Path
    gguf: Path
    embedding: torch.Tensor
    head: torch.Tensor

    def reference(self, draft: Path, spec: DraftSpec) -> Eagle3Reference:
        fits = spec.hidden == spec.target_hidden
        return Eagle3Reference(draft, **({"embedding": self.embedding, "head": self.head} if fits else {}))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = make_target("qwen3", tmp_path_factory.mktemp("target"), seed=3, dtype="float32")
    convert_target(folder, folder / "target.gguf", TargetOptions(outtype="f32"))
    state = load_file(folder / "model.safetensors")
    return Target(folder, folder / "target.gguf", state["model.embed_tokens.weight"], state["lm_head.weight"])


@dataclass
class Round:
    """tokens[P] and features[P] fill slot P; the last slot is the root of a chain."""

    tokens: list[int]
    features: torch.Tensor

    @classmethod
    def random(cls, spec: DraftSpec) -> Round:
        random = torch.Generator().manual_seed(11)
        tokens = torch.randint(0, N_VOCAB, (N_SLOTS,), generator=random).tolist()
        return cls(tokens, torch.randn(N_SLOTS, spec.n_aux * TARGET_HIDDEN, generator=random))

    def write(self, path: Path) -> Path:
        header = np.array([N_SLOTS, N_STEPS, self.features.shape[1], *self.tokens], np.int32)
        path.write_bytes(header.tobytes() + self.features.numpy().tobytes())
        return path

    def expected(self, reference: Eagle3Reference) -> list[Step]:
        last = N_SLOTS - 1
        filled = [reference.slot(self.tokens[i], reference.fuse(self.features[i]), i) for i in range(last)]
        return filled + reference.chain(self.tokens[last], self.features[last], last, N_STEPS)


def read_rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """logits [n_rows, V] over the target's vocabulary, hidden [n_rows, H]."""
    n_rows, n_vocab, n_embd = (int(n) for n in np.fromfile(path, np.int32, 3))
    rows = np.fromfile(path, np.float32, offset=12).reshape(n_rows, n_vocab + n_embd)
    return rows[:, :n_vocab], rows[:, n_vocab:]


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", STOCK)
def test_stock_layout(name: str, target: Target, tmp_path: Path) -> None:
    spec, file = CASES[name], tmp_path / "draft.gguf"
    folder = make_draft(tmp_path / "draft", spec, seed=7)
    assert convert_draft(folder, target.gguf, file, DraftOptions(outtype="f32")).layout == "stock"
    inputs = Round.random(spec)
    done = run_program("stock_draft", target.gguf, file, inputs.write(tmp_path / "in"), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    logits, hidden = read_rows(tmp_path / "out")
    reference = target.reference(folder, spec)
    ids = reference.target_ids.numpy()
    assert np.isneginf(np.delete(logits, ids, axis=1)).all()  # outside the draft vocabulary
    steps = inputs.expected(reference)
    for i, step in enumerate(steps):
        assert relative_error(logits[i, ids], step.logits.numpy()) < TOLERANCE, i
        assert relative_error(hidden[i], step.hidden.numpy()) < TOLERANCE, i
    assert logits.argmax(axis=1).tolist() == [step.token for step in steps]


@pytest.mark.parametrize("name", [name for name in CASES if name not in STOCK])
def test_extended_layout_is_refused(name: str, target: Target, tmp_path: Path) -> None:
    spec, file = CASES[name], tmp_path / "draft.gguf"
    folder = make_draft(tmp_path / "draft", spec, seed=7)
    assert convert_draft(folder, target.gguf, file, DraftOptions(outtype="f32")).layout == "extended"
    inputs = Round.random(spec).write(tmp_path / "in")
    done = run_program("stock_draft", target.gguf, file, inputs, tmp_path / "out")
    assert done.returncode == 1, done
    assert "extended layout" in done.stderr
    assert not (tmp_path / "out").exists()
