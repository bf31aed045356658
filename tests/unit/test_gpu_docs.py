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


def test_doctor_prints_what_is_known() -> None:
    names = ("upstream_commit", "patch_hash", "library_path", "cpu_library")
    report = {
        **dict.fromkeys(names),
        **{"versions": {}, "cpu_features": [], "exact": [], "rpc_servers": [], "placement": [], "problems": []},
        "gpu_backends": [], "backends": [], "processor": processor(),
        "memory_bandwidth": {"threads": 4, "read_rate": 39.0e9, "read_rate_of_one": 13e9, "scaling": 0.75},
    }  # fmt: skip
    lines = render(report).splitlines()
    titles = ("llama.cpp commit", "patch series", "library", "CPU library", "CPU features")
    assert lines[:5] == [f"{title:<20} -" for title in titles]
    assert f"{'memory bandwidth':<20} 39.0 GB/s with 4 threads, 13.0 with one" in lines
    assert f"{'plain decoding':<20} at most 39.0 tokens/s per GB of a model's weights" in lines
    assert lines[-1].startswith(f"{'drafts':<20} each thread reads at full speed")
    report |= {name: f"the {name}" for name in names} | {"cpu_features": ["AVX2", "FMA"]}
    found = ("the upstream_commit", "the patch_ha", "the library_path", "the cpu_library", "AVX2 FMA")
    assert render(report).splitlines()[:5] == [f"{t:<20} {text}" for t, text in zip(titles, found, strict=True)]


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
