"""A full disk under torch and safetensors, which hide the system's error."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.train.state import write_tensors
from safetensors.torch import save_file

TENSORS = {"a": torch.zeros(100_000)}
WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch": lambda path: torch.save(TENSORS, path),
    "safetensors": lambda path: save_file(TENSORS, path),
}


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of at most 64 KiB; Python ignores SIGXFSZ, so longer ones fail to be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("library", WRITERS)
def test_a_failed_write_is_the_environments(library: str, tmp_path: Path, small_files: None) -> None:
    path = tmp_path / "whole.bin"
    path.write_bytes(b"earlier")
    with pytest.raises(EnvironmentFailure, match=r"whole\.bin cannot be written, .* are free there"):
        write_tensors(path, WRITERS[library])
    assert [file.name for file in tmp_path.iterdir()] == ["whole.bin"] and path.read_bytes() == b"earlier"


@pytest.mark.parametrize("library", WRITERS)
def test_a_file_is_written_whole(library: str, tmp_path: Path) -> None:
    write_tensors(tmp_path / "whole.bin", WRITERS[library])
    assert (tmp_path / "whole.bin").stat().st_size > 400_000
