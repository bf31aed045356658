"""Terminal input and output: pipes, rendered answers, a full context, and a model by name."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyte
import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.terminal import Terminal
from fixtures.tiny_gguf import write_pair
from llama_eagle.cli.answer import RenderedAnswer

pytestmark = pytest.mark.native

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
OPTIONS = ("--temp", 0, "-t", 1, "-n", 26)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("models"))


def rendered(monkeypatch: pytest.MonkeyPatch, pieces: list[str], *, columns: int = 40) -> pyte.Screen:
    """The screen after an answer in these pieces."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Tty()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "12")
    answer = RenderedAnswer()
    for i, piece in enumerate(pieces):
        answer.write(piece, drafted=bool(i % 2))
    answer.end()
    screen = pyte.Screen(columns, 40)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    return screen


def lines(screen: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in screen.display if line.strip()]


def test_markdown_is_rendered_and_words_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "Some **bold** words that are longer than the screen of forty columns.\nA second line, <b>tags</b>.\n\n"
        "1. one\n\n   and more\n2. two\n\n```python\ndef f(x):\n    return x\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    screen = rendered(monkeypatch, [text[i : i + 3] for i in range(0, len(text), 3)])
    shown = lines(screen)
    assert shown[:3] == [
        "Some bold words that are longer than the",
        "screen of forty columns.",
        "A second line, <b>tags</b>.",
    ]
    assert shown[3:6] == [" 1 one", "   and more", " 2 two"]
    assert shown[6:8] == ["def f(x):", "    return x"]
    assert shown[8:] == ["┌───┬───┐", "│ a │ b │", "├───┼───┤", "│ 1 │ 2 │", "└───┴───┘"]
    assert screen.buffer[0][5].bold and not screen.buffer[0][0].bold


def test_a_narrow_table_has_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["https://example.com/a-name-without-spaces", "another-word-that-does-not-fit-a-column"]
    shown = lines(rendered(monkeypatch, ["| a | b |\n|---|---|\n", f"| {words[0]} | {words[1]} |\n"]))
    columns = zip(*(line.strip("│").split("│") for line in shown[3:-1]), strict=True)
    assert ["".join(part.strip() for part in column) for column in columns] == words


