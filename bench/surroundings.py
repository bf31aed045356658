"""Hardware and library version of a measurement."""

from __future__ import annotations

import os
import platform
from typing import Any

from llama_eagle.diagnosis import examine
from llama_eagle.native.build import build_info
from llama_eagle.native.processor.detect import cpu_name


def surroundings() -> dict[str, Any]:
    """Return the machine and the library version for a report."""
    build = build_info()
    return {"hardware": _hardware(), "upstream_commit": build.upstream_commit, "patch_hash": build.patch_hash}


def _hardware() -> dict[str, Any]:
    """Return processor, cores, memory in GiB, instruction sets and GPUs in use."""
    report = examine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else None
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": memory and round(memory, 1),
        "cpu_features": report["cpu_features"],
        "gpus": [gpu["description"] for gpu in report["gpu_backends"]],
        "system": platform.platform(),
    }
