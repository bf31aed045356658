"""A hybrid target with and without a draft on GPUs, at every offload: the CPU's logits, drafts and text.

The GPUs are stand-ins (fixtures.gpus). Prompts of 32 rows and more are where a GPU offloads work on weights that lie
in host memory, and takes with it what it thinks it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pytest
from fixtures.gpus import Gpus, gpus, n_computed
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.quantize.quantize import QuantizeOptions, quantize
from parity.pairs import (
    ALL,
    HOST,
    N_DRAFT,
    N_LAYER,
    TOLERANCE,
    Files,
    Layers,
    Trace,
    load_log,
    make_pair,
    play,
    session_on,
)

pytestmark = pytest.mark.native

OURS = ("EAGLE_GDN", "EAGLE_CONV_WINDOW")
KINDS = {
    "cuda": Gpus(),  # computes our operations
    "vulkan": Gpus(lacks=OURS),
    "two": Gpus(n_devices=2),
    "two-vulkan": Gpus(n_devices=2, lacks=OURS),
}
LENGTHS = [1, 31, 32, 33, 700]
OFFLOADS = {"none": HOST, "draft": (0, ALL), "few": (N_LAYER // 2, ALL), "target": (ALL, 0), "all": (ALL, ALL)}
TOKENS = np.random.default_rng(5).integers(0, 480, max(LENGTHS) + 8).tolist()
N_CTX = 1024


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with gpus(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_pair("qwen35", tmp_path_factory.mktemp("pair"))


def logits(target: Path, n_prompt: int, n_gpu_layers: int) -> np.ndarray:
    """[n + 8, vocab]: a prompt, single tokens, and a batch short enough to be undone."""
    given = {"n_ctx": N_CTX, "n_gpu_layers": n_gpu_layers, "n_rs_seq": N_DRAFT}
    with NativeTarget(target, **given) as native:
        parts = [native.decode(TOKENS[:n_prompt])[0]]
        parts += [native.decode([token])[0] for token in TOKENS[n_prompt : n_prompt + 4]]
        parts.append(native.decode(TOKENS[n_prompt + 4 : n_prompt + 8])[0])
    return np.concatenate(parts)


def rounds(files: Files, layers: Layers, n_prompt: int) -> Trace:
    with session_on(files, layers, n_ubatch=512, n_ctx=N_CTX) as session:
        session.eval(TOKENS[:n_prompt])
        return play(session, TOKENS[n_prompt], [N_DRAFT] * 6)[0]


@pytest.mark.parametrize("n_prompt", LENGTHS)
def test_logits(elsewhere: Executor, files: Files, n_prompt: int) -> None:
    expected = logits(files.target, n_prompt, 0)
    for n_gpu_layers in (0, 1, N_LAYER // 2, ALL):
        found = elsewhere.submit(logits, files.target, n_prompt, n_gpu_layers).result()
        off = np.abs(found - expected).max() / np.abs(expected).max()
        assert off <= TOLERANCE, f"{n_gpu_layers} layers on the GPU: logits off by {off:.2g}"


@pytest.mark.parametrize("n_prompt", LENGTHS)
def test_drafts_and_text(elsewhere: Executor, files: Files, n_prompt: int) -> None:
    expected = rounds(files, HOST, n_prompt)
    for name, layers in OFFLOADS.items():
        found = elsewhere.submit(rounds, files, layers, n_prompt).result()
        assert (found.drafts, found.text) == (expected.drafts, expected.text), name
        assert np.allclose(found.probs, expected.probs, rtol=0, atol=TOLERANCE), name


def weight_buffers(target: Path, n_gpu_layers: int) -> set[str]:
    return set(re.findall(r"(\S+) model buffer size", load_log(target, n_gpu_layers)))


def test_layouts_of_the_cpu(elsewhere: Executor, tmp_path: Path) -> None:
    """Where no layer is offloaded, weights have the layouts that they have without a GPU."""
    checkpoint = make_target("qwen3", tmp_path / "target", hidden_size=256, intermediate_size=256)
    convert_target(checkpoint, tmp_path / "f16.gguf", TargetOptions(outtype="f16"))
    quantize(tmp_path / "f16.gguf", tmp_path / "q8_0.gguf", "q8_0", QuantizeOptions())
    expected = weight_buffers(tmp_path / "q8_0.gguf", 0)
    if expected == {"CPU"}:
        pytest.skip("this CPU rearranges no weights")
    assert elsewhere.submit(weight_buffers, tmp_path / "q8_0.gguf", 0).result() == expected


def test_gpus_compute(elsewhere: Executor, files: Files) -> None:
    """Not only their names are there: large batches are offloaded without a layer on a GPU, and what is theirs too."""
    before = elsewhere.submit(n_computed, "MUL_MAT").result()
    elsewhere.submit(logits, files.target, 33, 0).result()
    offloaded = elsewhere.submit(n_computed, "MUL_MAT").result()
    elsewhere.submit(logits, files.target, 1, ALL).result()
    assert before < offloaded < elsewhere.submit(n_computed, "MUL_MAT").result()
