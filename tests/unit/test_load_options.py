"""Loading of a draft with its target: whole, on one GPU; wrong arguments."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fixtures.tiny_gguf import write_target
from llama_eagle.cli.commands.bench import Pair
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drop_in.answers.speculative import read_speculative
from llama_eagle.drop_in.options import split_arguments
from llama_eagle.errors import ConfigError, EnvironmentFailure, UsageError
from llama_eagle.sessions import devices
from llama_eagle.sessions.models import Model
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


def test_devices_of_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers come before GPUs; shares are for both, and all memory counts."""
    remote = [Mock(server="a:1", free=400)]
    monkeypatch.setattr(devices.rpc, "query", lambda *servers: remote)
    monkeypatch.setattr(devices, "devices_of_kind", lambda kinds: [{"name": "CUDA0", "free_mib": 0}])
    load = LoadOptions(rpc_servers=("a:1",), tensor_split=(1, 1, 1))
    target = write_target(tmp_path / "target.gguf")
    with pytest.raises(UsageError, match="3 shares for 2 devices"):
        devices.require_servers(load, target)
    assert [devices.last_device(replace(load, tensor_split=shares)) for shares in ((), (2, 1), (1, 0))] == [
        "CUDA0",
        "CUDA0",
        "RPC0",
    ]
    size = target.stat().st_size
    for local, fits in ((size - 400, True), (size - 401, False), (None, True)):
        monkeypatch.setattr(devices, "available_bytes", lambda local=local: local)
        with nullcontext() if fits else pytest.raises(EnvironmentFailure, match="more than all machines have free"):
            devices.require_servers(replace(load, tensor_split=(1, 1)), target)


@pytest.mark.native
def test_the_draft_is_placed_with_the_targets_head(tmp_path: Path) -> None:
    """With the head on the CPU, the devices are llama.cpp's default. Servers and shares are for the target alone."""
    load = LoadOptions(rpc_servers=("a:1",), tensor_split=(1, 0), main_gpu=1)
    with Model.target(write_target(tmp_path / "target.gguf"), LoadOptions()) as target:
        found = devices.draft_options(target.handle, load, None)
    assert (found.devices, found.rpc_servers, found.tensor_split, found.main_gpu) == ((), (), (), 0)
