"""`llama-eagle evaluate` on the constructed pair, whose acceptance is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fixtures import tiny_gguf
from fixtures.command import assert_one_line_error, llama_eagle
from llama_eagle.bench import evaluate
from llama_eagle.synthetic.ggufs import PairFiles, PairFolder

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PairFiles:
    return PairFolder(tmp_path_factory.mktemp("pair") / "tiny", "tiny").files(0.7, "q8_0")


def data(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_scores_are_as_constructed(files: PairFiles, tmp_path: Path) -> None:
    prompts = data(
        tmp_path / "prompts.jsonl",
        {"category": "letters", "prompt": "Count: A B C"},
        {"category": "chat", "turns": ["Count on: A B", "And from D"]},
    )
    options = ("-m", files.target, "-d", files.draft, "--data", prompts, "-n", 240, "--ignore-eos", "-t", 1)
    plot = tmp_path / "plot.png"
    outcome = llama_eagle("evaluate", *options, "--n-draft", 3, "--plot", plot, "--json")
    assert outcome.code == 0, outcome
    report = outcome.json
    assert {name: score["n_turns"] for name, score in report["categories"].items()} == {"letters": 1, "chat": 2}
    overall = report["overall"]
    assert (overall["n_turns"], overall["n_same"], overall["n_tokens"]) == (3, 3, 720)
    expected = files.cycle.simulate(int(files.cycle.ids[2]), 720, 3)
    assert overall["accepted_per_position"] == pytest.approx(expected.accepted_per_position, abs=0.05)
    assert overall["mean_emitted"] == pytest.approx(expected.mean_emitted, abs=0.1)
    assert overall["over_plain"] == pytest.approx(overall["tps"] / overall["plain_tps"])
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_table(files: PairFiles, tmp_path: Path) -> None:
    prompts = data(tmp_path / "prompts.jsonl", {"category": "letters", "prompt": "A B C"})
    options = ("-m", files.target, "-d", files.draft, "--data", prompts, "-n", 40, "-t", 1)
    outcome = llama_eagle("evaluate", *options, "--n-draft", "auto", "--exact")
    assert outcome.code == 0, outcome
    assert "letters" in outcome.stdout
    assert "1 of 1 answers are identical to plain decoding" in outcome.stdout


@pytest.mark.parametrize("template", [tiny_gguf.CHAT_TEMPLATE, ""])
def test_the_gain_of_a_draft_is_measured_with_and_without_a_chat_template(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_gguf, "CHAT_TEMPLATE", template)
    monkeypatch.setattr(evaluate, "GAIN_TOKENS", 8)
    target, draft = tiny_gguf.write_target(tmp_path / "target.gguf"), tiny_gguf.write_draft(tmp_path / "draft.gguf")
    done: list[float] = []
    gain = evaluate.measure_gain(target, draft, done.append)
    # Answers by each of three, after one of each to page the files in.
    n = 3 * (len(done) // 3)
    assert n > 3 and done == [pytest.approx((i + 1) / n) for i in range(n)]
    assert gain.lookup is not None
    assert min(gain.plain, gain.lookup, gain.draft) > 0


@pytest.mark.parametrize(("plot", "code", "part"), [("none/plot.png", 4, "does not exist"), ("plot.xyz", 2, "--plot")])
def test_a_plot_that_cannot_be_written_is_known_before(tmp_path: Path, plot: str, code: int, part: str) -> None:
    """Before anything is read, much less measured."""
    outcome = llama_eagle("evaluate", "-m", "x", "-d", "x", "--data", "x", "--plot", tmp_path / plot)
    assert_one_line_error(outcome, code, part)


def test_prompt_that_does_not_fit_is_named(files: PairFiles, tmp_path: Path) -> None:
    prompts = data(tmp_path / "long.jsonl", {"prompt": "A"}, {"prompt": "A B C " * 8000})
    options = ("-m", files.target, "-d", files.draft, "--data", prompts, "-n", 16000, "-t", 1)
    outcome = llama_eagle("evaluate", *options)
    assert_one_line_error(outcome, 3, "long.jsonl:2", "32768")


@pytest.mark.parametrize(("n_draft", "part"), [("0", "--n-draft"), ("x", "--n-draft")])
def test_usage_errors(tmp_path: Path, n_draft: str, part: str) -> None:
    options = ("-m", "t.gguf", "-d", "d.gguf", "--data", "chat", "--n-draft", n_draft)
    assert_one_line_error(llama_eagle("evaluate", *options), 2, part)


def test_a_model_without_a_draft(files: PairFiles, tmp_path: Path) -> None:
    """Look-up drafts. Next to a draft it is measured alone and, without a fixed length, both as by default."""
    prompts = data(tmp_path / "prompts.jsonl", {"category": "letters", "prompt": "A B C"})
    alone_in_folder = shutil.copy(files.target, tmp_path / "alone.gguf")
    options = ("-m", alone_in_folder, "--data", prompts, "-n", 100, "--ignore-eos", "-t", 1, "--n-draft", 4)
    report = llama_eagle("evaluate", *options, "--json").json
    assert (report["draft"], report["lookup"]) == ("lookup", None)
    assert (report["overall"]["n_same"], report["overall"]["n_turns"]) == (1, 1)
    both = llama_eagle("evaluate", *options, "-d", files.draft, "--json").json
    assert both["draft"] == files.draft.name
    alone = both["lookup"]["overall"]
    assert alone["mean_emitted"] == report["overall"]["mean_emitted"] != both["overall"]["mean_emitted"]
    assert both["default"] is None
    free = llama_eagle("evaluate", *options[:-2], "-d", files.draft, "--json").json
    assert (free["n_draft"], free["overall"]["mean_emitted"]) == (4, both["overall"]["mean_emitted"])
    assert free["default"]["overall"]["n_same"] == free["lookup"]["overall"]["n_same"] == 1
    text = llama_eagle("evaluate", *options[:-2], "-d", files.draft)
    assert "look-up alone" in text.stdout and "default: both drafters" in text.stdout


def test_look_up_has_prompts_of_its_own(files: PairFiles, tmp_path: Path) -> None:
    """A row for each kind of work, by the policy's own lengths."""
    alone = shutil.copy(files.target, tmp_path / "alone.gguf")
    options = ("-m", alone, "-n", 2, "--limit", 1, "-t", 1)
    report = llama_eagle("evaluate", *options, "--json").json
    assert list(report["categories"]) == ["edit", "extract", "summarize", "rename", "agent", "repeat", "chat"]
    assert (report["data"], report["n_draft"], report["draft"]) == (["lookup"], "auto", "lookup")
