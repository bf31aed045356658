"""A text's vector does not depend on the texts next to it: in lists of the server, and of `EagleLlama`."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import Served, serve
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_reranker, write_sliding_window_target
from llama_eagle import EagleLlama
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import IncompatibleModels

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


@pytest.mark.parametrize(("pooling", "shape"), [(0, None), (1, (64,)), (4, (1,))])
def test_vectors_and_scores_of_python(pooling: int, shape: tuple[int, ...] | None, tmp_path: Path) -> None:
    """The parent reads vectors of tokens from wrong places in lists, and values after the scores.

    It also pools each micro-batch on its own.
    """
    target = write_reranker(tmp_path / "target.gguf", window=16)
    options = {"draft": "none", "embedding": True, "n_ctx": 2048, "n_batch": 2048, "n_ubatch": 32, "n_threads": 1}
    with EagleLlama(target, pooling_type=pooling, **options) as llm:
        alone = [np.array(llm.embed(text)) for text in texts()]
        count = sum(len(llm.tokenize(text.encode())) for text in texts())
        assert [each.shape for each in alone] == [shape or (len(each), 64) for each in alone]
        assert np.std(np.concatenate(alone)) > 1e-3
        for n in LENGTHS:
            for found, one in zip(llm.embed(texts()[:n]), alone, strict=False):
                np.testing.assert_allclose(np.array(found), one, atol=5e-3)
        assert llm.create_embedding(texts())["usage"]["total_tokens"] == count
        one = np.array(llm.embed(texts()[0], normalize=True))
        np.testing.assert_allclose(np.linalg.norm(one, axis=-1), 1.0, atol=1e-6)


def test_scores_without_a_head_are_refused(target: Path) -> None:
    with pytest.raises(IncompatibleModels, match=r"cls\.output\.weight"):
        EagleLlama(target, draft="none", embedding=True, pooling_type=4)


@pytest.fixture(scope="module", params=["gemma3", "gemma-embedding"])
def sliding(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[object, ...]:
    """Options of a server for a model with a sliding window."""
    path = tmp_path_factory.mktemp("target") / "target.gguf"
    target = write_sliding_window_target(path, window=16, arch=request.param)
    return "-m", target, "-d", "none", "-c", 4096, "-t", 1, "--"


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_list_with_a_sliding_window(sliding: tuple[object, ...], pooling: str) -> None:
    with serve(*sliding, "--embeddings", "--pooling", pooling) as server:
        alone = [vectors(server, [text])[0] for text in texts()]
        assert abs(np.dot(alone[0], alone[1])) < 0.999
        for n in LENGTHS:
            for found, one in zip(vectors(server, texts()[:n]), alone, strict=False):
                assert np.dot(found, one) > 0.9999


def vectors(server: Served, given: list[str], **more: object) -> list[np.ndarray]:
    status, answer = server.post("/v1/embeddings", {"input": given, "model": "m", **more})
    assert status == 200, answer
    return [np.array(entry["embedding"]) for entry in answer["data"]]


def test_the_server_takes_the_option_that_it_names(target: Path) -> None:
    options = ("-m", target, "-d", "none", "-c", 512, "-t", 1)
    with serve(*options) as server:
        status, answer = server.post("/v1/embeddings", {"input": "a", "model": "m"})
        assert status == 501 and "`--embeddings`" in answer["error"]["message"], answer
    with serve(*options, "--embeddings", "--", "--pooling", "mean") as server:
        (vector,) = vectors(server, ["one two"])
        assert len(vector) == 64
        (model,) = server.get("/api/tags")[1]["models"]
        shown = server.post("/api/show", {"model": model["name"]})[1]
        assert {"completion", "embedding"} & {*shown["capabilities"]} == {"embedding"}  # llm-ollama goes by it
        status, answer = server.post("/api/embed", {"model": model["name"], "input": "one two"})
        assert status == 200 and np.allclose(answer["embeddings"], [vector]), answer


def test_vectors_of_fewer_dimensions(server: Served) -> None:
    (whole,) = vectors(server, ["one two"])
    (short,) = vectors(server, ["one two"], dimensions=8, encoding_format=None)
    assert np.allclose(short, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    given = {"input": "one two", "dimensions": 8, "encoding_format": "base64"}
    text = server.post("/v1/embeddings", given)[1]["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(text), "<f4"), short, atol=1e-6)
    wrong: list[tuple[str, dict[str, object]]] = [("/v1/embeddings", {"dimensions": n}) for n in (0, -1, 1000, "8")]
    wrong.append(("/v1/embeddings", {"encoding_format": 5}))
    wrong += [("/embedding", {"dimensions": 8}), ("/embedding", {"encoding_format": "base64"})]
    for path, more in wrong:
        status, answer = server.post(path, {"input": "one two", **more})
        assert status == 400 and f"'{next(iter(more))}'" in answer["error"]["message"], answer
    for path in ("/v1/embeddings", "/embedding"):
        key = "content" if path == "/embedding" else "input"
        status, answer = server.post(path, {key: [1, 10**6]})
        assert status == 400 and "1000000 is no token id" in answer["error"]["message"], answer
        picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}
        status, answer = server.post(path, {key: [{"content": [picture]}]})
        assert status == 400 and "fetches no URLs" in answer["error"]["message"], answer


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    target = write_reranker(tmp_path_factory.mktemp("target") / "target.gguf", window=16)
    with serve("-m", target, "-d", "none", "-c", 4096, "-t", 1, "--", "--reranking") as running:
        yield running


def test_a_document_in_a_list_has_the_score_that_it_has_alone(ranking: Served) -> None:
    alone = [scores(ranking, [text])[0] for text in texts()]
    assert np.std(alone) > 1e-3
    for n in LENGTHS:
        assert np.abs(np.array(scores(ranking, texts()[:n])) - alone[:n]).max() < 1e-3


def scores(server: Served, documents: list[str]) -> list[float]:
    status, answer = server.post("/v1/rerank", {"query": "one two", "documents": documents})
    assert status == 200, answer
    return [entry["relevance_score"] for entry in sorted(answer["results"], key=lambda entry: entry["index"])]


def test_forms_of_rankings(ranking: Served) -> None:
    given = {"query": "one", "documents": [{"text": "two"}, "three"], "return_documents": True, "top_n": 1}
    (best,) = ranking.post("/v1/rerank", given)[1]["results"]
    assert best["document"] == {"text": ["two", "three"][best["index"]]}
    for more in ({"top_n": 0}, {"top_n": -1}, {"rank_fields": ["text"]}):
        status, answer = ranking.post("/v1/rerank", {**given, **more})
        assert status == 400 and f"'{next(iter(more))}'" in answer["error"]["message"], answer
    status, answer = ranking.post("/v1/rerank", {**given, "documents": ["two", ["three", 10**6]]})
    assert status == 400 and "1000000 is no token id" in answer["error"]["message"], answer
    for key in ("documents", "texts"):  # without any token, some models have nothing to read
        status, answer = ranking.post("/rerank", {"query": "", key: ["two", ""]})
        assert status == 400 and "both empty" in answer["error"]["message"], answer
    long = "word " * 800  # clients repeat what a server fails: 500
    for path, key in (("/v1/rerank", "documents"), ("/v1/reranking", "documents"), ("/rerank", "texts")):
        status, answer = ranking.post(path, {"query": "one", key: ["two", long]})
        assert status == 400 and "too long" in answer["error"]["message"], answer
    for path in ("/embedding", "/v1/embeddings"):
        status, answer = ranking.post(path, {"input": "one two"})
        assert status == 400 and "no embeddings" in answer["error"]["message"], answer


@pytest.mark.parametrize("more", [["--reranking"], ["--embeddings", "--pooling", "rank"]], ids=str)
def test_a_model_without_a_head_gives_no_scores(sliding: tuple[object, ...], more: list[str]) -> None:
    """llama.cpp returns a value of the vector, of another text in a list."""
    assert_one_line_error(llama_eagle("serve", *sliding, *more), 3, "cls.output.weight")
    variables = {"LLAMA_ARG_RERANKING": "on"} if more == ["--reranking"] else {"LLAMA_ARG_POOLING": "rank"}
    assert_one_line_error(llama_eagle("serve", *sliding[:-1], **variables), 3, "cls.output.weight")
