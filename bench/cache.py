"""Where benchmarks keep what takes minutes to make: synthetic pairs and llama.cpp's tools."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder, LLAMA_EAGLE_CACHE if set."""
    base = os.environ.get("LLAMA_EAGLE_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(base or Path.home() / ".cache") / "llama-eagle"
