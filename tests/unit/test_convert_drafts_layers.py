"""Layer ids of published and imaginable drafts, resolved to boundaries."""

from __future__ import annotations

import pytest
from llama_eagle.convert.drafts.layers import resolve_layer_ids
from llama_eagle.errors import ConfigError, ConversionError, EagleError

# (case, target layers, ids at the top level, ids in eagle_config, speculators, boundaries, guessed)
TABLE = [
    ("gpt-oss-120b SpecForge", 36, None, [1, 17, 33], False, [2, 18, 34], False),
    ("gpt-oss-20b SpecForge", 24, None, [1, 11, 21], False, [2, 12, 22], False),
    ("gpt-oss NVIDIA v3", 36, [24, 30, 36], [24, 30, 36], False, [24, 30, 36], False),
    ("Qwen3-235B", 94, None, [1, 46, 90], False, [2, 47, 91], False),
    ("Qwen3-VL-8B SpecForge", 36, None, [3, 17, 32], False, [4, 18, 33], False),
    ("SafeAILab Llama-3.1-8B", 32, None, None, False, [2, 16, 29], False),
    ("default ids written out", 32, [2, 16, 29], None, False, [2, 16, 29], False),
    ("default ids nested", 32, None, [2, 16, 29], False, [2, 16, 29], False),
    ("speculators", 32, [2, 16, 29], None, True, [2, 16, 29], False),
    ("speculators, ids of SpecForge", 32, [1, 15, 28], None, True, [1, 15, 28], True),
    ("SpecForge ids at the top", 32, [1, 15, 28], None, False, [2, 16, 29], False),
    ("own ids, nested", 32, None, [4, 10, 20], False, [5, 11, 21], True),
    ("own ids, top", 32, [4, 10, 20], None, False, [4, 10, 20], True),
    ("own ids, both", 32, [4, 10, 20], [20, 4, 10], False, [4, 10, 20], True),
    ("unsorted", 32, [29, 2, 16], None, True, [2, 16, 29], False),
    ("embeddings", 32, [0, 16, 29], None, True, [0, 16, 29], False),
]


@pytest.mark.parametrize(("case", "n_layer", "top", "nested", "speculators", "expected", "guessed"), TABLE)
def test_published_ids(
    case: str, n_layer: int, top: list | None, nested: list | None, speculators: bool, expected: list, guessed: bool
) -> None:
    found = resolve_layer_ids(n_aux=3, n_layer=n_layer, top=top, nested=nested, speculators=speculators)
    assert list(found.boundaries) == expected
    assert (found.warning is not None) == guessed


def test_all_defaults_name_the_same_states() -> None:
    for n_layer in range(7, 100):
        boundaries = [2, n_layer // 2, n_layer - 3]
        outputs = [1, n_layer // 2 - 1, n_layer - 4]
        for ids in (None, boundaries, outputs):
            found = resolve_layer_ids(n_aux=3, n_layer=n_layer, nested=ids)
            assert list(found.boundaries) == boundaries


def test_override_wins() -> None:
    found = resolve_layer_ids(n_aux=2, n_layer=12, top=[1, 2], nested=[3, 4], speculators=True, override=[9, 0])
    assert found.boundaries == (0, 9)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ConfigError, {"top": [2, 6, 9], "nested": [1, 5, 8]}),
        (ConfigError, {"top": [2, 6]}),
        (ConfigError, {"top": [2, 2, 6]}),
        (ConfigError, {"top": [2, 6, 13]}),
        (ConfigError, {"nested": [1, 5, 99]}),
        (ConfigError, {"top": [-1, 5, 8]}),
        (ConfigError, {"override": [2, 6, 13]}),
        (ConversionError, {"n_aux": 4}),
        (ConfigError, {"n_layer": 2}),
        (ConfigError, {"n_layer": 6, "top": None}),
    ],
)
def test_impossible_ids(error: type[EagleError], arguments: dict) -> None:
    with pytest.raises(error, match=r"--aux-layers|layer ids"):
        resolve_layer_ids(**{"n_aux": 3, "n_layer": 12, **arguments})
