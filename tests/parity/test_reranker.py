"""A converted Qwen3-Reranker: the scores of `serve --reranking` are transformers' probabilities of "yes" and "no"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import serve
from fixtures.targets import make_reranker, make_target
from llama_eagle import EagleLlama
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.convert.targets.reranker import TEMPLATE, is_reranker

QUERY = "What does a draft propose?"
DOCUMENTS = ["A draft proposes tokens.", "Das Pferd frisst keinen Gurkensalat.", "no", "The fox jumps. " * 20]


def reference_scores(folder: Path) -> list[float]:
    """Return the probability of "yes" against "no" behind each prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer.convert_tokens_to_ids(["yes", "no"])
    scores = []
    for document in DOCUMENTS:
        prompt = TEMPLATE.replace("{query}", QUERY).replace("{document}", document)
        given = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            scores.append(float(model(**given).logits[0, -1, ids].softmax(-1)[0]))
    return scores


@pytest.mark.native
@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_those_of_transformers(tied: bool, tmp_path: Path) -> None:
    checkpoint = make_reranker("qwen3", tmp_path / "checkpoint", dtype="float32", tie_word_embeddings=tied)
    target = tmp_path / "target.gguf"
    done = llama_eagle("convert", checkpoint, "-o", target)
    assert "serve -m" in done.stderr and "--reranking" in done.stderr and "warning" not in done.stderr
    expected = reference_scores(checkpoint)
    assert np.std(expected) > 0.01
    caches = ("--cache-type-k", "f32", "--cache-type-v", "f32")
    with serve("-m", target, "-d", "none", "-c", 4096, "-t", 1, "--reranking", *caches) as server:
        status, answer = server.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "model": "m"})
        assert "warning" not in server.log()
    assert status == 200, answer
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    np.testing.assert_allclose([found[i] for i in range(len(DOCUMENTS))], expected, atol=2e-4)


@pytest.mark.native
def test_text_of_a_reranker_is_a_warning(tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    convert_target(make_reranker("qwen3", tmp_path / "checkpoint"), target, TargetOptions())
    options = ("-d", "none", "-t", 1)
    done = llama_eagle("generate", "-m", target, "-p", "a", "-n", 2, *options)
    assert done.code == 0 and "is a model for reranking, so its text is likely to be wrong" in done.stderr
    with pytest.warns(UserWarning, match="--reranking"):
        EagleLlama(target, draft="none", n_ctx=64).close()
    with serve("-m", target, "-c", 512, *options) as server:
        assert f"llama-eagle serve -m {target} --reranking" in server.log()
        assert "--reranking" in server.post("/v1/rerank", {"query": "a", "documents": ["b"]})[1]["error"]["message"]


@pytest.mark.parametrize(
    ("readme", "name", "config"),
    [
        ("---\nlicense: mit\n---\n\n# Qwen3-Reranker-4B\nText", "model", {}),
        (None, "Qwen3-Reranker-0.6B-tuned", {}),
        ("# Mine", "model", {"_name_or_path": "Qwen/Qwen3-VL-Reranker-2B"}),
    ],
)
def test_recognized_by_readme_name_or_configuration(
    readme: str | None, name: str, config: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    if readme is not None:
        (folder / "README.md").write_text(readme)
    found = Checkpoint(folder, source=str(folder))
    found.config.update(config)
    assert is_reranker(found, "qwen3") and is_reranker(found, "qwen3vl")
    assert not is_reranker(found, "qwen3moe")


def test_others_generate_text(tmp_path: Path) -> None:
    folder = make_target("qwen3", tmp_path / "model")
    (folder / "README.md").write_text("# Qwen3-Embedding-0.6B\nSee also Qwen3-Reranker-0.6B.")
    assert not convert_target(folder, tmp_path / "target.gguf", TargetOptions()).is_reranker


def test_without_the_tokens(tmp_path: Path) -> None:
    folder = make_target("qwen3", tmp_path / "qwen3-reranker")
    done = llama_eagle("convert", folder, "-o", tmp_path / "target.gguf")
    assert_one_line_error(done, 3, "'yes' is missing")
