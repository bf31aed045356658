"""What this installation is made of, and whether it works."""

from __future__ import annotations

import ctypes
import platform
import re
from importlib import metadata
from typing import Any

from llama_eagle.errors import EagleError
from llama_eagle.native.build import library_folder
from llama_eagle.native.calls import library
from llama_eagle.sessions import exact

PACKAGES = ("llama-eagle", "llama-cpp-python", "gguf", "numpy", "safetensors", "huggingface_hub")
DEVICE_GPUS = (1, 2)  # ggml_backend_dev_type: discrete, integrated
DEVICES = (0, *DEVICE_GPUS)  # and the CPU


def examine() -> dict[str, Any]:
    """Everything a report of trouble needs. `problems` is empty when the library loads."""
    report: dict[str, Any] = {
        "versions": _versions(),
        "upstream_commit": None,
        "patch_hash": None,
        "library_path": None,
        "cpu_features": [],
        "gpu_backends": [],
        "exact": [],
        "problems": [],
    }
    try:
        report["library_path"] = str(library_folder())
        llama = library()
        report["upstream_commit"] = llama.eagle_upstream_commit().decode()
        report["patch_hash"] = llama.eagle_patch_hash().decode()
        report["cpu_features"] = _cpu_features()
        report["gpu_backends"] = _gpu_backends(llama)
        report["exact"] = exact.devices()
    except EagleError as error:
        report["problems"].append(str(error))
    return report


def render(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{name:<20} {version}" for name, version in report["versions"].items()]
    lines += [
        f"{'llama.cpp commit':<20} {report['upstream_commit'] or '-'}",
        f"{'patch series':<20} {report['patch_hash'] or '-'}",
        f"{'library':<20} {report['library_path'] or '-'}",
        f"{'CPU features':<20} {' '.join(report['cpu_features']) or '-'}",
    ]
    lines += [
        f"{'GPU':<20} {gpu['name']}: {gpu['description']}, {gpu['free_mib']} of {gpu['total_mib']} MiB free"
        for gpu in report["gpu_backends"]
    ] or [f"{'GPU':<20} none in this build"]
    lines += [f"{'exact':<20} {entry['device']}: {entry['why'] or 'yes'}" for entry in report["exact"]]
    lines += [f"problem: {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_features() -> list[str]:
    """Of llama.cpp's line "… | CPU : AVX2 = 1 | FMA = 1 | …", those that are on."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    text = llama_cpp.llama_print_system_info().decode()
    return re.findall(r"(\w+) = 1", text.partition("CPU :")[2])


def devices() -> list[dict[str, Any]]:
    """Name, description and memory in MiB of what models can run on, the CPU first."""
    return sorted(_devices(library(), DEVICES), key=lambda device: bool(device["name"] != "CPU"))


def _gpu_backends(ggml: Any) -> list[dict[str, Any]]:
    return _devices(ggml, DEVICE_GPUS)


def _devices(ggml: Any, kinds: tuple[int, ...]) -> list[dict[str, Any]]:
    """libllama's handle also finds the symbols of the ggml libraries it is linked with."""
    count, get = ggml.ggml_backend_dev_count, ggml.ggml_backend_dev_get
    count.restype = ctypes.c_size_t
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    found = [ctypes.c_void_p(get(i)) for i in range(count())]
    return [_device(ggml, device) for device in found if ggml.ggml_backend_dev_type(device) in kinds]


def _device(ggml: Any, device: ctypes.c_void_p) -> dict[str, Any]:
    for function in (ggml.ggml_backend_dev_name, ggml.ggml_backend_dev_description):
        function.restype = ctypes.c_char_p
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return {
        "name": ggml.ggml_backend_dev_name(device).decode(),
        "description": ggml.ggml_backend_dev_description(device).decode(),
        "free_mib": free.value >> 20,
        "total_mib": total.value >> 20,
    }
