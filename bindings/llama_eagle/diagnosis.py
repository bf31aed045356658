"""A report on this installation: versions, devices, and problems."""

from __future__ import annotations

import ctypes
import platform
import re
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from llama_eagle.errors import EagleError
from llama_eagle.gguf.size import available_bytes, total_bytes
from llama_eagle.native import rpc
from llama_eagle.native.build import library_folder
from llama_eagle.native.calls import backend_function, library
from llama_eagle.native.processor.bandwidth import read_rates
from llama_eagle.native.processor.detect import read_cores
from llama_eagle.sessions import exact
from llama_eagle.sessions.devices import DEVICES, GPUS, devices_of_kind, placement, summary
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions

NAME = 20  # columns of the first field of a line
SHARED = 0.6  # threads that read less than this of what each reads alone wait for the memory that they share
PACKAGES = ("llama-eagle", "llama-cpp-python", "gguf", "numpy", "safetensors", "huggingface_hub")


@dataclass(frozen=True)
class Backend:
    """Operations of a backend and how they were tested: a row of the table in docs/gpu.md."""

    recurrent_state: str
    draft: str
    evidence: str


_ORDINARY, _GGML = "ordinary operations", "ggml's operations"
BACKENDS = {  # by the name of ggml's registry
    "CUDA": Backend("own kernels", _GGML, "run on an H100 and an H200; emulated; compiled"),
    "ROCm": Backend(_ORDINARY, _GGML, "compiled"),
    "MUSA": Backend(_ORDINARY, _GGML, "read, not built"),
    "Vulkan": Backend(_ORDINARY, _GGML, "run here on a software device"),
    "MTL": Backend(_ORDINARY, _GGML, "read, not built"),
    "SYCL": Backend(_ORDINARY, _GGML, "read, not built"),
    "OpenCL": Backend(_ORDINARY, "on the CPU: no ARGMAX", "read, not built; the way to the CPU on a stand-in"),
    "WebGPU": Backend(_ORDINARY, _GGML, "read, not built"),
    "CANN": Backend("on the CPU: no GATED_DELTA_NET", _GGML, "read, not built"),
    "RPC": Backend(_ORDINARY, _GGML, "run here on loopback"),
}


def examine(
    load: LoadOptions = LoadOptions(), model: Path | None = None, measures_memory: bool = False
) -> dict[str, Any]:
    """Collect the facts for a report of a problem.

    `problems` is empty if the library loads and the RPC servers answer. model: file whose layers `placement` assigns to
    devices, without loading weights. measures_memory: also measure the memory bandwidth, for two seconds.
    """
    report: dict[str, Any] = {
        "versions": _versions(),
        "upstream_commit": None,
        "patch_hash": None,
        "library_path": None,
        "cpu_library": None,
        "cpu_features": [],
        "gpu_backends": [],
        "backends": [],
        "exact": [],
        "processor": processor(),
        "memory_bandwidth": None,
        "rpc_servers": [],
        "placement": [],
        "problems": [],
    }
    try:
        report["library_path"] = str(library_folder())
        llama = library()
        report["upstream_commit"] = llama.eagle_upstream_commit().decode()
        report["patch_hash"] = llama.eagle_patch_hash().decode()
        report["cpu_library"] = _cpu_library()
        report["cpu_features"] = _cpu_features()
        report["gpu_backends"] = devices_of_kind(GPUS)
        report["backends"] = backends({gpu["backend"] for gpu in report["gpu_backends"]})
        report["exact"] = exact.devices()
        report["rpc_servers"] = [_remote(device) for device in rpc.query(*load.rpc_servers)]
        report["placement"] = _placement(model, load) if model else []
        report["memory_bandwidth"] = memory_bandwidth() if measures_memory else None
    except EagleError as error:
        report["problems"].append(str(error))
    return report


