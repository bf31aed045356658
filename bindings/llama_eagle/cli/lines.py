"""Input of messages: with editing, history and pasted blocks on a terminal, otherwise line by line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from llama_eagle import console
from llama_eagle.files import BYTE_ORDER_MARK

BLOCK = '"""'


def make_reader(commands: Sequence[str]) -> Callable[[], str | None]:
    """Return a function that reads a message, or None at the end of the input. Ctrl-C raises KeyboardInterrupt.

    commands: completed with the tab key.
    """
    return _Typed(commands) if sys.stdin.isatty() and sys.stdout.isatty() else read_lines


def read_lines() -> str | None:
    """Read one line, or the lines of a block between triple quotes. The end of the input ends a block, too."""
    try:
        line = _read_line("> ")
    except EOFError:
        return None
    if not line.startswith(BLOCK):
        return line
    lines = [line[len(BLOCK) :]]
    try:
        while not lines[-1].endswith(BLOCK):
            lines.append(_read_line("… "))
    except EOFError:
        return "\n".join(lines)
    return "\n".join(lines)[: -len(BLOCK)]


def _read_line(prompt: str) -> str:
    """Read a line from stdin; if it is a terminal, ask on stderr, because stdout may be a file of answers."""
    if sys.stdin.isatty() and console.on_terminal():
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return input()
    return input().removeprefix(BYTE_ORDER_MARK)


class _Typed:
    """Terminal input: pasted text stays one message, Alt-Enter begins a new line, Enter sends."""

    def __init__(self, commands: Sequence[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        keys.add("enter")(_send)
        keys.add("c-c")(_clear)
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        completer = WordCompleter(list(commands), sentence=True)
        self._session: Any = PromptSession(
            "> ",
            history=_history(),
            key_bindings=keys,
            multiline=True,
            completer=completer,
            complete_while_typing=False,
            prompt_continuation=lambda width, number, wrapped: "… ".rjust(width),
        )

    def __call__(self) -> str | None:
        try:
            text = str(self._session.prompt())
        except EOFError:
            return None
        return text[len(BLOCK) : -len(BLOCK)] if _is_block(text) else text


def _send(event: Any) -> None:
    """Send the message; in an open block, begin a new line instead."""
    text = event.current_buffer.text
    if text.startswith(BLOCK) and not _is_block(text):
        event.current_buffer.insert_text("\n")
    else:
        event.current_buffer.validate_and_handle()


def _clear(event: Any) -> None:
    """Clear the line; raise KeyboardInterrupt if it is empty."""
    if event.current_buffer.text:
        event.current_buffer.reset()
    else:
        event.app.exit(exception=KeyboardInterrupt)


def _is_block(text: str) -> bool:
    return len(text) >= 2 * len(BLOCK) and text.startswith(BLOCK) and text.endswith(BLOCK)


def _history() -> Any:
    """Return the messages of all chats, in the user's state folder, or in memory if that is unknown or read-only."""
    from platformdirs import user_state_path
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path = user_state_path("llama-eagle") / "chat-history"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return FileHistory(str(path))
