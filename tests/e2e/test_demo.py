"""The demo job: constructed checkpoints through conversion, quantization and generation, as their tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from llama_eagle.demo import ggufs
from llama_eagle.demo.decode import Run, decode
from llama_eagle.demo.ggufs import PairFiles, PairFolder
from llama_eagle.draft_length import Auto, Fixed
from llama_eagle.models import ModelPair, PairOptions
from llama_eagle.text import Tokenizer

pytestmark = pytest.mark.native

PROMPT = "Count: A B C"
N = 1000


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(work: Path) -> dict[str, Any]:
    outcome = llama_eagle("demo", "--work", work, "--json")
    assert outcome.code == 0, outcome
    return outcome.json


def test_demo_reports_what_was_constructed(demo: dict[str, Any]) -> None:
    assert demo["equal"] is True
    assert demo["text"].startswith(" D E F G")
    assert [c["outtype"] for c in demo["comparisons"]] == ["q8_0", "q4_k_m"]
    for comparison in demo["comparisons"]:
        assert comparison["as_constructed"]
        assert comparison["accept_rate"] == pytest.approx(comparison["expected_accept_rate"], abs=0.01)
    assert demo["mean_emitted"] == pytest.approx(1 + 4 * demo["accept_rate"], abs=0.02)
    assert min(demo["plain_tps"], demo["speculative_tps"]) > 0
    assert Path(demo["target"]).is_file()
    assert Path(demo["draft"]).is_file()


def test_second_run_uses_the_same_files(demo: dict[str, Any], work: Path) -> None:
    made = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert llama_eagle("demo", "--work", work).code == 0
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()} == made


def test_files_of_other_code_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PairFolder(tmp_path / "tiny", "tiny")
    folder.files(0.7, "q8_0").target.write_bytes(b"old")
    assert folder.files(0.7, "q8_0").target.read_bytes() == b"old"
    monkeypatch.setattr(ggufs, "_source_hash", lambda converter: "other")
    assert folder.files(0.7, "q8_0").target.read_bytes()[:4] == b"GGUF"


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_one_line_error(llama_eagle("demo", "--work", tmp_path / "file"), 4, "cannot be written")


@pytest.fixture(scope="module")
def files(demo: dict[str, Any], work: Path) -> PairFiles:
    return PairFolder(work / "constructed-tiny", "tiny", keep=True).files(0.7, "q8_0")


@pytest.mark.parametrize("n_draft", [1, 3, 7, "auto"])
def test_rounds_are_as_simulated(files: PairFiles, n_draft: int | str) -> None:
    with ModelPair(PairOptions(files.target, files.draft)) as pair:
        prompt = Tokenizer(pair.target).encode(PROMPT)
        length = Fixed(n_draft) if isinstance(n_draft, int) else Auto(16)
        result = decode(pair, prompt, Run(N, threads=1), length)
    assert result.tokens == files.cycle.expected_tokens(prompt[-1], N)
    assert result.speculative is not None
    if isinstance(n_draft, int):
        expected = files.cycle.simulate(prompt[-1], N, n_draft)
        assert result.speculative.rounds == pytest.approx(expected.rounds, abs=1)
        assert result.speculative.accepted_per_position == pytest.approx(expected.accepted_per_position, abs=0.03)


def test_plain_text_is_as_constructed(files: PairFiles) -> None:
    with ModelPair(PairOptions(files.target)) as pair:
        prompt = Tokenizer(pair.target).encode(PROMPT)
        result = decode(pair, prompt, Run(N, threads=1), None)
    assert result.text == files.cycle.expected_text(prompt[-1], N)
