"""Ctrl-C on a terminal at any moment of a chat: it ends an answer or a command, never the chat."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_eagle.cli import lines
from llama_eagle.cli.chat_loop import Chat
from llama_eagle.cli.conversation import Conversation


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Model:
    """A model that answers "abc" and gets Ctrl-C at the moments in `at`."""

    last_token_was_drafted = False
    speculative_totals = None
    n_tokens = 0

    def __init__(self, at: set[str]) -> None:
        self._at = at

    @property
    def speculative_stats(self) -> str:
        self._reach("/stats")
        return "stats"

    def n_ctx(self) -> int:
        self._reach("/context")
        return 512

    def tokenize(self, text: bytes, add_bos: bool) -> list[int]:
        self._reach("before the answer")
        return list(text)

    def create_chat_completion(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        try:
            for letter in "abc":
                yield {"choices": [{"delta": {"content": letter}, "finish_reason": "stop"}]}
                self._reach(f"after {letter}")
        finally:
            self._reach("at the end")

    def _reach(self, moment: str) -> None:
        if moment in self._at:
            self._at.remove(moment)
            signal.raise_signal(signal.SIGINT)


def run(monkeypatch: pytest.MonkeyPatch, said: list[str], at: set[str]) -> Conversation:
    """Chat with a model and return the conversation, from which all lines of `said` must have been read."""
    from llama_eagle.generation import stats

    left = iter(said)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(lines, "make_reader", lambda *_: lambda: next(left, None))
    monkeypatch.setattr(stats, "unaccepted", lambda _: None)
    chat = Chat(Conversation(), {"max_tokens": None}, plain=True)
    assert chat.run(Model(at)) == 0
    assert next(left, None) is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return chat.conversation


@pytest.mark.parametrize(
    "at, answer",
    [
        ({"after b"}, "ab"),
        ({"after b", "at the end"}, "ab"),
        ({"before the answer"}, ""),
        ({"at the end"}, "abc"),
        (set(), "abc"),
    ],
)
def test_an_answer_so_far_is_kept(monkeypatch: pytest.MonkeyPatch, at: set[str], answer: str) -> None:
    turns = run(monkeypatch, ["one", "two"], at).turns
    assert [turn["content"] for turn in turns] == ["one", answer, "two", "abc"]


@pytest.mark.parametrize("command", ["/stats", "/context"])
def test_a_command_ends(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    assert [turn["content"] for turn in run(monkeypatch, [command, "two"], {command}).turns] == ["two", "abc"]


def test_while_an_interruption_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C has no effect then: it would end the chat."""
    written: list[str] = []

    def note(self: Chat, reason: str) -> None:
        written.append(reason)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Chat, "_note_end", note)
        turns = run(patch, ["one"], {"after a"}).turns
    assert ([turn["content"] for turn in turns], written) == (["one", "a"], ["interrupted"])


def test_while_the_display_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C waits until a letter is written completely."""
    out = io.StringIO()
    whole = io.StringIO.write
    count = 0

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            nonlocal count
            count += 1
            if count == 2:
                signal.raise_signal(signal.SIGINT)
            return whole(out, text)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Screen())
        turns = run(patch, ["one"], set()).turns
    assert [turn["content"] for turn in turns] == ["one", "ab"]
    assert out.getvalue() == "ab\n"


def test_without_a_home_folder_the_history_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs
    from prompt_toolkit.history import InMemoryHistory

    def unknown(_: str) -> None:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(platformdirs, "user_state_path", unknown)
    assert isinstance(lines._history(), InMemoryHistory)


@pytest.mark.parametrize("system", ["RULES", None])
def test_a_saved_conversation_comes_back(system: str | None, tmp_path: Path) -> None:
    said, found = Conversation(system, [{"role": "user", "content": "Q"}]), Conversation("OTHER")
    said.save(path := tmp_path / "chat.json")
    assert [message["role"] for message in json.loads(path.read_text())["messages"]] == ["system", "user"][not system :]
    found.load(path)
    assert found == said
