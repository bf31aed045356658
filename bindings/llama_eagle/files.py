"""Output files: checked before work begins, and whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llama_eagle.errors import EnvironmentFailure, UsageError


def explain(error: OSError, path: Path, need: int) -> EnvironmentFailure:
    """Why `path`, of `need` bytes, could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFailure(f"no space left in {path.parent} for {path.name} ({need / 1e9:.2f} GB)")
    return EnvironmentFailure(f"cannot write {path}: {error.strerror or error}")


def check_output(path: Path, need: int = 0) -> None:
    """Raises EnvironmentFailure if `path` cannot be written, or if its disk has less than `need` bytes left."""
    folder = path.parent
    if not folder.is_dir():
        raise EnvironmentFailure(f"the folder {folder} does not exist: create it first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file, such as {path / 'model.gguf'}")
    if path.exists() and not path.is_file():  # a device or pipe would be replaced, not written to
        raise UsageError(f"{path} is not a regular file: name another output")
    if not os.access(folder, os.W_OK):
        raise EnvironmentFailure(f"the folder {folder} is not writable")
    free = shutil.disk_usage(folder).free
    if need > free:
        raise EnvironmentFailure(f"{path} needs {need / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free in {folder}")


@contextlib.contextmanager
def temporary_beside(path: Path, count: int = 1) -> Iterator[list[Path]]:
    """Names of `count` temporary files in `path`'s folder, removed at the end if they still exist."""
    names = [path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp") for _ in range(count)]
    try:
        yield names
    finally:
        for name in names:
            name.unlink(missing_ok=True)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a temporary file that then takes the name `path`: the file appears whole, or not at all."""
    with temporary_beside(path) as (temporary,):
        write(temporary)
        temporary.replace(path)
