"""`llama-eagle chat`, piped and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.terminal import Terminal
from fixtures.tiny_gguf import write_pair

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
DRAFT_OPTIONS = ("--p-min", 0.1, "--draft-gpu-layers", 0, "--draft-ctx-size", 512)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("models"))


def chat(models: Path, lines: str, *options: object) -> Any:
    pair = ["-m", models / "target.gguf", "-d", models / "draft.gguf"]
    return llama_eagle("chat", *pair, "--temp", 0, "-t", 1, "-n", 26, *options, stdin=lines)


def test_chat(models: Path) -> None:
    said = ["hello", "/stats", "/draft off", "more", "/stats", '"""two', 'lines"""', "/help", "/exit", "not read"]
    outcome = chat(models, "\n".join(said), "--n-draft", 2, *DRAFT_OPTIONS)
    lines = outcome.stdout.splitlines()
    assert outcome.code == 0
    assert [line for line in lines if line == ALPHABET] == [ALPHABET] * 3
    stats = [line for line in lines if "rounds" in line and "accepted (by" in line]
    assert "by position: 100% 0%" in stats[0]
    assert any(line.endswith("tokens, nothing drafted") for line in lines)
    assert sum(line.startswith("plain decoding: about ") for line in lines) == 1
    assert any(line.startswith("/draft") for line in lines)
    assert outcome.stderr == ""


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """Folder of the history of a test's chats."""
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_a_terminal_shows_which_tokens_were_drafted(models: Path, state: dict[str, str]) -> None:
    """Every other letter: in each round one drafted token is right, and the one after it is the target's own."""
    for environment, drafted in (({}, "cyan"), ({"NO_COLOR": "1"}, "default")):
        terminal = Terminal(models, "-n", 26, "--plain", **environment, **state)
        assert ALPHABET in terminal.type("hello\r")
        assert terminal.colors(ALPHABET) == ["default", drafted] * 13
        terminal.type("/draft off\r")
        terminal.type("hello\r")
        assert terminal.colors(ALPHABET) == ["default"] * 26
        assert terminal.close() == 0


def test_a_terminal_has_a_history_and_blocks(models: Path, state: dict[str, str]) -> None:
    terminal = Terminal(models, "-n", 26, **state)
    terminal.type("first words\r")
    assert terminal.close() == 0
    terminal = Terminal(models, "-n", 26, **state)
    arrow_up = "\x1b[A"
    again = terminal.type(f"{arrow_up}{arrow_up}\r")  # behind the /exit
    assert again[0] == "> first words"
    assert ALPHABET in again
    pasted = terminal.type("\x1b[200~one\ntwo\n\x1b[201~\r")
    assert (pasted[0], pasted[1].split()[-1], pasted.count(ALPHABET)) == ("> one", "two", 1)
    assert terminal.type('"""two\rlines"""\r').count(ALPHABET) == 1
    assert terminal.close() == 0


def test_ctrl_c_ends_an_answer_clears_the_line_and_leaves(models: Path, state: dict[str, str]) -> None:
    terminal = Terminal(models, **state)  # without -n: the alphabet over and over, to the end of the context
    os.write(terminal._master, b"hello\r")
    terminal.see(lambda: any(line.startswith("abcdef") for line in terminal.lines()))
    terminal._row = terminal._screen.cursor.y
    terminal.process.send_signal(signal.SIGINT)
    terminal.see(terminal._is_asking)
    assert "(interrupted)" in terminal.lines()
    assert any("tokens in" in line for line in terminal.type("/stats\r"))
    os.write(terminal._master, b"half a line")
    terminal.see(lambda: terminal.lines()[terminal._screen.cursor.y] == "> half a line")
    os.write(terminal._master, b"\x03")
    terminal.see(terminal._is_asking)
    assert "press Ctrl-C again or type /exit to leave" in terminal.type("\x03")
    os.write(terminal._master, b"\x03")
    assert terminal.process.wait(timeout=30) == 0


def test_a_conversation_is_kept_and_taken_back(models: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "chat.json", tmp_path / "notes.txt"
    other.write_text("something dear")
    said = [
        "hello", f"/save {file}", "/system be brief", f"/save {file}", f"/save {other}", "/retry", "/undo", "/undo",
        f"/load {file}", "/undo", f"/load {tmp_path / 'none'}", "/think maybe", "/nonsense", "/exit",
    ]  # fmt: skip
    outcome = chat(models, "\n".join(said))
    assert outcome.stdout.count(ALPHABET) == 2
    messages = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in messages] == ["system", "user", "assistant"]
    errors = outcome.stderr.splitlines()
    assert other.read_text() == "something dear"
    found = (
        "notes.txt exists: name another",
        "no question to remove",
        "cannot be read",
        "choose on, off or hide",
        "/nonsense is not a command",
    )
    assert len(errors) == len(found)
    assert all(part in error for part, error in zip(found, errors, strict=True))


