"""README and the page of commands: README's commands run as written, on tiny models with the names it uses, and the
tables of the page are those of the help. `make walk` does it in a fresh clone, from `make demo` on; `make try-wheel`
with the packages alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fixtures.command import PYTHON, llama_eagle
from fixtures.eagle3_checkpoints import DraftSpec, make_draft
from fixtures.hub import serve_hub
from fixtures.serving import serve
from fixtures.targets import make_target
from llama_eagle.errors import EagleError, NativeError, UsageError

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXT = (ROOT / "docs/commands.md").read_text()
OF_THE_CLONE = ("git clone", "make ", ". .venv", "CMAKE_ARGS=")  # what `make walk` does, or a build
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


LINES = [line for block in blocks(README, "sh") for line in block.replace("\\\n", " ").splitlines()]
COMMANDS = [line for line in LINES if not line.startswith(OF_THE_CLONE)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The repositories that README names."""
    folder = tmp_path_factory.mktemp("hub")
    for family, name, mtp in (("qwen35", "Qwen/Qwen3.5-4B", True), ("qwen3", "Qwen/Qwen3-8B", False)):
        target = make_target(family, folder / name, mtp=mtp)
        (target / "chat_template.jinja").write_text(TEMPLATE)
    make_draft(folder / "AngelSlim/Qwen3-8B_eagle3", DraftSpec(producer="AngelSlim"))
    with serve_hub(folder) as endpoint:
        yield endpoint


def run_line(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the examples in `folder`, as the reader does."""
    name, *arguments = shlex.split(line, comments=True)
    command = [PYTHON, "-m", "llama_eagle", *arguments] if name == "llama-eagle" else [name, *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        input="Hello.\n",
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_every_command_of_its_examples_runs(hub: str, tmp_path: Path) -> None:
    """In their order, in one folder, as the reader does. With a seed: random weights may end a text as it begins.

    A server gets a free port, and the requests that follow go there.
    """
    assert len(COMMANDS) >= 9
    (tmp_path / "config.toml").write_text("[generate]\nseed = 1\n[run]\nseed = 1\n")
    given = {
        "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "LLAMA_EAGLE_CACHE": str(tmp_path / "cache"),
        "LLAMA_EAGLE_CONFIG": str(tmp_path / "config.toml"),
    }  # fmt: skip
    with ExitStack() as servers:
        address = ""
        for line in COMMANDS:
            if line.startswith("llama-eagle serve"):
                _, _, *arguments = shlex.split(line, comments=True)
                arguments = [str(tmp_path / each) if each.endswith(".gguf") else each for each in arguments]
                address = servers.enter_context(serve(*arguments)).address
                continue
            done = run_line(line.replace("http://127.0.0.1:8000", address), tmp_path, **given)
            assert done.returncode == 0, (line, done.stderr)
            assert done.stdout.strip(), line
            if line.startswith("curl"):
                assert json.loads(done.stdout)["choices"], done.stdout
        assert address
    assert {"qwen3-8b.gguf", "draft.gguf"} <= {path.name for path in tmp_path.iterdir()}


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
    (defaults,) = blocks(TEXT, "toml")
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
