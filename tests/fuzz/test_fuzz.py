"""A short run of the fuzzer. Long ones: `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.run import fuzz, wrong

pytestmark = pytest.mark.native


@pytest.mark.parametrize(("kind", "n_cases"), [("drafts", 40), ("targets", 20), ("folders", 25), ("tokenizers", 40)])
def test_no_file_ends_the_process(kind: str, n_cases: int, tmp_path: Path) -> None:
    ends = fuzz(kind, range(n_cases), tmp_path, families=("qwen35moe",))
    assert wrong(ends) == {}
    assert ends["ran"] and ends["refused"]
