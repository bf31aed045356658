"""Configurations of the random models that are compared with transformers."""

from __future__ import annotations

import pytest
from llama_eagle.convert.upstream.smaller import WINDOW, smaller, with_windows


@pytest.mark.parametrize(("window", "left"), [(4096, WINDOW), (32768, 32768), (262144, 262144), (None, None)])
def test_windows_that_change_something_are_shorter_than_the_text(window: int | None, left: int | None) -> None:
    config = {"sliding_window": window, "max_position_embeddings": 32768}
    assert smaller(config)["sliding_window"] == left
    assert smaller({"text_config": config})["text_config"]["sliding_window"] == left


def test_windows_of_all_parts_are_replaced() -> None:
    config = {"sliding_window": 16, "text_config": {"sliding_window": 8}, "vision_config": {"window": 4}}
    assert with_windows(config, 64) == {**config, "sliding_window": 64, "text_config": {"sliding_window": 64}}
    assert with_windows({"sliding_window": None}, 64) == {"sliding_window": None}
