"""What a check of files finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """An error keeps a file from being loaded, or a pair from running; a warning costs acceptance at most."""

    level: Literal["error", "warning"]
    message: str
    file: str = ""  # the file that it is about
