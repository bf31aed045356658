"""`llama-eagle run` and `pairs`: a model by name, converted once, with the draft that belongs to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fixtures.command import Outcome, assert_one_line_error, llama_eagle
from fixtures.hub import serve_hub
from fixtures.targets import make_target
from fixtures.tiny_gguf import write_draft, write_target
from llama_eagle.pairs import PAIRS

ROOT = Path(__file__).parents[2]


def run(cache: Path, *arguments: object, say: str = "/stats\nabc\n/stats\n", **environment: str) -> Outcome:
    options = ("-t", 1, "--temp", 0, "--ctx-size", 256)
    return llama_eagle(
        "run", *arguments, *(() if str(arguments[0]).startswith("--") else options), stdin=say,
        LLAMA_EAGLE_CACHE=str(cache), **environment,
    )  # fmt: skip


@pytest.mark.native
def test_a_folder_is_converted_once_and_listed(tmp_path: Path) -> None:
    checkpoint = make_target("qwen3", tmp_path / "My-Model", 1, dtype="float32")
    times = []
    for _ in range(2):
        outcome = run(tmp_path, checkpoint, "--type", "q8_0")
        assert outcome.code == 0, outcome
        (made,) = (tmp_path / "llama-eagle/models").glob("*/*.gguf")
        assert made.name == "My-Model-q8_0.gguf"
        times.append(made.stat().st_mtime_ns)
    assert times[0] == times[1]
    os.utime(checkpoint / "config.json")
    assert run(tmp_path, checkpoint, "--type", "q8_0").code == 0
    (made,) = (tmp_path / "llama-eagle/models").glob("*/*.gguf")
    assert made.stat().st_mtime_ns > times[1], "the checkpoint has changed"
    assert f"{checkpoint} q8_0: 0." in run(tmp_path, "--list").stdout
    assert "deleted" in run(tmp_path, "--clear", "all").stdout
    assert run(tmp_path, "--list").stdout == "the cache is empty\n"


@pytest.mark.native
def test_a_draft_beside_a_file_is_found(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target.gguf")
    assert "nothing drafted" in run(tmp_path, target, "-d", "none").stdout
    assert "; look-up: " in run(tmp_path, target).stdout
    write_draft(tmp_path / "my-draft.gguf")
    assert "EAGLE-3" in run(tmp_path, target, "--n-draft", 2).stdout


@pytest.mark.native
def test_a_repository_of_ggufs(tmp_path: Path) -> None:
    folder = tmp_path / "hub/me/model"
    folder.mkdir(parents=True)
    write_target(folder / "model-Q8_0.gguf")
    (folder / "model-F16.gguf").write_text("not asked for")
    with serve_hub(tmp_path / "hub") as endpoint:
        outcome = run(tmp_path, "me/model", "--type", "q8_0", HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path / "hf"))
    assert outcome.code == 0, outcome
    assert "defghij" in outcome.stdout


@pytest.mark.native
def test_what_is_no_model(tmp_path: Path) -> None:
    assert_one_line_error(run(tmp_path, "nothing"), 2, "neither a file, a folder nor a hub id")
    assert_one_line_error(llama_eagle("run"), 2, "name a MODEL")


def test_pairs_are_those_of_the_documentation() -> None:
    table = [line[2:-3].split(" | ") for line in (ROOT / "docs/pairs.md").open() if line.startswith("| ")][1:]
    assert table == [
        [pair.target, pair.licence, pair.draft, pair.kind, pair.maker, "" if pair.size is None else f"{pair.size:g}"]
        for pair in PAIRS
    ]
    assert llama_eagle("pairs").stdout.count("\n") == len(PAIRS) + 1  # a title
    assert llama_eagle("pairs", "--json").json["pairs"][0]["target"] == "Qwen/Qwen3-1.7B"


def test_readmes_example_is_a_published_pair() -> None:
    text = (ROOT / "README.md").read_text()
    assert any(f"convert {pair.target} " in text and f"convert {pair.draft} " in text for pair in PAIRS)