def render(report: dict[str, Any]) -> str:
    """Format the report for people."""
    lines = [f"{name:<{NAME}} {version}" for name, version in report["versions"].items()]
    lines += [
        f"{'llama.cpp commit':<{NAME}} {report['upstream_commit'] or '-'}",
        f"{'patch series':<{NAME}} {(report['patch_hash'] or '-')[:12]}",
        f"{'library':<{NAME}} {report['library_path'] or '-'}",
        f"{'CPU library':<{NAME}} {report['cpu_library'] or '-'}",
        f"{'CPU features':<{NAME}} {' '.join(report['cpu_features']) or '-'}",
    ]
    lines += [
        f"{'GPU':<{NAME}} {gpu['name']}: {gpu['description']}, {gpu['free_mib']} of {gpu['total_mib']} MiB free"
        for gpu in report["gpu_backends"]
    ] or [f"{'GPU':<{NAME}} none in this build"]
    lines += [
        f"{row['backend']:<{NAME}} recurrent state: {row['recurrent_state']}; draft: {row['draft']}; {row['evidence']}"
        for row in report["backends"]
    ]
    lines += [
        f"{'RPC':<{NAME}} {device['server']}: {device['free_mib']} of {device['total_mib']} MiB free"
        for device in report["rpc_servers"]
    ]
    lines += _processor_lines(report["processor"])
    if report["memory_bandwidth"]:
        lines += _bandwidth_lines(report["memory_bandwidth"])
    if report["placement"]:
        lines.append(f"{'layers':<{NAME}} {summary(report['placement'])}")
    lines += [f"{'exact':<{NAME}} {entry['device']}: {entry['why'] or 'yes'}" for entry in report["exact"]]
    lines += [f"problem: {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def processor() -> dict[str, Any]:
    """Return cores, affinity, quota and memory of this process, and its default number of threads."""
    total, available = total_bytes(), available_bytes()
    return read_cores().as_dict() | {
        "total_mib": None if total is None else total >> 20,
        "available_mib": None if available is None else available >> 20,
    }


def _processor_lines(found: dict[str, Any]) -> list[str]:
    quota = "no limit" if found["quota"] is None else f"{found['quota']:g} processors"
    total, available = ("-" if found[key] is None else found[key] for key in ("total_mib", "available_mib"))
    return [
        f"{'cores':<{NAME}} {found['physical_cores']} physical, {found['logical_cores']} logical, "
        f"{found['allowed_cores']} in the affinity mask; quota: {quota}",
        f"{'threads':<{NAME}} {found['default_threads']} by default",
        f"{'memory':<{NAME}} {available} of {total} MiB available",
    ]


def memory_bandwidth() -> dict[str, Any]:
    """Measure the bytes/s that all threads and one read.

    scaling: what all threads read, as a share of what each would read alone; None for one thread.
    """
    n = int(read_cores().as_dict()["default_threads"])
    rate, rate_of_one = read_rates((n, 1))
    scaling = None if n == 1 else rate / (n * rate_of_one)
    return {"threads": n, "read_rate": rate, "read_rate_of_one": rate_of_one, "scaling": scaling}


def _bandwidth_lines(found: dict[str, Any]) -> list[str]:
    rate, n = found["read_rate"] / 1e9, found["threads"]
    of_one = found["read_rate_of_one"] / 1e9
    lines = [f"{'memory bandwidth':<{NAME}} {rate:.1f} GB/s with {n} threads, {of_one:.1f} with one"]
    lines.append(f"{'plain decoding':<{NAME}} at most {rate:.1f} tokens/s per GB of a model's weights")
    if found["scaling"] is None:
        return lines
    if found["scaling"] < SHARED:
        what = "threads wait for memory: more rows in a pass are cheap, and a draft costs the bytes that it reads"
    else:
        what = "each thread reads at full speed: more rows in a pass cost computing time, so short drafts gain most"
    return [*lines, f"{'drafts':<{NAME}} {what}"]


def _remote(device: rpc.RemoteDevice) -> dict[str, Any]:
    return {"server": device.server, "free_mib": device.free >> 20, "total_mib": device.total >> 20}


def _placement(model: Path, load: LoadOptions) -> list[dict[str, Any]]:
    with Model.target(model, replace(load, no_alloc=True)) as target:
        return placement(target.handle)


def backends(names: set[str]) -> list[dict[str, str]]:
    """Describe these backends of ggml. The name "RPC" is followed by the server's address in brackets."""
    unknown = Backend("unknown", "unknown", "never looked at")
    return [{"backend": name, **asdict(BACKENDS.get(name.split("[")[0], unknown))} for name in sorted(names)]


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_library() -> str:
    """Return the name of the CPU library that was chosen for this CPU, without prefix and suffix of its file."""
    name: bytes = backend_function("CPU", "eagle_cpu_library", ctypes.CFUNCTYPE(ctypes.c_char_p))()
    return name.decode()


def _cpu_features() -> list[str]:
    """Return the enabled features from llama.cpp's line "… | CPU : AVX2 = 1 | FMA = 1 | …"."""
    from llama_eagle.native import llama_cpp

    text = llama_cpp.llama_print_system_info().decode()
    return re.findall(r"(\w+) = 1", text.partition("CPU :")[2])


def devices() -> list[dict[str, Any]]:
    """Return name, description and memory in MiB of each device that models can run on, the CPU first."""
    return sorted(devices_of_kind(DEVICES), key=lambda device: bool(device["name"] != "CPU"))
