"""A draft that is never accepted is reported; a good one, and one that was hardly tried, are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error
from fixtures.command import llama_eagle as run
from fixtures.llama_pairs import write_pairs
from fixtures.tiny_gguf import Variant, write_draft
from llama_eagle import EagleLlama
from llama_eagle.drafting.price import _read
from llama_eagle.generation.stats import Statistics, unaccepted
from llama_eagle.gguf.header import read_model

pytestmark = pytest.mark.native

SAID = "drafted tokens was accepted: wrong draft for this target, or a dead head"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {**write_pairs(folder), "dead": write_draft(folder / "dead.gguf", Variant(sharpness=-24.0))}


@pytest.mark.parametrize(("draft", "code"), [("dead", 5), ("sharp_draft", 0)])
def test_check_measures_a_draft(files: dict[str, Path], draft: str, code: int) -> None:
    done = run("check", files["sharp"], files[draft], "--measure", "-t", 1)
    assert done.code == code, done
    assert (SAID in done.stdout) == (code == 5)
    assert "drafted tokens accepted" in done.stdout
    found = run("check", files["sharp"], files[draft], "--measure", "-t", 1, "--json").json
    assert (found["measure"]["accept_rate"] == 0) == (code == 5)
    assert bool(found["problems"]) == (code == 5)
    if code == 0:  # the measured price is kept
        assert found["price"]["is_measured"] and found["price"]["speed"] > 0.1
        kept = run("check", files["sharp"], files[draft], "--json").json["price"]
        assert kept == found["price"]
        costs = _read(*(read_model(files[name])[1] for name in ("sharp", draft)))
        assert costs is not None and costs.token > 0 and costs.block == 0  # not a draft of blocks


def test_check_without_a_draft_to_measure(files: dict[str, Path], tmp_path: Path) -> None:
    """The weights alone are read."""
    done = run("check", shutil.copy(files["sharp"], tmp_path / "alone.gguf"), "--measure", "--json")
    assert done.code == 0
    assert (done.json["measure"], done.json["damaged"]) == (None, [])


@pytest.mark.parametrize(
    ("draft", "n", "is_said"), [("dead", 60, True), ("dead", 5, False), ("sharp_draft", 60, False)]
)
def test_generate_and_chat(files: dict[str, Path], draft: str, n: int, is_said: bool) -> None:
    given = ("-m", files["sharp"], "-d", files[draft], "--n-draft", 4, "-t", 1, "-n", n)
    answer = run("generate", *given, "--raw", "-p", "abc", "--no-lookup")
    assert (SAID in answer.stderr) == is_said, answer
    chat = run("chat", *given, "--no-lookup", stdin="hello\nhello\n")
    assert chat.stderr.count(SAID) == is_said, chat


def test_each_drafter_is_judged_alone() -> None:
    statistics = Statistics()
    for _ in range(50):
        statistics.add_round(4, 4, 5, "look-up")
    statistics.add_round(99, 0, 1, "EAGLE-3")
    assert unaccepted(statistics) is None
    total = Statistics()
    total.add(statistics)
    total.add_round(101, 1, 2, "EAGLE-3")
    assert unaccepted(total) == "1 of 200 " + SAID
    total.add_round(100, 100, 101, "EAGLE-3")
    assert unaccepted(total) is None
    useless = Statistics()
    useless.add_round(500, 0, 1, "look-up")
    assert unaccepted(useless) is None


def test_a_few_short_drafts_are_enough() -> None:
    statistics = Statistics()
    for _ in range(24):
        statistics.add_round(1, 0, 1, "EAGLE-3")
    assert unaccepted(statistics) is None
    total = Statistics()
    total.add(statistics)
    total.add_round(1, 0, 1, "EAGLE-3")
    assert unaccepted(total) == "none of 25 " + SAID
    total.add_round(1, 1, 2, "EAGLE-3")
    assert unaccepted(total) is None


def test_a_length_without_a_drafter(files: dict[str, Path]) -> None:
    given = ("generate", "-m", files["target"], "--raw", "-p", "abc", "-n", 3, "-t", 1, "--temp", 0)
    plain = run(*given)
    done = run(*given, "--draft", "none", "--n-draft", 3)
    assert (done.code, done.stdout) == (0, plain.stdout), done
    assert done.stderr.startswith("warning: there is no drafter, so a draft length of 3 has no effect")
    assert "warning" not in run(*given, "--n-draft", 3).stderr + plain.stderr
    with pytest.warns(UserWarning, match="a draft length of 3 has no effect"):
        EagleLlama(str(files["target"]), draft="none", n_draft=3, n_ctx=64, verbose=False).close()


@pytest.mark.parametrize("grammar", ['root ::= ("a"', "root ::= rule\nx ::= [a-z]", 'root ::= "a" }\n# more\n# lines'])
def test_a_refused_grammar_is_one_line(files: dict[str, Path], grammar: str) -> None:
    outcome = run("generate", "-m", files["target"], "--raw", "-p", "a", "-n", 2, "-t", 1, "--grammar", grammar)
    assert_one_line_error(outcome, 2, "the grammar cannot be parsed")
