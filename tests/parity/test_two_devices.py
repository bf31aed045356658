"""A target split over two devices, the second an RPC server on loopback: the same features, logits and text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.native import NativeTarget
from fixtures.rpc import offloading
from fixtures.targets import make_target
from fixtures.tiny_gguf import LAYERS, Variant, write_draft, write_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.native.build import library_folder
from parity.pairs import load_log

pytestmark = pytest.mark.native

N_LAYER = 8
SPLIT = N_LAYER // 2  # blocks from here on, and the head, are on the second device
TOLERANCE = 1e-5  # relative to the largest value; float32 on both sides


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Executor]:
    """A process that knows the second device: it cannot be unregistered, and other tests must not meet it."""
    with offloading(library_folder()) as pool:
        yield pool


def evaluate(path: Path, tokens: list[int], n_gpu_layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits [n, vocab] and boundaries [n_layer, n, embd], of a prompt in chunks and of single tokens."""
    with NativeTarget(path, n_ubatch=16, layers=range(N_LAYER), n_gpu_layers=n_gpu_layers) as target:
        parts = [target.decode(tokens[:40])] + [target.decode([token]) for token in tokens[40:]]
    features = [np.concatenate([part[1][il] for part in parts]) for il in range(N_LAYER)]
    return np.concatenate([part[0] for part in parts]), np.stack(features)


def assert_close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max(), what


@pytest.mark.parametrize("family", ["qwen35", "qwen3"])
def test_features_of_every_boundary_and_logits(elsewhere: Executor, tmp_path: Path, family: str) -> None:
    folder = make_target(family, tmp_path / family, seed=1)
    gguf = tmp_path / "model.gguf"
    convert_target(folder, gguf, TargetOptions(outtype="f32"))
    tokens = np.random.default_rng(2).integers(0, 480, 48).tolist()
    n_offloaded = N_LAYER - SPLIT + 1  # the head counts as one
    log = elsewhere.submit(load_log, gguf, n_offloaded).result()
    assert f"offloaded {n_offloaded}/{N_LAYER + 1} layers" in log and "RPC0" in log
    logits, features = evaluate(gguf, tokens, 0)
    split_logits, split_features = elsewhere.submit(evaluate, gguf, tokens, n_offloaded).result()
    for il in range(N_LAYER):
        assert_close(split_features[il], features[il], f"boundary {il}, split at {SPLIT}")
    assert_close(split_logits, logits, "logits")


def generate(target: Path, draft: Path | None, n_gpu_layers: int) -> tuple[str, int]:
    """Greedy text, and how many drafted tokens were accepted."""
    from llama_eagle import EagleLlama

    options: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "verbose": False, "n_gpu_layers": n_gpu_layers}
    llm = EagleLlama(target, draft_path=draft, **options, **({"n_draft": 3} if draft else {}))
    text = llm.create_completion("abc", max_tokens=60, temperature=0.0)["choices"][0]["text"]
    n_accepted = llm.speculative_stats.n_accepted if draft else 0
    llm.close()
    return text, n_accepted


def test_speculative_text_is_the_plain_text(elsewhere: Executor, tmp_path: Path) -> None:
    soft = Variant(sharpness=8.0, mix=0.4)  # everything before has a say in the next letter
    target, draft = write_target(tmp_path / "target.gguf", soft), write_draft(tmp_path / "draft.gguf", soft)
    expected, _ = generate(target, None, 0)
    assert elsewhere.submit(generate, target, None, LAYERS // 2 + 1).result()[0] == expected
    found, n_accepted = elsewhere.submit(generate, target, draft, LAYERS // 2 + 1).result()
    assert found == expected
    assert n_accepted > 0
