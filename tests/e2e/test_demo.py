"""The demo job: the trained pair through conversion and quantization, with the draft and without."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import Outcome, llama_eagle
from llama_eagle.cli.commands.demo import _about_files
from llama_eagle.demo.run import Comparison, compare_padded, summary
from llama_eagle.errors import EnvironmentFailure

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The demo where the real model cannot be downloaded."""
    outcome = llama_eagle("demo", "--work", tmp_path_factory.mktemp("demo"), "--json", PIP_NO_INDEX="1")
    assert outcome.code == 0, outcome
    return outcome


@pytest.fixture(scope="module")
def demo(outcome: Outcome) -> dict[str, Any]:
    return outcome.json


def test_without_the_package_the_small_pair_is_shown(outcome: Outcome) -> None:
    assert "The demo continues with the small pair" in outcome.stderr
    assert outcome.json["equal"] and "real" not in outcome.json


def test_both_types_say_the_same_with_the_draft_and_without(demo: dict[str, Any]) -> None:
    assert demo["equal"] is True
    ways = [(outtype, drafter) for outtype in ("q8_0", "q4_k_m") for drafter in ("EAGLE-3", "MTP")]
    assert [(c["outtype"], c["drafter"]) for c in demo["comparisons"]] == ways
    for comparison in demo["comparisons"]:
        assert comparison["equal"] and comparison["n_answers"] == 8
        assert Path(comparison["target"]).read_bytes()[:4] == Path(comparison["draft"]).read_bytes()[:4] == b"GGUF"


def test_the_draft_is_worth_its_while(demo: dict[str, Any]) -> None:
    for comparison in demo["comparisons"]:
        least = {"EAGLE-3": 1.9, "MTP": 1.6}[comparison["drafter"]]  # over all prompts 2.3 and 1.9: demo/README.md
        assert comparison["mean_emitted"] >= least
        assert len(comparison["accepted_per_position"]) == 4
        assert comparison["mean_emitted"] == pytest.approx(1 + 4 * comparison["accept_rate"], abs=0.05)


def test_the_text_is_english_about_django(demo: dict[str, Any]) -> None:
    words = demo["text"].lower().split()
    assert len(words) > 20
    assert {"the", "signal"} & set(words)


def test_its_folder_and_size_are_named_first(tmp_path: Path) -> None:
    """Without --work, files are in the cache and not in the current folder."""
    (tmp_path / "llama-eagle").write_text("")  # nothing can be written there
    outcome = llama_eagle("demo", "--no-real", LLAMA_EAGLE_CACHE=str(tmp_path))
    assert outcome.code == 4
    folder = tmp_path / "llama-eagle" / "demo"
    assert outcome.stderr.startswith(f"files: {folder}, 18 MB, up to 30 MB during the demo\n")
    assert _about_files(folder, real=True, padded=True).endswith("996 MB, up to 2656 MB during the demo")


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = llama_eagle("demo", "--no-real", "--work", tmp_path / "file")
    files, error = outcome.stderr.splitlines()
    assert outcome.code == 4 and files.startswith("files: ")
    assert error.startswith("error: ") and "cannot be written" in error


def test_no_room_for_the_padded_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 10**9))
    with pytest.raises(EnvironmentFailure, match=r"needs 2\.5 GB of disk, 1\.0 GB are free.*--padded"):
        compare_padded(tmp_path)


@pytest.mark.slow
def test_the_padded_pair_says_the_same(tmp_path: Path) -> None:
    outcome = llama_eagle("demo", "--no-real", "--padded", "--work", tmp_path, "--json")
    assert outcome.code == 0, outcome
    padded = outcome.json["padded"]
    assert [each["drafter"] for each in padded] == ["EAGLE-3", "MTP"]
    for each in padded:
        assert each["equal"] is True
        assert each["mean_emitted"] > 1.6
        assert Path(each["target"]).stat().st_size > 0.8e9
    assert [path.name for path in (tmp_path / "padded").iterdir() if path.is_dir()] == []


def test_what_is_told_of_the_padded_pair() -> None:
    padded = [Comparison("q8_0", name, "t", "d", True, True, 6, 0.3, 2.2, [0.5], 20.0, 32.0) for name in ("A", "B")]
    text = summary(padded)
    assert (
        "A: plain 20.0 tokens/s, drafting 32.0 tokens/s, 1.60 x as fast; 2.20 tokens per round, the same text" in text
    )
    assert "\nB: plain" in text
