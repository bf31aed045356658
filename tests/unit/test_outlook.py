"""Outlook of a target's drafts in `check` and `run`: the drafter of now, and the training of one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures import tiny_gguf
from llama_eagle.cli import main
from llama_eagle.cli.commands import run
from llama_eagle.drafting import outlook as module
from llama_eagle.drafting.outlook import outlook
from llama_eagle.gguf.architectures import rollback_problem
from llama_eagle.gguf.header import read_model

UNREAD = "and published EAGLE-3 and DFlash drafts do not run"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of a pair; its draft lies next to it."""
    return tiny_gguf.write_pair(tmp_path_factory.mktemp("pair")) / "target.gguf"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write_target(tmp_path_factory.mktemp("alone") / "target.gguf")


def of_architecture(path: Path, name: str) -> module.Outlook:
    files = read_model(path)[1]
    return outlook([replace(files[0], keys={**files[0].keys, "general.architecture": name})])


def test_the_drafter_of_now_and_the_hours_of_training(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", str(alone)])
    now, training = capsys.readouterr().out.splitlines()[1:]
    assert now.startswith("drafts: prompt look-up")
    assert re.search(
        r"in about \d+ (minutes|hours?) on this processor: llama-eagle train --target \S+target.gguf", training
    )
    with pytest.raises(SystemExit):
        main(["check", str(alone), "--json"])
    found = json.loads(capsys.readouterr().out)["outlook"]
    assert found["hours"] > 0 and not found["has_model"] and found["problem"] == ""


def test_hours_follow_from_the_sizes_and_the_speed(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_model(alone)[1][0]
    monkeypatch.setattr(module, "_operations_per_second", lambda: 1e9)
    hours = module.training_hours([first])
    blocks = sum(tensor.n_elements for name, tensor in first.tensors.items() if name.startswith("blk."))
    monkeypatch.setattr(module, "N_TOKENS", module.N_TOKENS * 2)
    assert module.training_hours([first]) == pytest.approx(2 * hours)
    monkeypatch.setattr(module, "EPOCHS", 0)
    expected = module.N_TOKENS * 4 * (blocks + tiny_gguf.HIDDEN * tiny_gguf.N_VOCAB) / 1e9 / 3600
    assert module.training_hours([first]) == pytest.approx(expected)


def test_a_reason_is_stated_once(alone: Path) -> None:
    problem = rollback_problem("jamba")
    found = module.Outlook(f"no drafter: {problem}", False, problem, None, False).lines(alone)
    assert found == [f"no drafter: {problem}. No draft can be trained, either."]
    now, training = of_architecture(alone, "gemma3n").lines(alone)
    assert now.startswith("drafts: prompt look-up") and "several streams" in training


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jamba", f"no draft can be trained, {UNREAD}: the recurrent state of jamba models"),
        ("gemma3n", f"no draft can be trained, {UNREAD}: this build does not publish the states between blocks"),
        ("deepseek4", "no draft can be trained: training does not read"),
        ("chameleon", "no draft can be trained: llama.cpp excludes its image tokens"),
    ],
)
def test_why_no_draft_can_be_trained(alone: Path, name: str, message: str) -> None:
    assert of_architecture(alone, name).training(alone).startswith(message)


@pytest.mark.parametrize("has_draft", [False, True])
def test_run_names_training_where_no_model_drafts(
    pair: Path, alone: Path, has_draft: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.console, "on_terminal", lambda: True)
    monkeypatch.setattr(run, "_estimate", lambda *_: {"n_bytes": 1, "tokens_per_second": 1.0})
    run._show_estimate(pair if has_draft else alone, None)
    assert ("a draft can be trained in about" in capsys.readouterr().err) == (not has_draft)
