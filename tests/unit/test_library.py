"""Finding our library, and refusing what does not belong together. No native code runs here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.gguf import size
from llama_eagle.gguf.header import read_header
from llama_eagle.gguf.size import (
    DraftContext,
    Slots,
    available_bytes,
    draft_bytes,
    kv_bytes,
    require_memory,
    total_bytes,
)
from llama_eagle.native import build, programs
from llama_eagle.native.build import library_folder
from llama_eagle.serving.llama_server import process

INFO = {
    "upstream_commit": "0c1e57098",
    "patch_hash": "ab",
    "abi_version": build.ABI_VERSION,
    "llama_cpp_python": "0.3.36",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An override folder with an empty library and a sound build-info.json."""
    (tmp_path / "libllama.so").touch()
    (tmp_path / "build-info.json").write_text(json.dumps(INFO))
    monkeypatch.setenv("LLAMA_EAGLE_LIB_PATH", str(tmp_path))
    monkeypatch.setattr(build, "library_folder", library_folder.__wrapped__)
    monkeypatch.setattr(build, "build_info", build.build_info.__wrapped__)
    return tmp_path


def test_sound(folder: Path) -> None:
    assert build.find_library_folder() == folder.resolve()
    assert build.build_info().patch_hash == "ab"
    build.check_versions()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"abi_version": 99}, f"ABI version 99, these bindings need {build.ABI_VERSION}"),
        ({"llama_cpp_python": "0.3.1"}, r"was built for 0\.3\.1. Install it: pip install llama-cpp-python==0\.3\.1"),
        ({"patch_hash": None, "abi_version": "x"}, "missing or incomplete"),
    ],
)
def test_mismatches_are_refused(folder: Path, change: dict[str, object], message: str) -> None:
    (folder / "build-info.json").write_text(json.dumps({**INFO, **change}))
    with pytest.raises(EnvironmentFailure, match=message):
        build.check_versions()


def test_no_build_info(folder: Path) -> None:
    (folder / "build-info.json").unlink()
    with pytest.raises(EnvironmentFailure, match="missing or incomplete"):
        build.check_versions()


def test_override_without_library(folder: Path) -> None:
    (folder / "libllama.so").unlink()
    assert build.find_library_folder() is None
    with pytest.raises(EnvironmentFailure, match="contains no libllama"):
        library_folder.__wrapped__()


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("LLAMA_CPP_LIB_PATH", "MTMD_CPP_LIB")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**clean, **environment}, timeout=60
    )


def test_import_redirects_llama_cpp_and_loads_nothing(folder: Path) -> None:
    code = (
        "import os, sys, llama_eagle; "
        "print(os.environ['LLAMA_CPP_LIB_PATH'], os.environ['MTMD_CPP_LIB'], 'llama_cpp' in sys.modules)"
    )
    assert run_python(code).stdout.split() == [str(folder), str(folder), "False"]


def test_another_library_loaded_earlier_is_an_error(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    fake = (
        "import sys, types; m = types.ModuleType('llama_cpp.llama_cpp'); "
        f"m._base_path = {str(other)!r}; sys.modules['llama_cpp.llama_cpp'] = m; import llama_eagle"
    )
    stderr = run_python(fake).stderr
    assert f"loaded {other}; llama_eagle needs {folder}. Import llama_eagle first" in stderr


def test_memory_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fixtures.tiny_gguf import write_draft, write_target

    header = read_header(write_target(tmp_path / "t.gguf"))
    f16, q8_0 = 1, 8
    assert kv_bytes(header, 100, f16, f16) == 100 * 1 * (32 + 32) * 2  # one attention layer of four, one K/V head
    assert kv_bytes(header, 100, q8_0, q8_0) == 100 * (32 + 32) // 32 * 34
    keys = {name.replace("qwen35.", "falcon-h1."): value for name, value in header.keys.items()}
    del keys["falcon-h1.full_attention_interval"]
    both = replace(header, keys={**keys, "general.architecture": "falcon-h1"})  # each block attends, and has a state
    assert kv_bytes(both, 100, f16, f16) == 4 * kv_bytes(header, 100, f16, f16)
    windows = {"gemma3.attention.sliding_window": 16, "gemma3.attention.sliding_window_pattern": 2}
    keys = {name.replace("falcon-h1.", "gemma3."): value for name, value in keys.items()} | windows
    every_second = replace(header, keys={**keys, "general.architecture": "gemma3"})
    assert kv_bytes(every_second, 100, f16, f16) == 4 * 100 * (32 + 32) * 2
    assert kv_bytes(every_second, 100, f16, f16, Slots(2, 8)) == 2 * (100 + 2 * (16 + 8)) * (32 + 32) * 2
    assert kv_bytes(every_second, 100, f16, f16, Slots(4, 512)) == 4 * 100 * (32 + 32) * 2  # windows above the context
    del every_second.keys["gemma3.attention.sliding_window_pattern"]  # then every sixth layer has no window
    assert kv_bytes(every_second, 100, f16, f16, Slots(2, 8)) == 4 * 2 * (16 + 8) * (32 + 32) * 2
    every_second.keys["gemma3.attention.shared_kv_layers"] = 3
    assert kv_bytes(every_second, 100, f16, f16, Slots(2, 8)) == 2 * (16 + 8) * (32 + 32) * 2
    available = available_bytes()
    assert available is not None and available > 2**20
    require_memory(header, 100, f16, f16)
    with pytest.raises(EnvironmentFailure, match=r"GiB are free. Use a smaller n_ctx"):
        require_memory(header, available, f16, f16)
    draft = DraftContext(read_header(write_draft(tmp_path / "d.gguf")), 50, n_seq=2)
    assert draft_bytes(header, draft, 1000) == 2 * kv_bytes(draft.header, 50, f16, f16) > 0
    with pytest.raises(EnvironmentFailure, match=r"GiB for the draft, .* Use a smaller n_ctx, draft_n_ctx or"):
        require_memory(header, available, f16, f16, draft)
    for n_layers, has_memory in ((1, False), (2, True)):  # with one layer for a further token
        more = {"eagle3.nextn_predict_layers": 1, "eagle3.block_count": n_layers}
        assistant = replace(draft.header, keys=draft.header.keys | more)
        assert bool(draft_bytes(header, DraftContext(assistant, 50, n_seq=2), 1000)) == has_memory
    monkeypatch.setattr(size.linux, "unwritten_memory", lambda: 0)
    exact = kv_bytes(header, 1000, f16, f16) + draft_bytes(header, draft, 1000)
    for free, fits in ((exact, True), (exact - 1, False), (None, True)):
        monkeypatch.setattr(size, "available_bytes", lambda free=free: free)
        with nullcontext() if fits else pytest.raises(EnvironmentFailure):
            require_memory(header, 1000, f16, f16, draft)


def test_the_free_memory_of_the_machine_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size.linux, "free_memory", lambda: None)
    monkeypatch.setattr(size, "free_addresses", lambda: None)
    available, total = available_bytes(), total_bytes()
    assert available is not None and total is not None and total // 500 < available <= total


def test_a_build_without_the_server_says_how_to_add_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "library_folder", lambda: folder)
    with pytest.raises(EnvironmentFailure, match="`make install` adds it"):
        process.start_server([], {})
