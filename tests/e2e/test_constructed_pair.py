"""Constructed checkpoints through conversion, quantization and generation, as their tables say."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.generation.generate import Watch
from llama_eagle.generation.run import Run, decode
from llama_eagle.sessions.models import ModelPair
from llama_eagle.sessions.options import PairOptions
from llama_eagle.sessions.text import Tokenizer
from llama_eagle.synthetic import ggufs
from llama_eagle.synthetic.blocks import BlockCycle
from llama_eagle.synthetic.ggufs import PairFiles, PairFolder

pytestmark = pytest.mark.native

PROMPT = "Count: A B C"
N = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> PairFolder:
    return PairFolder(tmp_path_factory.mktemp("pair") / "tiny", "tiny", keep=True)


@pytest.fixture(scope="module")
def files(folder: PairFolder) -> PairFiles:
    return folder.files(0.7, "q8_0")


def test_files_are_used_again(files: PairFiles, folder: PairFolder) -> None:
    made = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()}
    assert folder.files(0.7, "q8_0").target == files.target
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*") if path.is_file()} == made


def test_files_of_other_code_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PairFolder(tmp_path / "tiny", "tiny")
    folder.files(0.7, "q8_0").target.write_bytes(b"old")
    assert folder.files(0.7, "q8_0").target.read_bytes() == b"old"
    monkeypatch.setattr(ggufs, "_source_hash", lambda converter: "other")
    assert folder.files(0.7, "q8_0").target.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("n_draft", [1, 3, 7, "auto"])
def test_rounds_are_as_simulated(files: PairFiles, n_draft: int | str) -> None:
    with ModelPair(PairOptions(files.target, files.draft)) as pair:
        prompt = Tokenizer(pair.target).encode(PROMPT)
        result = decode(pair, prompt, Run(N, threads=1), DraftingOptions(files.draft, n_draft))
    assert result.tokens == files.cycle.expected_tokens(prompt[-1], N)
    assert result.speculative is not None
    if isinstance(n_draft, int):
        expected = files.cycle.simulate(prompt[-1], N, n_draft)
        assert result.speculative.rounds == pytest.approx(expected.rounds, abs=1)
        assert result.speculative.accepted_per_position == pytest.approx(expected.accepted_per_position, abs=0.03)


def test_a_listener_hears_what_was_drafted(files: PairFiles) -> None:
    """The constructed words are pieces of their own: as many were drafted as the rounds accepted."""
    pieces: list[tuple[str, bool]] = []
    with ModelPair(PairOptions(files.target, files.draft)) as pair:
        prompt = Tokenizer(pair.target).encode(PROMPT)
        watch = Watch(lambda text, drafted: pieces.append((text, drafted)))
        result = decode(pair, prompt, Run(N, threads=1), DraftingOptions(files.draft, 3), watch=watch)
    assert "".join(text for text, _ in pieces) == result.text
    assert result.speculative is not None
    assert sum(drafted for _, drafted in pieces) == pytest.approx(result.speculative.n_accepted, abs=1)


def test_plain_text_is_as_constructed(files: PairFiles) -> None:
    with ModelPair(PairOptions(files.target)) as pair:
        prompt = Tokenizer(pair.target).encode(PROMPT)
        result = decode(pair, prompt, Run(N, threads=1))
    assert result.text == files.cycle.expected_text(prompt[-1], N)


def test_blocks_are_right_about_as_often_as_constructed(folder: PairFolder) -> None:
    """The tiny shape has few channels, so other words disturb a choice near the threshold."""
    files = folder.blocks(0.9, "q8_0")
    assert isinstance(files.cycle, BlockCycle)
    with ModelPair(PairOptions(files.target, files.draft)) as pair:
        prompt = Tokenizer(pair.target).encode(files.cycle.counting(40))
        result = decode(pair, prompt, Run(N, threads=1), DraftingOptions(files.draft, 8, lookup=False))
    assert result.tokens == files.cycle.expected_tokens(prompt[-1], N)
    assert result.speculative is not None
    assert result.speculative.accepted_per_position == pytest.approx(list(files.cycle.profile[:8]), abs=0.17)
    assert result.speculative.mean_emitted == pytest.approx(files.cycle.expected_emitted(8), rel=0.3)
