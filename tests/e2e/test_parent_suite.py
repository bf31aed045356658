"""llama-cpp-python's own test-suite, from the pinned source, with `EagleLlama` in the place of `Llama`.

Tests that need a model of the hub get a tiny one where any model will do (prompt caches of transformer and hybrid
models); those that expect a certain model's words, and the recurrent and embedding ones, cannot run here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fixtures.targets import make_target
from fixtures.tiny_gguf import Variant, write_draft, write_target
from llama_eagle.convert.targets import convert_target

pytestmark = [pytest.mark.native, pytest.mark.slow]

NATIVE = Path(__file__).parents[2] / "native"
VOCABULARY = "vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf"
CANNOT_RUN = "not real_model and not test_real_llama and not recurrent and not True-False"

CONFTEST = """
import os, sys, types
import pytest
sys.modules["scipy"] = types.ModuleType("scipy")  # imported by the suite, not used in what runs here
sys.modules["scipy.special"] = types.SimpleNamespace(log_softmax=None)
import llama_eagle
from llama_eagle.integrations import patch_llama_cpp
draft = os.environ.get("SUITE_DRAFT")
patch_llama_cpp(**({"draft_path": draft, "n_draft": 3} if draft else {}))
MODELS = {"ggml-org/models": "SUITE_TRANSFORMER", "tiiuae/Falcon-H1-Tiny-90M-Instruct-GGUF": "SUITE_HYBRID"}
import huggingface_hub
huggingface_hub.hf_hub_download = lambda repo_id, filename: os.environ[MODELS[repo_id]]
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite's folder, unpacked from the sdist that the native build has fetched."""
    spec = importlib.util.spec_from_file_location("upstream", NATIVE / "cmake" / "upstream.py")
    assert spec is not None
    assert spec.loader is not None
    upstream = importlib.util.module_from_spec(spec)
    sys.modules["upstream"] = upstream
    spec.loader.exec_module(upstream)
    folder = tmp_path_factory.mktemp("suite")
    with tarfile.open(upstream.fetch_sdist(upstream.pinned())) as archive:
        top = archive.getnames()[0].split("/")[0]
        wanted = [m for m in archive.getmembers() if m.name.startswith(f"{top}/tests/") or m.name.endswith(VOCABULARY)]
        archive.extractall(folder, members=wanted, filter="data")
    (folder / top / "tests" / "conftest.py").write_text(CONFTEST)
    return folder / top


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    convert_target(make_target("qwen3", folder / "qwen3"), folder / "qwen3.gguf")
    variant = Variant(mix=0.4)
    return {
        "SUITE_TRANSFORMER": str(folder / "qwen3.gguf"),
        "SUITE_HYBRID": str(write_target(folder / "hybrid.gguf", variant)),
        "SUITE_DRAFT": str(write_draft(folder / "draft.gguf", variant)),
    }


def run_suite(suite: Path, selection: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", selection, "tests"]
    # An own empty configuration: ours would select tests by its markers.
    (suite / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        command, cwd=suite, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_a_draft(suite: Path, models: dict[str, str]) -> None:
    environment = {name: path for name, path in models.items() if name != "SUITE_DRAFT"}
    assert "17 passed" in run_suite(suite, CANNOT_RUN, environment)


def test_with_a_draft(suite: Path, models: dict[str, str]) -> None:
    assert "5 passed" in run_suite(suite, "hybrid", models)
