"""The native tests: each program of native/tests/test_*.cpp ends with exit code 0.

A program whose other half needs a device that is not there says "not run: …": reported as a skip, once the rest passed.
"""

from __future__ import annotations

import pytest
from fixtures.programs import ROOT, run_program

pytestmark = pytest.mark.native


@pytest.mark.parametrize("name", sorted(path.stem for path in ROOT.glob("native/tests/test_*.cpp")))
def test_program(name: str) -> None:
    done = run_program(name)
    assert done.returncode == 0, f"{name} ended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    if not_run := [line for line in done.stdout.splitlines() if line.startswith("not run: ")]:
        pytest.skip("; ".join(not_run))
