"""The page of commands and the page of builds name what the help, the errors and the pinned versions have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fixtures.command import llama_eagle
from llama_eagle.errors import EagleError, NativeError, UsageError

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/commands.md").read_text()


def test_its_table_of_commands_is_the_help() -> None:
    told = re.findall(r"^\| `([a-z][a-z-]+)` \|", TEXT, re.MULTILINE)
    known = re.findall(r"^  ([a-z][a-z-]+)  ", llama_eagle("--help").stdout, re.MULTILINE)
    assert sorted(told) == sorted(known)


def test_its_options_are_those_of_the_commands() -> None:
    helps = {
        name: llama_eagle(name, "--help").stdout for name in ("generate", "chat", "serve", "answer", "evaluate", "run")
    }
    table = TEXT[TEXT.index("| option | meaning |") :].partition("\n\n")[0]
    for option in re.findall(r"`(--[a-z-]+)", table):
        for name in ("generate", "chat", "serve", "answer", "evaluate"):
            is_there = name not in ("serve", "answer") or option != "--draft-sampling"
            assert (option in helps[name]) == is_there, (option, name)
    sentence = re.search(r"`generate` also takes ([^.]*)\.", TEXT)
    assert sentence is not None
    assert all(option in helps["generate"] for option in re.findall(r"`(--[a-z-]+)", sentence[1]))
    assert all(option in llama_eagle("--help").stdout for option in ("--install-completion", "--list-devices"))
    assert all(option in helps["run"] for option in ("--list", "--clear"))


def test_its_defaults_are_read(tmp_path: Path) -> None:
    (defaults,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "config.toml").write_text(defaults)
    outcome = llama_eagle("doctor", "--json", LLAMA_EAGLE_CONFIG=str(tmp_path / "config.toml"))
    assert outcome.code == 0, outcome
    (tmp_path / "config.toml").write_text(defaults.replace("temp", "tempo"))
    assert llama_eagle("doctor", LLAMA_EAGLE_CONFIG=str(tmp_path / "config.toml")).code == 3


def test_its_exit_codes_are_those_of_the_errors() -> None:
    known = {error.exit_code for error in (UsageError, EagleError, NativeError)}
    assert known <= {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    codes = llama_eagle("nothing", "--json")
    assert codes.code == json.loads(codes.stdout)["error"]["exit_code"] == 2


def test_the_versions_of_the_build_are_the_pinned_ones() -> None:
    pinned = dict(line.split("=", 1) for line in (ROOT / "native/UPSTREAM").read_text().splitlines() if "=" in line)
    text = (ROOT / "docs/building.md").read_text()
    assert set(re.findall(r"llama-cpp-python==([\d.]+)", text)) == {pinned["version"]}
