"""`--json` prints one object and nothing else: every command and every study, with an empty cache."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.command import llama_eagle
from fixtures.eagle3_checkpoints import CASES, make_draft, make_target_gguf
from fixtures.llama_pairs import write_pairs
from llama_eagle.cli.app import command
from llama_eagle.synthetic.ggufs import PairFolder

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "bench/studies"
TEXT = ROOT / "demo/held-out.jsonl"
ARGUMENTS = {
    "busy.py": ("TARGET", "--loads", "idle", "-n", "4", "--runs", "1", "--prompt", "abc"),
    "divergence.py": ("FLOAT", "q8_0", "--text", str(TEXT), "--tokens", "16"),
    "mtp_costs.py": ("HEAD", "--rows", "all", "--prompt", "8", "--prompts", "1", "--threads", "1"),
    "round_state.py": ("--threads", "1", "--runs", "4", "--rows", "1", "--model", "0.8B"),
    "serving.py": (
        *("--synthetic", "tiny", "--n-draft", "2", "--upstream", "--clients", "1", "-n", "8", "--threads", "1"),
    ),
}


# Run by another test, in whose file the result is read with `Outcome.json`: they take long.
ELSEWHERE = {"demo": "test_demo.py", "train": "test_train.py", "imatrix": "test_imatrix.py", "remove": "test_names.py"}
COMMAND_ARGUMENTS = {
    "answer": ("PROMPTS", "-m", "TARGET", "-o", "OUT.jsonl", "-c", "64", "-n", "2", "--raw"),
    "bench": (
        *("--synthetic", "tiny", "--accept", "0.7", "--n-draft", "2", "-n", "8", "--repetitions", "1"),
        *("--prompts", "8", "-t", "1"),
    ),
    "check": ("TARGET", "DRAFT"),
    "convert": (str(ROOT / "demo/target"), "-o", "OUT.gguf"),
    "doctor": (),
    "evaluate": ("-m", "TARGET", "-d", "DRAFT", "--data", "PROMPTS", "-n", "4", "-t", "1"),
    "generate": ("-m", "TARGET", "-d", "DRAFT", "-p", "abc", "-n", "4", "-t", "1"),
    "export": ("EAGLE3", "--target", "EAGLE3_TARGET", "--to", "vllm", "-o", "OUT"),
    "inspect": ("TARGET",),
    "list": (),
    "pairs": (),
    "pull": ("TARGET",),
    "quantize": ("TARGET", "OUT.gguf", "q8_0"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    pair = write_pairs(folder)
    target, prompts = str(pair["target"]), folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "abc"}\n')
    eagle3 = make_draft(folder / "eagle3", CASES["speculators"])
    eagle3_target = make_target_gguf(folder / "eagle3-target.gguf")
    head = str(PairFolder(folder / "tiny", "tiny").mtp(0.7, "q8_0").target)
    named = {"DRAFT": pair["draft"], "PROMPTS": prompts, "EAGLE3": eagle3, "EAGLE3_TARGET": eagle3_target}
    return {"TARGET": target, "FLOAT": target, "HEAD": head, **{key: str(path) for key, path in named.items()}}


def test_every_command_with_json_is_run() -> None:
    commands = command().commands
    with_json = {name for name, built in commands.items() if any(each.name == "json" for each in built.params)}
    assert with_json == COMMAND_ARGUMENTS.keys() | ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        assert re.search(r"\.json\b(?!\")", (ROOT / "tests/e2e" / file).read_text("utf-8")), name


@pytest.mark.parametrize("name", COMMAND_ARGUMENTS)
def test_a_command_prints_one_object(name: str, files: dict[str, str], tmp_path: Path) -> None:
    named = {**files, "OUT.jsonl": tmp_path / "out.jsonl", "OUT.gguf": tmp_path / "out.gguf", "OUT": tmp_path / "out"}
    arguments = [named.get(each, each) for each in COMMAND_ARGUMENTS[name]]
    outcome = llama_eagle(name, *arguments, "--json", LLAMA_EAGLE_CACHE=str(tmp_path / "cache"))
    assert outcome.code == 0, outcome.stderr
    assert outcome.json


def test_every_study_with_json_is_run() -> None:
    with_json = {path.name for path in STUDIES.rglob("*.py") if '"--json"' in path.read_text("utf-8")}
    slow = {"memory_wall.py", "parallel_drafts.py"}  # the first builds both engines, the second models of real sizes
    assert with_json == set(ARGUMENTS) | slow


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_study_prints_one_object(name: str, files: dict[str, str], tmp_path: Path) -> None:
    arguments = [files.get(each, each) for each in ARGUMENTS[name]]
    done = subprocess.run(
        [sys.executable, str(STUDIES / name), *arguments, "--json"],
        env={**os.environ, "LLAMA_EAGLE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
