"""An MTP head, whole or trimmed, on a second device, with all of its target or beside a part of it: the CPU's drafts.

The device is an RPC server on loopback, a stand-in for a GPU, or a real one (fixtures.gpus).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fixtures.gpus import device_of, devices
from fixtures.native import NativeTarget
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from parity.native_mtp import N_TOKENS, NativeMtp

pytestmark = pytest.mark.native

N_BLOCKS = 8
ALL = N_BLOCKS + 2  # the MTP block, and the head
N_ROWS = 128
RTOL = 5e-3  # Vulkan multiplies some operands as F16


@dataclass(frozen=True)
class Trace:
    device: str
    drafts: list[list[int]]
    probs: list[float]
    vocabularies: list[list[int]]


def drafts_on(path: Path, n_gpu_layers: int, n_vocab_draft: int) -> Trace:
    rng = random.Random(3)
    trace = Trace("", [], [], [])
    with NativeTarget(path, n_ctx=512, n_gpu_layers=n_gpu_layers, n_rs_seq=5, load_mtp=True) as context:
        draft = NativeMtp(context, n_vocab_draft=n_vocab_draft)
        draft.eval(rng.choices(range(N_TOKENS), k=70))
        for n_kept in (2, 0, 5, 1):
            id_last = rng.randrange(N_TOKENS)
            ids, probs = draft.draft(id_last)
            trace.drafts.append(ids)
            trace.probs.extend(probs)
            trace.vocabularies.append(draft.session.draft_ids.tolist())
            draft.verify([id_last, *ids], n_kept)
        device = draft.session.draft_device
        draft.close()
    return replace(trace, device=device)


@pytest.fixture(scope="module", params=[False, True], ids=["own-head", "tied"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    make_target("qwen35", folder, seed=2, dtype="float32", mtp=True, tie_word_embeddings=request.param)
    convert_target(folder, folder / "t.gguf", TargetOptions(outtype="f32"))
    return folder / "t.gguf"


@pytest.fixture(scope="module", params=devices())
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with device_of(request.param) as pool:
        yield pool


@pytest.mark.parametrize("n_vocab_draft", [0, N_ROWS])
@pytest.mark.parametrize("n_gpu_layers", [ALL, 2, 1])
def test_drafts_are_those_of_the_cpu(n_gpu_layers: int, n_vocab_draft: int, path: Path, elsewhere: Executor) -> None:
    """Everything elsewhere; the head and the MTP block, the rest on the CPU; the head alone."""
    expected = drafts_on(path, 0, n_vocab_draft)
    found = elsewhere.submit(drafts_on, path, n_gpu_layers, n_vocab_draft).result()
    assert expected.device == "CPU"
    assert (found.device == "CPU") == (n_gpu_layers == 1)
    assert found.drafts == expected.drafts
    assert found.vocabularies == expected.vocabularies
    assert np.allclose(found.probs, expected.probs, rtol=RTOL)
