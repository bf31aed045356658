"""Whole numbers and lists of settings that the child would wrap or skip."""

from __future__ import annotations

from typing import Any

import pytest
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server.raw_settings import BITS, for_child
from llama_eagle.serving.requests.lists import with_lists

N_VOCAB, N_ADAPTERS = 300, 2


@pytest.mark.parametrize("key", BITS)
def test_whole_numbers(key: str) -> None:
    limit = 2 ** (BITS[key] - 1)
    for value in (-limit, limit - 1, 7.0, None, True, "7"):  # the child refuses what is no number
        assert for_child({key: value})[key] == value
    for value in (-limit - 1, limit, 1.5, 1e300):
        with pytest.raises(Refusal, match=f"Field '{key}': .* is no integer of {BITS[key]} bits"):
            for_child({key: value})


@pytest.mark.parametrize("key", ["299", " \t5", "+5", "-0", "a", "5 a", " ", "é", "٣"])
def test_keys_of_a_bias(key: str) -> None:
    """The child takes a text for a number if nothing but a NUL follows its digits."""
    assert with_lists({"logit_bias": {key: 1}}, N_VOCAB, 0)


@pytest.mark.parametrize("key", ["", "300", "-1", "5" * 5000, "300\0a", "\0"])
def test_keys_of_no_bias(key: str) -> None:
    with pytest.raises(Refusal, match="'logit_bias'"):
        with_lists({"logit_bias": {key: 1}}, N_VOCAB, 0)


@pytest.mark.parametrize("name", ["top_k", "Top-K", "topk", "typ", "temp", "nucleus", "TOP_N_SIGMA", "topnsigma"])
def test_names_of_samplers(name: str) -> None:
    assert with_lists({"samplers": [name]}, N_VOCAB, 0)
    with pytest.raises(Refusal, match="names no sampler"):
        with_lists({"samplers": [f"{name}s"]}, N_VOCAB, 0)


@pytest.mark.parametrize(
    ("given", "scales"),
    [([], [0, 0]), ([{"id": 1, "scale": 2}], [0, 2]), ([{"id": 1, "scale": 2}, {"id": 1, "scale": 3}], [0, 3])],
)
def test_scales_of_all_adapters(given: list[Any], scales: list[float]) -> None:
    """The child would take an empty list for none."""
    found = with_lists({"lora": given}, N_VOCAB, N_ADAPTERS)["lora"]
    assert found == [{"id": i, "scale": scale} for i, scale in enumerate(scales)]


@pytest.mark.parametrize(
    "entry", [{"id": 2, "scale": 1}, {"id": True, "scale": 1}, {"id": 0}, {"id": 0, "scale": 1e39}, [0, 1]]
)
def test_adapters_that_are_refused(entry: Any) -> None:
    with pytest.raises(Refusal, match="'lora'"):
        with_lists({"lora": [entry]}, N_VOCAB, N_ADAPTERS)
