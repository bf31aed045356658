"""The table in docs/gpu.md equals the one that `doctor` prints from."""

from __future__ import annotations

import re
from dataclasses import astuple
from pathlib import Path

from llama_eagle.diagnosis import BACKENDS, backends, processor, render

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_documentation() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split("\n## ")[1]
    rows = re.findall(r"^\| (\w+) \| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    found = {name: tuple(cells) for name, *cells in rows if name != "backend"}
    assert found == {name: astuple(backend) for name, backend in BACKENDS.items()}


def test_doctor_prints_the_row_of_each_device() -> None:
    gpu = {"name": "Vulkan0", "backend": "Vulkan", "description": "llvmpipe", "free_mib": 1, "total_mib": 2}
    report = {
        **dict.fromkeys(("upstream_commit", "patch_hash", "library_path", "cpu_library", "memory_bandwidth")),
        **{"versions": {}, "cpu_features": [], "exact": [], "rpc_servers": [], "placement": [], "problems": []},
        "gpu_backends": [gpu],
        "processor": processor(),
        "backends": backends({"Vulkan", "RPC[127.0.0.1:1]", "Another"}),
    }
    text = render(report)
    assert "Vulkan0: llvmpipe, 1 of 2 MiB free" in text
    assert re.search("^Vulkan +recurrent state: ordinary operations; draft: ggml's operations; run here on", text, re.M)
    assert re.search("^RPC.* run here on loopback", text, re.M)
    assert re.search("^Another +.*never looked at", text, re.M)