def test_chat_says_when_the_conversation_no_longer_fits(models: Path) -> None:
    outcome = chat(models, f"{'word ' * 100}\n/clear\nshort\n/draft 99\n", "--ctx-size", 256, "--system", "be brief")
    errors = outcome.stderr.splitlines()
    assert len(errors) == 2
    assert "exceed context window of 256: /undo removes" in errors[0]
    assert "neither 'auto' nor a number from 0 to 16" in errors[1]
    assert ALPHABET in outcome.stdout


def test_chat_refuses_what_generate_refuses(models: Path) -> None:
    assert_one_line_error(llama_eagle("chat", "-m", models / "draft.gguf"), 3, "is an EAGLE-3 draft")
    assert_one_line_error(llama_eagle("chat", "-m", models / "target.gguf", "--n-draft", "x"), 2, "or auto")


@pytest.mark.parametrize("n", [0, -2])
def test_a_length_that_is_none_is_refused_before_the_model_is_sought(n: int) -> None:
    """A download would take hours."""
    for command in (("chat", "-m", "none.gguf"), ("run", "none.gguf")):
        outcome = llama_eagle(*command, "-n", n, stdin="hello\n")
        assert_one_line_error(outcome, 2, f"--n-predict={n}: give 1 or more")


def test_a_block_ends_with_the_input(models: Path) -> None:
    outcome = chat(models, '"""hello\nworld\n')
    assert (outcome.code, outcome.stdout) == (0, f"{ALPHABET}\n")


def test_a_pipe_has_the_exit_code_of_its_last_failing_line(models: Path) -> None:
    for line, code, reason in (
        ("/load /nonexistent", 3, "cannot be read"),
        ("/save ~nobody-of-this-name/x", 2, "the home folder is unknown"),
        ("/image ~nobody-of-this-name/x", 2, "the home folder is unknown"),
        ("word " * 9000, 3, "exceed context window"),
    ):
        outcome = chat(models, f"/nonsense\n{line}\nhello\n", "--ctx-size", 256)
        errors = outcome.stderr.splitlines()
        assert (outcome.code, outcome.stdout) == (code, f"{ALPHABET}\n")
        assert reason in errors[-1] and len(errors) == 2


def test_the_home_folder_of_nobody_is_refused() -> None:
    for command in (("run",), ("convert", "-o", "x.gguf")):
        outcome = llama_eagle(*command, "~nobody-of-this-name/x")
        assert_one_line_error(outcome, 2, "the home folder is unknown")


@pytest.mark.parametrize("is_answering", [True, False])
def test_ctrl_c_ends_a_chat_of_a_pipe(models: Path, is_answering: bool) -> None:
    command = ["-m", models / "target.gguf", "-d", "none", "--temp", 0, "-t", 1, "-c", 100000]
    length = [] if is_answering else ["-n", 26]
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_eagle", "chat", *map(str, [*command, *length])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout
    process.stdin.write(b"hello\n" * (2 if is_answering else 1))
    process.stdin.flush()
    process.stdout.read(26 if is_answering else 27)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1].splitlines()[1:] == [b"error: interrupted"]  # after a warning about -c
    assert process.returncode == 130


def test_prompts_are_not_in_the_file_of_the_answers(models: Path, tmp_path: Path) -> None:
    """Input from a terminal, with stdout in a file."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "llama_eagle", "chat", "-m", str(models / "target.gguf"), "-n", "26", "-t", "1"]
    with (tmp_path / "answers").open("wb") as out:
        process = subprocess.Popen([*command, "--temp", "0"], stdin=slave, stdout=out, stderr=slave)
    os.close(slave)
    shown = b""
    while not shown.endswith(b"> "):
        shown += os.read(master, 4096)
    os.write(master, b'"""hello\n')
    while not shown.endswith("… ".encode()):
        shown += os.read(master, 4096)
    os.write(master, b'you"""\n/exit\n')
    assert process.wait(timeout=60) == 0
    os.close(master)
    assert (tmp_path / "answers").read_text() == f"{ALPHABET}\n"
