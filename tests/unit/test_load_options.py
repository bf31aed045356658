"""Loading of a draft with its target: whole, on one GPU; wrong arguments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from llama_eagle.cli.commands.bench import Pair
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drop_in.answers.speculative import read_speculative
from llama_eagle.drop_in.options import split_arguments
from llama_eagle.errors import ConfigError, UsageError
from llama_eagle.sessions.options import SPLIT_LAYER, SPLIT_NONE, LoadOptions, for_draft

ROW = 2  # llama.cpp's number of another split


@pytest.mark.parametrize(
    ("target", "gpu"),
    [
        (LoadOptions(), 0),
        (LoadOptions(main_gpu=2), 2),
        (LoadOptions(main_gpu=1, split_mode=SPLIT_NONE, tensor_split=(1, 0)), 1),  # no split, no shares
        (LoadOptions(tensor_split=(0, 0, 3)), 2),
        (LoadOptions(tensor_split=(0, 1, 3), main_gpu=2), 2),
        (LoadOptions(tensor_split=(0, 1), main_gpu=7), 1),
        (LoadOptions(main_gpu=1, split_mode=ROW), 1),
    ],
)
def test_gpu_of_the_draft(target: LoadOptions, gpu: int) -> None:
    found = for_draft(target, None)
    assert (found.main_gpu, found.split_mode, tuple(found.tensor_split)) == (gpu, SPLIT_NONE, ())


def test_layers_of_the_draft() -> None:
    target = LoadOptions(7, split_mode=SPLIT_LAYER, use_mmap=False)
    assert [for_draft(target, layers).n_gpu_layers for layers in (None, 0, -1)] == [7, 0, -1]
    assert not for_draft(target, None).use_mmap and for_draft(target, None).load_mtp


@pytest.mark.parametrize(
    ("given", "said"),
    [({"n_ctx": "x"}, "n_ctx='x' must be "), ({"tensor_split": [1, "x"]}, "tensor_split=[1, 'x'] ('x') must be ")],
)
def test_a_wrong_argument_is_named_with_the_wrong_part_of_a_list(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        split_arguments(given)


@pytest.mark.parametrize(
    "given", ["auto", 3, {"n_maximum": 3}, {"n_max": 9}, {"n_min": 5, "n_max": 4}, {"p_min": 1.0}, {"n_max": True}]
)
def test_wrong_limits_of_a_call_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"Correct it\.$"):
        read_speculative(given, 8)


def test_auto_is_the_default_of_every_name_of_the_drafter() -> None:
    options = split_arguments({"draft_path": "auto"})[0]
    assert replace(options, draft="mtp").draft == "mtp"
    assert (options.draft, Pair(draft="auto").draft, DraftingOptions("auto").draft) == (None, None, None)
