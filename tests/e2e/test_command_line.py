"""Common features of all commands: help, completion, user defaults, devices."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import free_port
from fixtures.tiny_gguf import write_target
from llama_eagle.cli import main
from llama_eagle.cli.app import COMMANDS


def test_help_is_whole_in_80_columns() -> None:
    outcome = llama_eagle("--help", COLUMNS="80")
    assert "..." not in outcome.stdout.split("Commands:")[1]
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_help_imports_no_command() -> None:
    measure = "import sys; from llama_eagle.cli import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    shown = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True, check=True)
    assert "llama_eagle.cli.app" in shown.stderr
    assert not re.search(r"llama_eagle\.cli\.commands\.|\bnumpy\b|\bpydantic\b", shown.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    outcome = llama_eagle(command, "--help", COLUMNS="80")
    assert COMMANDS[command][2] in " ".join(outcome.stdout.split())
    assert outcome.stdout.splitlines()[2].startswith(f"  {COMMANDS[command][1]}")
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    assert not re.search(r"(--[a-z-]+|[A-Z]) +<", outcome.stdout), "an option or argument that names a type of Python"


def test_help_has_the_terminals_width() -> None:
    lines = llama_eagle("generate", "--help", COLUMNS="140").stdout.splitlines()
    assert 120 < max(map(len, lines)) <= 140


def test_options_of_the_server_behind_its_own() -> None:
    for option in ("--jinja", "--slot-save-path=x", "-b"):  # the last has no effect in a server
        assert_one_line_error(llama_eagle("serve", "-m", "x.gguf", option), 2, "Options of llama-server go after --")
    assert "go after --" not in llama_eagle("generate", "-m", "x.gguf", "--jinja").stderr


@pytest.mark.parametrize(
    ("arguments", "page"),
    [
        (("chek",), "llama-eagle"),
        (("--typo",), "llama-eagle"),
        (("doctor", "--typo"), "llama-eagle doctor"),
        (("generate", "-n", "x"), "llama-eagle generate"),
        (("rpc-server", "a", "b"), "llama-eagle rpc-server"),
    ],
)
def test_a_mistake_and_where_help_is_are_two_sentences(arguments: tuple[str, ...], page: str) -> None:
    """The help that lists the options of the command."""
    outcome = llama_eagle(*arguments)
    assert_one_line_error(outcome, 2, f" See {page} --help.")
    assert re.search(r"\w[')]?[.?] See llama-eagle", outcome.stderr)


def test_shells_complete_commands() -> None:
    outcome = llama_eagle(_LLAMA_EAGLE_COMPLETE="complete_bash", COMP_WORDS="llama-eagle ge", COMP_CWORD="1")
    assert (outcome.code, outcome.stdout.split()) == (0, ["generate"])


def test_fish_gets_one_line_for_each_option() -> None:
    """It would offer the further lines of a help text as words."""
    request = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": "llama-eagle generate --draft"}
    outcome = llama_eagle(_LLAMA_EAGLE_COMPLETE="complete_fish", COLUMNS="80", **request)
    assert outcome.code == 0
    assert "--draft\tDrafter: a GGUF file" in outcome.stdout
    assert all(line.startswith("--draft") for line in outcome.stdout.splitlines())


def test_a_list_of_models_takes_no_model() -> None:
    for action in (("--list",), ("--clear", "all")):
        assert_one_line_error(llama_eagle("run", "some/model", *action), 2, "Leave out some/model")


def test_a_program_that_runs_a_command_keeps_its_signals() -> None:
    """Left to the system, its next Ctrl-C would end it without a word."""
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with pytest.raises(SystemExit):
        main(["--version"])
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


@pytest.mark.native
def test_devices() -> None:
    outcome = llama_eagle("--list-devices")
    assert outcome.code == 0
    assert outcome.stdout.startswith("CPU: ")


class TestOwnDefaults:
    @pytest.mark.native
    def test_for_all_and_for_one(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        target = write_target(tmp_path / "target.gguf")
        config.write_text(f'temp = 0.0\nthreads = 1\n[generate]\nn-predict = 4\nmodel = "{target}"\nraw = true\n')
        arguments = ("generate", "-p", "abc", "--json")
        assert llama_eagle(*arguments, LLAMA_EAGLE_CONFIG=str(config)).json["text"] == "defg"
        assert llama_eagle(*arguments, "-n", 2, LLAMA_EAGLE_CONFIG=str(config)).json["text"] == "de"

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("x = 1", "no command has an option x"),
            ("[generate]\nx = 1", "generate has no option x"),
            ("[gen]", "[gen] is not a command"),
            ("[", "not TOML"),
        ],
    )
    def test_mistakes(self, text: str, part: str, tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text(text)
        outcome = llama_eagle("inspect", "x.gguf", LLAMA_EAGLE_CONFIG=str(tmp_path / "config.toml"))
        assert_one_line_error(outcome, 3, part)


@pytest.mark.native
@pytest.mark.parametrize("command", ["serve", "rpc-server"])
def test_ctrl_c_ends_a_server_without_an_error(command: str, tmp_path: Path) -> None:
    """It is how a server ends: the exit code alone tells of it."""
    options = {
        "serve": ["-m", write_target(tmp_path / "target.gguf"), "--port", 0, "-c", 64],
        "rpc-server": ["--port", free_port()],
    }[command]
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_eagle", command, "-t", "1", *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and process.stdout.readline().startswith("listening on ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error" not in errors and "interrupted" not in errors
