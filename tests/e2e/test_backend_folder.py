"""ggml loads backends that are libraries of their own; a stranger's, left in the working directory, is not run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STRANGER = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fclose(fopen("stranger-ran", "w")); }
"""
LOAD_ALL = """
import llama_eagle, ctypes
from llama_eagle.native.build import library_folder
ctypes.CDLL(str(library_folder() / "libggml.so")).ggml_backend_load_all()
"""


@pytest.fixture
def folder_of_a_stranger(tmp_path: Path) -> Path:
    (tmp_path / "backend.c").write_text(STRANGER)
    for name in ("libggml-blas.so", "libggml-rpc-best.so"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", name, "backend.c"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="the library is built for Linux here")
def test_no_backend_comes_from_the_working_directory(folder_of_a_stranger: Path) -> None:
    subprocess.run([sys.executable, "-c", LOAD_ALL], cwd=folder_of_a_stranger, check=True)
    assert not (folder_of_a_stranger / "stranger-ran").exists()


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="the library is built for Linux here")
def test_nor_does_the_server_load_one(folder_of_a_stranger: Path) -> None:
    from llama_eagle.native.build import library_folder

    server = library_folder() / "llama-server"
    if not server.exists():
        pytest.skip("built without the server (LLAMA_EAGLE_SERVER=OFF)")
    done = subprocess.run([server, "--list-devices"], cwd=folder_of_a_stranger, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (folder_of_a_stranger / "stranger-ran").exists()


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="the library is built for Linux here")
def test_ggml_is_our_own(tmp_path: Path) -> None:
    """No ggml in LD_LIBRARY_PATH is taken, and one that another package has loaded is refused: texts would differ."""
    from llama_eagle.native.build import library_folder

    name = "libggml-base.so"
    (tmp_path / name).write_text("damaged")
    variables = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    load = "from llama_eagle.native.calls import library; library()"
    subprocess.run([sys.executable, "-c", load], env=variables, check=True)
    if (server := library_folder() / "llama-server").exists():
        subprocess.run([server, "--version"], env=variables, check=True)
    shutil.copy(library_folder() / name, tmp_path)
    load = f"import ctypes; ctypes.CDLL('{tmp_path / name}'); {load}"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    assert f"{tmp_path / name} is loaded in place of {library_folder() / name}. " in done.stderr.splitlines()[-1]
