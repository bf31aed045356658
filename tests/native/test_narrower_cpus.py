"""The kernels as CPUs with fewer instructions than this one run them, each in a build of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.programs import ROOT

pytestmark = [pytest.mark.native, pytest.mark.slow]

PROGRAMS = ("test_eagle_mul_mat", "test_eagle_flash_attn", "test_gdn_replay", "test_ssm_replay")
FLAG = {"avx2": "avx2", "avx-vnni": "avx_vnni"}


def run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("simd", FLAG)
def test_narrower_cpu(simd: str) -> None:
    cpu = Path("/proc/cpuinfo")
    if not cpu.is_file() or f" {FLAG[simd]} " not in cpu.read_text():
        pytest.skip(f"this CPU does not run {simd}, or does not say so")
    build = ROOT / "build" / "simd" / simd
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DLLAMA_EAGLE_TESTS=ON", f"-DLLAMA_EAGLE_SIMD={simd}", python)
    run("cmake", "--build", build, "--target", *PROGRAMS)
    for name in PROGRAMS:
        run(build / "bin" / name)