def test_a_long_block_leaves_nothing_of_its_draft_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fit the screen of 12 lines while it is written."""
    text = "```\n" + "".join(f"line {i}\n" for i in range(20)) + "```\n"
    assert lines(rendered(monkeypatch, text.splitlines(keepends=True))) == [f"line {i}" for i in range(20)]


def test_a_line_separator_does_not_cut_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """U+2028 ends no line of Markdown."""
    text = "a\u2028**b\u2028c\u2028d**\n\nnext\n"
    assert not any("*" in line for line in lines(rendered(monkeypatch, list(text))))


def test_an_answer_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(rendered(monkeypatch, ["a\x1b[2Jb"])) == ["a\\x1b[2Jb"]


def test_a_pipe_is_the_prompt_or_its_context(models: Path) -> None:
    target = ("-m", models / "target.gguf", *OPTIONS, "--json")
    counts = [
        llama_eagle("generate", *target, *options, stdin=stdin).json["n_prompt"]
        for options, stdin in (((), "abc"), (("-p", "abc"), ""), (("-p", "abc"), "defg"), (("-f", "-"), "abc"))
    ]
    assert counts[0] == counts[1] == counts[3] < counts[2]
    assert_one_line_error(llama_eagle("generate", *target[:-1], stdin=""), 2, "--tokens or a pipe")


def test_run_answers_once(models: Path, tmp_path: Path) -> None:
    target = ("run", models / "target.gguf", *OPTIONS, "--no-think", "--system", "be brief")
    outcome = llama_eagle(*target, "-p", "hello", stdin="some context")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, f"{ALPHABET}\n", "")
    assert_one_line_error(llama_eagle(*target, "-p", "word " * 9000), 3, "exceed context window", "--ctx-size")
    assert_one_line_error(llama_eagle(*target, "-p", "x", "--mmproj", tmp_path / "none.gguf"), 3, "none.gguf")
    assert_one_line_error(llama_eagle(*target, "-p", ""), 2, "the prompt is empty")


def test_a_full_context_goes_on_without_the_oldest_turns(models: Path, tmp_path: Path) -> None:
    said = ["word " * 20 + str(i) for i in range(4)] + ["/context", f"/save {tmp_path / 'c.json'}", "/exit now", "no"]
    target = ("-m", models / "target.gguf", *OPTIONS, "--system", "be brief", "--ctx-size", 512)
    outcome = llama_eagle("chat", *target, stdin="\n".join(said))
    assert outcome.stdout.count(ALPHABET) == 4
    assert outcome.stderr.splitlines() == [
        "(the context is full: dropped the oldest question and its answer)"
    ] * outcome.stderr.count("\n")
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[-2]["content"].endswith("3") and len(messages) < 9
    assert " of 512 tokens (" in outcome.stdout


def test_compact_keeps_the_last_questions(models: Path, tmp_path: Path) -> None:
    said = ["a", "b", "c", "/compact 2", f"/save {tmp_path / 'c.json'}", "/compact", "/compact", "/compact 0"]
    outcome = llama_eagle("chat", "-m", models / "target.gguf", *OPTIONS, stdin="\n".join(said))
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == ["b", "c"]
    assert outcome.stdout.count("dropped the oldest question and its answer") == 2
    assert "nothing to drop" in outcome.stdout
    assert "1 or more" in outcome.stderr


def test_a_terminal_renders_unless_told_otherwise(models: Path, tmp_path: Path) -> None:
    terminal = Terminal(models, "-n", 26, XDG_STATE_HOME=str(tmp_path))
    assert ALPHABET in terminal.type("hello\r")
    assert terminal.colors(ALPHABET) == ["default"] * 26
    for command, reply in (
        ("/system be brief", "the system message is replaced"), ("/system", "there is no system message now"),
        (f"/save {tmp_path / 'c.json'}", f"saved in {tmp_path / 'c.json'}: 2 messages"),
        ("/think off", "thinking is off, if the chat template supports it"), ("/draft 3", "draft length: 3 tokens"),
        ("/draft auto", "draft length: chosen from measured rates and times"), ("/draft off", "drafts are off"),
        ("/clear", "the conversation is empty"),
    ):  # fmt: skip
        shown = "".join(terminal.type(f"{command}\r")[1:]).replace(" ", "")  # the command and its answer wrap
        assert shown.endswith(reply.replace(" ", ""))
    assert terminal.close() == 0


def test_layers_for_a_gpu_that_is_not_there_are_a_warning(models: Path) -> None:
    outcome = llama_eagle("generate", "-m", models / "target.gguf", *OPTIONS, "-ngl", 99, "-p", "abc")
    assert outcome.stdout == f"{ALPHABET}\n"
    assert outcome.stderr.count("--n-gpu-layers 99 has no effect") == len(outcome.stderr.splitlines()) <= 1


def test_a_value_of_the_file_is_not_blamed_on_an_option(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[generate]\nn-draft = "some"\n')
    command = ("generate", "-m", models / "target.gguf", "-p", "abc")
    outcome = llama_eagle(*command, LLAMA_EAGLE_CONFIG=str(file))
    assert_one_line_error(outcome, 2, f"{file}: n-draft: draft length 'some'")
    outcome = llama_eagle(*command, "--n-draft", "some", LLAMA_EAGLE_CONFIG=str(file))
    assert "config.toml" not in outcome.stderr
    outcome = llama_eagle("pairs", LLAMA_EAGLE_CONFIG=str(tmp_path / "none"))
    assert_one_line_error(outcome, 3, "none: cannot be read", "LLAMA_EAGLE_CONFIG")


def test_pairs_has_titles() -> None:
    assert llama_eagle("pairs").stdout.splitlines()[0].split() == ["target", "kind", "B", "draft"]
