"""Converted targets in our libllama against transformers: logits, and the features that EAGLE-3 reads."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures.native import NativeTarget
from fixtures.targets import FAMILIES, HYBRID, make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.gguf.architectures import FIRST_BOUNDARY_TARGETS, LAST_BOUNDARY_TARGETS
from llama_eagle.gguf.header import read_header

pytestmark = pytest.mark.native

N_TOKENS = 64
LOGITS = 1e-3  # largest absolute error
FEATURES = 1e-4  # largest error, relative to the largest value of the boundary


@dataclass
class Pair:
    """A converted target and what transformers computes for it in float32."""

    family: str
    gguf: Path
    tokens: list[int]
    logits: np.ndarray
    boundaries: list[np.ndarray]  # [n_tokens, embd] entering each block


def _run_transformers(folder: Path, family: str, tokens: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    model = getattr(transformers, FAMILIES[family][1]).from_pretrained(folder, dtype=torch.float32)
    model.eval()
    blocks = model.get_decoder().layers if hasattr(model, "get_decoder") else model.model.layers
    seen: list[np.ndarray] = []
    for block in blocks:
        block.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append((args[0] if args else kwargs["hidden_states"])[0].numpy().copy()),
            with_kwargs=True,
        )
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits, seen


@pytest.fixture(scope="module", params=list(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    family = request.param
    folder = make_target(family, tmp_path_factory.mktemp(family), seed=1, mtp=family in HYBRID)
    gguf = folder / "model.gguf"
    convert_target(folder, gguf, TargetOptions(outtype="f32"))
    tokens = np.random.default_rng(2).integers(0, 480, N_TOKENS).tolist()
    logits, boundaries = _run_transformers(folder, family, tokens)
    yield Pair(family, gguf, tokens, logits, boundaries)


def _check_logits(found: np.ndarray, pair: Pair) -> None:
    assert np.abs(found - pair.logits).max() < LOGITS
    assert (found.argmax(axis=1) == pair.logits.argmax(axis=1)).all()


def test_logits_of_one_batch(pair: Pair) -> None:
    with NativeTarget(pair.gguf) as target:
        _check_logits(target.decode(pair.tokens)[0], pair)


def test_logits_of_chunks_and_single_tokens(pair: Pair) -> None:
    with NativeTarget(pair.gguf, n_ubatch=16) as target:
        first = target.decode(pair.tokens[:40])[0]  # three chunks, the last one short
        rest = [target.decode([token])[0] for token in pair.tokens[40:]]
        _check_logits(np.concatenate([first, *rest]), pair)


def architecture(pair: Pair) -> str:
    return read_header(pair.gguf).architecture


def test_features_of_every_boundary(pair: Pair) -> None:
    first = 0 if architecture(pair) in FIRST_BOUNDARY_TARGETS else 1
    with NativeTarget(pair.gguf, n_ubatch=16, layers=range(first, len(pair.boundaries))) as target:
        parts = [target.decode(pair.tokens[:40])[1], target.decode(pair.tokens[40:])[1]]
        for il, expected in list(enumerate(pair.boundaries))[first:]:
            found = np.concatenate([part[il] for part in parts])
            assert np.abs(found - expected).max() < FEATURES * np.abs(expected).max(), f"boundary {il}"


def test_a_boundary_that_is_not_published_is_an_error_by_name(pair: Pair) -> None:
    with NativeTarget(pair.gguf) as target:
        n_layer = len(pair.boundaries)
        published = [il for il in range(-1, n_layer + 2) if target.publishes(il)]
        first = 0 if architecture(pair) in FIRST_BOUNDARY_TARGETS else 1
        assert published == [*range(first, n_layer + (architecture(pair) in LAST_BOUNDARY_TARGETS))]
        for il in {-1, 0, n_layer, n_layer + 1}.difference(published):
            assert not target.publishes(il)
            assert target.capture(il) != 0
            assert str(il) in target.last_error()
        target.decode(pair.tokens[:4])  # still usable


_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
_MROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
_LINEAR, _FULL = "linear_attention", "full_attention"
UNUSUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "biases everywhere": ("llama3", {"attention_bias": True, "mlp_bias": True}),
    "linear scaling": ("llama3", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "dynamic scaling": ("qwen3", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "YaRN": ("qwen3", {"rope_parameters": _YARN}),
    "YaRN with a magnitude": ("qwen3", {"rope_parameters": {**_YARN, "attention_factor": 1.5}}),
    "YaRN with mscale": ("llama3", {"rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.2}}),
    "YaRN with another length next to it": ("qwen3", {"rope_parameters": _YARN, "original_max_position_embeddings": 8}),
    "YaRN without a factor": ("qwen3", {"rope_parameters": {**_YARN, "factor": None}}),
    "full attention in every second block": ("qwen35-text", {"layer_types": [_LINEAR, _FULL] * 4}),
    "full attention at unequal distances": (
        "qwen3next",
        {"layer_types": [_LINEAR, _FULL, _FULL, *[_LINEAR] * 4, _FULL]},
    ),
    "sections beyond the rotation": ("qwen35-text", {"rope_parameters": {**_MROPE, "mrope_section": [11, 11, 10]}}),
    "a window of the whole context": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0},
    ),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_logits_of_unusual_configurations(case: str, tmp_path: Path) -> None:
    family, fields = UNUSUAL[case]
    folder = make_target(family, tmp_path, seed=1, **copy.deepcopy(fields))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))  # transformers stores what it made of them
    convert_target(folder, tmp_path / "m.gguf", TargetOptions(outtype="f32"))
    tokens = np.random.default_rng(2).integers(0, 480, N_TOKENS).tolist()
    logits, boundaries = _run_transformers(folder, family, tokens)
    with NativeTarget(tmp_path / "m.gguf") as target:
        _check_logits(target.decode(tokens)[0], Pair(family, tmp_path / "m.gguf", tokens, logits, boundaries))
