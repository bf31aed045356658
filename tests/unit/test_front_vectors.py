"""Vectors and scores without a model: checks of requests, and shorter vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from llama_eagle.gguf.header import Header
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.vectors import shortened
from llama_eagle.serving.llama_server.extra_args import has_scores
from llama_eagle.serving.requests.parameters import require_tokens


def test_a_shorter_vector_keeps_its_length() -> None:
    whole = np.array([3.0, 4.0, 12.0])
    assert shortened(whole, 2).tolist() == [3.0, 4.0]
    np.testing.assert_allclose(shortened(whole / 13, 2), [0.6, 0.8])
    assert shortened(np.array([0.0, 1.0]), 1).tolist() == [0.0]
    for n in (0, -1, 4):
        with pytest.raises(Refusal, match="from 1 to 3"):
            shortened(whole, n)


@pytest.mark.parametrize("value", [5, [1, [5]], {"prompt_string": [5]}, -1, 10**30])
def test_what_is_no_token_is_named(value: object) -> None:
    with pytest.raises(Refusal, match="is no token id of this model: its 5 tokens have the ids 0 to 4"):
        require_tokens(value, 5)
    require_tokens([4, "a", True, 5.5, None, {"x": 5}], 5)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([], [False, True]), (["--embeddings"], [False, True]), (["--reranking"], [True, True]),
        (["--pooling", "rank"], [True, True]), (["--pooling", "mean"], [False, False]),
        (["--rerank", "--pooling", "cls"], [False, False]), (["--pooling", "cls", "--reranking"], [True, True]),
    ],
)  # fmt: skip
def test_models_with_scores(extra: list[str], expected: list[bool]) -> None:
    """Models whose files name the pooling types mean and rank."""

    def header(pooling: int) -> Header:
        keys = {"general.architecture": "bert", "bert.pooling_type": pooling}
        return Header(Path("model.gguf"), 3, keys, {}, 0, 0, {})

    assert [has_scores(extra, header(pooling)) for pooling in (1, 4)] == expected
