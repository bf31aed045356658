"""config.json of published checkpoints: llama.cpp's converter reads it as transformers does, or it is refused by name.

tests/fixtures/published.json has keys as publishers wrote them, to our knowledge: no copy of their files was at hand.
They differ from those that transformers 5 saves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.converter import imported_converter, run_fork
from fixtures.families import byte_level, spaces
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.convert.upstream import check
from llama_eagle.errors import ConversionError

pytestmark = [pytest.mark.slow, pytest.mark.native]

CONFIGS = json.loads((Path(__file__).parents[1] / "fixtures/published.json").read_text("utf-8"))
WARNED = {"Mistral 7B 0.1": "llama.cpp ignores its sliding window, so texts of more than 4096 tokens"}
REFUSED = {"Phi-3.5-MoE": "where this model has LayerNorm and SparseMixer"}


@pytest.fixture(scope="module", autouse=True)
def imported() -> Iterator[None]:
    with imported_converter():
        yield


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "run_child", run_fork)
    (spaces if family.startswith("Gemma") else byte_level)(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family]))
    checkpoint = open_checkpoint(tmp_path)
    if reason := REFUSED.get(family):
        with pytest.raises(ConversionError, match=reason):
            check.check_logits(checkpoint)
        return
    found = check.check_logits(checkpoint)
    assert len(found) == (family in WARNED), found
    assert all(WARNED[family] in text for text in found)
