"""A text's vector does not depend on the texts next to it: in lists of the server, and of `EagleLlama`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.serving import Served, serve
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_sliding_window_target
from llama_eagle import EagleLlama
from llama_eagle.convert.targets import TargetOptions, convert_target

pytestmark = pytest.mark.native

POOLINGS = {"mean": 1, "cls": 2, "last": 3}
LENGTHS = (2, 3, 8, 24)  # of lists


def texts() -> list[str]:
    draw = random.Random(3)
    return [" ".join(draw.choices(("one", "two", "three", "four"), k=draw.randrange(1, 40))) for _ in range(24)]


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("target")
    convert_target(str(make_target(request.param, folder / "checkpoint")), folder / "target.gguf", TargetOptions())
    return folder / "target.gguf"


@pytest.fixture(params=POOLINGS)
def pooling(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(target: Path, pooling: str) -> Iterator[Served]:
    with serve("-m", target, "-d", "none", "-c", 4096, "-t", 1, "--", "--embeddings", "--pooling", pooling) as running:
        yield running


def test_a_list_has_the_vectors_of_its_texts(server: Served, target: Path, pooling: str) -> None:
    with EagleLlama(
        target, draft="none", embedding=True, pooling_type=POOLINGS[pooling], n_ctx=512, n_threads=1, verbose=False
    ) as llm:
        expected = [np.array(llm.embed(text, normalize=True)) for text in texts()]
        for found, one in zip(llm.embed(texts(), normalize=True), expected, strict=True):
            assert np.dot(found, one) > 0.9999
    for n in LENGTHS:
        status, answer = server.post("/v1/embeddings", {"input": texts()[:n], "model": "m"})
        assert status == 200, answer
        for entry, one in zip(answer["data"], expected, strict=False):
            assert np.dot(entry["embedding"], one) > 0.9999


@pytest.fixture(scope="module", params=["gemma3", "gemma-embedding"])
def sliding(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[object, ...]:
    """Options of a server for a model with a sliding window."""
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    target = write_sliding_window_target(path, window=16, arch=request.param)
    return "-m", target, "-d", "none", "-c", 4096, "-t", 1, "--"


def test_a_list_with_a_sliding_window(sliding: tuple[object, ...]) -> None:
    with serve(*sliding, "--embeddings", "--pooling", "mean") as server:
        alone = [vectors(server, [text])[0] for text in texts()]
        assert abs(np.dot(alone[0], alone[1])) < 0.999
        for n in LENGTHS:
            for found, one in zip(vectors(server, texts()[:n]), alone, strict=False):
                assert np.dot(found, one) > 0.9999


def vectors(server: Served, given: list[str]) -> list[np.ndarray]:
    status, answer = server.post("/v1/embeddings", {"input": given, "model": "m"})
    assert status == 200, answer
    return [np.array(entry["embedding"]) for entry in answer["data"]]


def test_a_document_in_a_list_has_the_score_that_it_has_alone(tmp_path: Path) -> None:
    target = write_sliding_window_target(tmp_path / "target.gguf", window=16)
    with serve("-m", target, "-d", "none", "-c", 4096, "-t", 1, "--", "--reranking") as server:
        alone = [scores(server, [text])[0] for text in texts()]
        assert np.std(alone) > 1e-3
        for n in LENGTHS:
            assert np.abs(np.array(scores(server, texts()[:n])) - alone[:n]).max() < 1e-3


def scores(server: Served, documents: list[str]) -> list[float]:
    status, answer = server.post("/v1/rerank", {"query": "one two", "documents": documents})
    assert status == 200, answer
    return [entry["relevance_score"] for entry in sorted(answer["results"], key=lambda entry: entry["index"])]
