"""Every kind of drafter in every command that generates: the text of plain decoding, and the drafter by its name."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.dflash import CASES, make_dflash
from fixtures.eagle3_checkpoints import PEAGLE, DraftSpec, make_draft
from fixtures.gemma4 import make_gemma4_pair
from fixtures.targets import make_target
from llama_eagle import cli
from llama_eagle.convert.drafts import DraftOptions, convert_draft
from llama_eagle.convert.targets import TargetOptions, convert_target

pytestmark = [pytest.mark.native, pytest.mark.slow]

NAMES = {  # drafter of the commands' reports, and its name in those of `bench`
    "small": ("small model", "small"),
    "eagle3": ("EAGLE-3", "eagle3"),
    "peagle": ("P-EAGLE", "eagle3"),
    "dflash": ("DFlash", "dflash"),
    "dflash2": ("DFlash2", "dflash"),
    "dspark": ("DSpark", "dflash"),
    "mtp": ("MTP", "mtp"),
    "lookup": ("look-up", "lookup"),
    "assistant": ("assistant", "gemma4-assistant"),
}
BLOCKS = {"dflash": "dflash", "dflash2": "dflash2", "dspark": "dspark-no-confidence"}
PROMPT = "a b c"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recurrent target with an MTP head and its drafts, one of them recurrent too; a Gemma 4 and its assistant."""
    folder = tmp_path_factory.mktemp("drafters")
    target, options = folder / "target.gguf", DraftOptions(outtype="f16")
    convert_target(make_target("qwen35-text", folder / "t", 3, mtp=True), target, TargetOptions(outtype="q8_0"))
    small = make_target("qwen35-text", folder / "s", 4, num_hidden_layers=4)
    convert_target(small, folder / "small.gguf", TargetOptions(outtype="q8_0"))
    for kind, spec in (("eagle3", DraftSpec()), ("peagle", PEAGLE["plain"])):
        convert_draft(make_draft(folder / kind, spec), target, folder / f"{kind}.gguf", options)
    for kind, case in BLOCKS.items():
        convert_draft(make_dflash(folder / kind, CASES[case]), target, folder / f"{kind}.gguf", options)
    make_gemma4_pair(folder / "gemma")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process; returns its output, parsed with --json."""

    def called(*arguments: object, stdin: str = "", codes: tuple[int, ...] = (0,)) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert cli.run([*map(str, arguments), "-t", "1"]) in codes, capsys.readouterr().err
        shown = capsys.readouterr().out
        return json.loads(shown) if "--json" in arguments else shown

    return called


@pytest.mark.parametrize("kind", NAMES)
def test_each_command(kind: str, folder: Path, run: Run) -> None:
    target, draft = folder / "target.gguf", str(folder / f"{kind}.gguf")
    if kind == "assistant":
        target, draft = folder / "gemma/gemma-4-tiny-it.gguf", str(folder / "gemma/mtp-gemma-4-tiny-it.gguf")
    draft = kind if kind in ("mtp", "lookup") else draft
    for sampling in (("--temp", 0), ("--temp", 1.5, "--seed", 3)):
        asked = ("generate", "-m", target, "--raw", "-p", PROMPT * 3, "-n", 24, *sampling, "--json")
        drafted = run(*asked, "-d", draft, "--n-draft", 3)
        assert drafted["tokens"] == run(*asked, "-d", "none")["tokens"]
    assert drafted["speculative"]["drafter"] == NAMES[kind][0]
    options = ("-n", 12, "--temp", 0)
    plain = run("chat", "-m", target, "-d", "none", *options, stdin=f"{PROMPT}\n")
    assert plain.strip()
    assert run("chat", "-m", target, "-d", draft, *options, stdin=f"{PROMPT}\n") == plain
    assert run("run", target, "-d", draft, *options, stdin=f"{PROMPT}\n") == plain
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"category": "x", "prompt": PROMPT}))
    scores = run("evaluate", "-m", target, "-d", draft, "-n", 8, "--data", prompts, "--json")["overall"]
    assert scores["n_same"] == scores["n_turns"] == 1
    speed = ("-n", 8, "--n-draft", 2, "--repetitions", 1, "--depths", 8, "--prompts", 8, "--json")
    assert run("bench", "-m", target, "-d", draft, *speed)["drafter"] == NAMES[kind][1]
    files = [target] if kind in ("mtp", "lookup") else [target, draft]
    measured = run("check", *files, "--measure", "--json", codes=(0, 5))["measure"]  # 5: these drafts are random
    assert measured is None or measured["drafter"] == NAMES["mtp" if kind == "lookup" else kind][0]
