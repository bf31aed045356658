"""Files that torch and safetensors write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import write_whole
from safetensors import SafetensorError


def write_tensors(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write` with a temporary file and rename it to `path`. Raises `EnvironmentFailure`, for a full disk too.

    Both libraries report a failed write by errors of their own, not by OSError.
    """
    try:
        write_whole(path, write)
    except (OSError, RuntimeError, SafetensorError) as error:
        free = console.size(shutil.disk_usage(path.parent).free)
        raise EnvironmentFailure(f"{path} cannot be written, {free} are free there: {error}") from None
