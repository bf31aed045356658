"""The native tests: each program of native/tests/test_*.cpp ends with exit code 0.

A program whose other half needs a device that is not there says "not run: …": reported as a skip, once the rest passed.
"""

from __future__ import annotations

import pytest
from fixtures.programs import ROOT, run_program

pytestmark = pytest.mark.native

NAMES = sorted(path.stem for path in ROOT.glob("native/tests/test_*.cpp"))
ON_WARPS_OF_64 = ["test_exact_devices_64", "test_gdn_replay_64", "test_ssm_replay_64"]


@pytest.mark.parametrize("name", NAMES + ON_WARPS_OF_64)
def test_program(name: str) -> None:
    done = run_program(name)
    assert done.returncode == 0, f"{name} ended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    if not_run := [line for line in done.stdout.splitlines() if line.startswith("not run: ")]:
        pytest.skip("; ".join(not_run))
