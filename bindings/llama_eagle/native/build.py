"""Location of our build of llama.cpp, and its use by llama-cpp-python's ctypes layer.

The folder contains libllama, the ggml libraries, libmtmd and `build-info.json`, which the native build writes:
`upstream_commit`, `patch_hash`, `abi_version` and `llama_cpp_python` (the version whose struct layouts match).
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from llama_eagle.errors import EnvironmentFailure

ABI_VERSION = 5  # EAGLE_ABI_VERSION of the eagle.h that calls.py declares
OVERRIDE = "LLAMA_EAGLE_LIB_PATH"
LIBRARY_NAMES = ("libllama.so", "libllama.dylib", "llama.dll")
BUILD_INFO = "build-info.json"
REBUILD = "Reinstall llama-eagle (pip install -e . in the source tree) so that library and bindings match."


@dataclass(frozen=True)
class BuildInfo:
    """Facts that the native build records about itself."""

    upstream_commit: str
    patch_hash: str
    abi_version: int
    llama_cpp_python: str
    compiler: str = ""
    build_type: str = ""
    rpc_protocol: str = ""  # MAJOR.MINOR; "": this build has no RPC
    has_page: bool = False  # the server has its chat page


def find_library_folder() -> Path | None:
    """Return the folder of our libllama: the override, or lib/ of the installed package. None if there is none."""
    override = os.environ.get(OVERRIDE)
    candidates = [Path(override)] if override else _candidates()
    return next((folder.resolve() for folder in candidates if _has_library(folder)), None)


def redirect_llama_cpp() -> None:
    """Point llama-cpp-python at our library, through variables that it reads at its first import.

    Raises `EnvironmentFailure` if it was imported before with another library.
    """
    folder = find_library_folder()
    if folder is None:
        return
    loaded = _loaded_folder()
    if loaded is not None and loaded != folder:
        raise EnvironmentFailure(
            f"llama_cpp was imported before llama_eagle and loaded {loaded}; llama_eagle needs {folder}. "
            f"Import llama_eagle first, or set LLAMA_CPP_LIB_PATH={folder} before Python starts."
        )
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    os.environ["MTMD_CPP_LIB"] = str(folder)


@cache
def library_folder() -> Path:
    """Return the folder of our libllama. Raises `EnvironmentFailure` if there is none."""
    folder = find_library_folder()
    if folder is None and os.environ.get(OVERRIDE):
        raise EnvironmentFailure(f"{OVERRIDE}={os.environ[OVERRIDE]} contains no libllama. Correct or unset it.")
    if folder is None:
        raise EnvironmentFailure(
            "llama-eagle's native library was not built. Run pip install . in the source tree, or set "
            f"{OVERRIDE} to a folder with libllama and {BUILD_INFO}."
        )
    return folder


@cache
def build_info() -> BuildInfo:
    """Read build-info.json. Raises `EnvironmentFailure` if it is missing or incomplete."""
    path = library_folder() / BUILD_INFO
    try:
        content = json.loads(path.read_text())
        return BuildInfo(
            upstream_commit=str(content["upstream_commit"]),
            patch_hash=str(content["patch_hash"]),
            abi_version=int(content["abi_version"]),
            llama_cpp_python=str(content["llama_cpp_python"]),
            compiler=str(content.get("compiler", "")),
            build_type=str(content.get("build_type", "")),
            rpc_protocol=str(content.get("rpc_protocol", "")),
            has_page=bool(content.get("page", False)),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentFailure(f"{path}: missing or incomplete ({error!r}). {REBUILD}") from error


def check_versions() -> None:
    """Check that bindings, library and llama-cpp-python match. Raises `EnvironmentFailure`.

    ctypes does not check struct layouts: a mismatch would corrupt memory instead of failing.
    """
    info = build_info()
    if info.abi_version != ABI_VERSION:
        raise EnvironmentFailure(
            f"{library_folder()}: ABI version {info.abi_version}, these bindings need {ABI_VERSION}. {REBUILD}"
        )
    if (installed := _llama_cpp_python()) is None:
        raise EnvironmentFailure(
            f"llama-cpp-python is not installed. Install it: pip install llama-cpp-python=={info.llama_cpp_python}"
        )
    if installed != info.llama_cpp_python:
        raise EnvironmentFailure(
            f"llama-cpp-python {installed} is installed, but {library_folder()} was built for "
            f"{info.llama_cpp_python}. Install it: pip install llama-cpp-python=={info.llama_cpp_python}"
        )


def _llama_cpp_python() -> str | None:
    """Return the version that llama_cpp states, without its import; None if it is not installed."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    found = re.search(r'^__version__ = "(.*)"', Path(spec.origin).read_text("utf-8"), re.MULTILINE)
    return found[1] if found else "without a version"


def _candidates() -> Iterator[Path]:
    """Yield lib/ of every folder of the package: an editable install has the source tree and site-packages."""
    package = sys.modules.get("llama_eagle")
    for part in getattr(package, "__path__", []):
        yield Path(part) / "lib"
    yield Path(sysconfig.get_path("platlib")) / "llama_eagle" / "lib"


def _has_library(folder: Path) -> bool:
    return any((folder / name).exists() for name in LIBRARY_NAMES)


def _loaded_folder() -> Path | None:
    """Return the folder of the library that the imported llama_cpp has loaded."""
    module = sys.modules.get("llama_cpp.llama_cpp")
    base = getattr(module, "_base_path", None)
    return None if base is None else Path(base).resolve()
