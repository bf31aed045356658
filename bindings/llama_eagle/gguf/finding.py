"""Findings of checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """An error prevents loading a file or running a pair. A warning costs acceptance at most."""

    level: Literal["error", "warning"]
    message: str
    file: str = ""  # the file concerned; "": the pair
    remedy: str = "Convert or download it again."
