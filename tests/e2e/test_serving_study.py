"""bench/studies/serving.py: every way of serving is measured, and the table names what it is compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

STUDY = Path(__file__).parents[2] / "bench/studies/serving.py"
SETTING = ("--synthetic", "tiny", "--n-draft", "2", "--upstream", "--clients", "1", "2", "-n", "24", "--threads", "1")


def study(*arguments: str) -> str:
    command = [sys.executable, str(STUDY), *SETTING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_way_is_measured() -> None:
    results = json.loads(study("--json"))["results"]
    assert set(results) == {"ours, plain", "ours, draft", "generate, plain", "generate, draft"}
    for n_clients in ("1", "2"):
        drafting, plain = results["ours, draft"][n_clients], results["ours, plain"][n_clients]
        assert 1 < drafting["drafted_a_round"] <= 2
        assert 0.3 < drafting["accept_rate"] <= 1
        assert plain["drafted_a_round"] == 0
        assert min(drafting["tps"], plain["tps"]) > 0


def test_the_table() -> None:
    table = study()
    for row in ("| ours, draft |", "| draft over plain |", "| draft over generate's |", "| tokens drafted per round |"):
        assert row in table
