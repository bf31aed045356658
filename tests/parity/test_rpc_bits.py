"""Rows on an RPC server of our build have the same bits alone and in a batch: every weight type, two families."""

from __future__ import annotations

import platform
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.rpc import Program, rpc_program
from fixtures.targets import make_target
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.quantize.quantize import quantize
from llama_eagle.sessions import exact
from llama_eagle.sessions.exact_check import decode_logits
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, LoadOptions

pytestmark = pytest.mark.native

QUANTS = ("q8_0", "q4_k_m", "q4_0", "q4_1", "q6_k", "q5_0", "q5_k_m", "iq4_xs", "iq4_nl", "q3_k_m", "q2_k")
TYPES = ("f16", "bf16", *QUANTS)
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}  # K-quants need rows of 256
N_ROWS = 64


@pytest.fixture(scope="module")
def server() -> Iterator[Program]:
    with rpc_program() as program:
        yield program


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models in F16: a hybrid, and a tied one, whose head is its embedding."""
    folder = tmp_path_factory.mktemp("rpc")
    found = {}
    for family, tied in (("qwen35", False), ("qwen3", True)):
        checkpoint = make_target(family, folder / family, **WIDE, tie_word_embeddings=tied)
        found[family] = folder / f"{family}-f16.gguf"
        convert_target(str(checkpoint), found[family], TargetOptions(outtype="f16"))
    return found


def logits(path: Path, load: LoadOptions, sizes: tuple[int, ...]) -> np.ndarray:
    """Logits of N_ROWS rows, decoded in batches of these sizes."""
    with Model(path, load) as model, Context(model, ContextOptions(n_ctx=256, n_threads=2)) as context:
        report = exact.report(model)
        assert report["exact"] or platform.machine() not in ("x86_64", "AMD64"), report
        draw = random.Random(1)
        tokens = [draw.randrange(model.n_vocab) for _ in range(N_ROWS)]
        rows, start = [], 0
        for n in sizes:
            rows.append(decode_logits(context, tokens[start : start + n], start).copy())
            start += n
    assert start == N_ROWS
    return np.concatenate(rows)


@pytest.mark.parametrize("outtype", TYPES)
@pytest.mark.parametrize("family", ["qwen35", "qwen3"])
def test_every_weight_type(family: str, outtype: str, sources: dict[str, Path], server: Program) -> None:
    path = sources[family]
    if outtype != "f16":
        path = path.with_name(f"{family}-{outtype}.gguf")
        quantize(sources[family], path, outtype)
    here = logits(path, LoadOptions(), (1,) * N_ROWS)
    for n_gpu_layers in (-1, 2):
        load = LoadOptions(rpc_servers=(server.endpoint,), n_gpu_layers=n_gpu_layers)
        alone, batches = logits(path, load, (1,) * N_ROWS), logits(path, load, (40, 1, 1, 5, 1, 9, 7))
        differ = (alone.view(np.uint32) != batches.view(np.uint32)).any(1)
        assert not differ.any(), f"{differ.sum()} of {N_ROWS} rows differ"
        assert np.linalg.norm(alone - here) < 0.05 * np.linalg.norm(here)  # another layout rounds in another order
