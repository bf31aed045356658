"""The cores of this process, as the operating system reports them."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from llama_eagle.native.processor import linux, macos, windows
from llama_eagle.native.processor.cores import Cores, alike


def read_cores() -> Cores:
    """Return the cores of this process. Facts that cannot be read count as absent."""
    try:
        found = _of_system()
    except (OSError, ValueError, AttributeError):
        found = None
    return found or alike(os.cpu_count() or 1)


def cpu_name() -> str:
    """Return the processor's name, or its architecture where the system has no name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _of_system() -> Cores | None:
    if sys.platform == "win32":
        return windows.read_cores()
    return macos.read_cores() if sys.platform == "darwin" else linux.read_cores()
