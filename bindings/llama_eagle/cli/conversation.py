"""A conversation: its messages, what can be taken back, and a file to keep it in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_eagle.errors import InputError, UsageError
from llama_eagle.files import temporary_beside


@dataclass
class Conversation:
    """system: what every conversation begins with; None: nothing."""

    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)  # from the user and the assistant in turn

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.turns]

    def ask(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def undo(self) -> str:
        """Take the last question and its answer back; the question. Raises `UsageError` when there is none."""
        for at in range(len(self.turns) - 1, -1, -1):
            if self.turns[at]["role"] == "user":
                text = str(self.turns[at]["content"])
                del self.turns[at:]
                return text
        raise UsageError("there is nothing to take back: nothing has been said yet.")

    def clear(self) -> None:
        self.turns = []

    def save(self, path: Path) -> None:
        """As JSON: OpenAI's messages. Raises `InputError` when the file cannot be written."""
        try:
            with temporary_beside(path) as (middle,):
                middle.write_text(json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2), "utf-8")
                middle.replace(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None

    def load(self, path: Path) -> None:
        """Go on with a saved one. Raises `InputError` for a file that holds none."""
        try:
            messages = json.loads(path.read_text("utf-8"))["messages"]
            said = [{"role": str(each["role"]), "content": str(each["content"])} for each in messages]
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}). Give a file that /save has written."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: not a conversation. Give a file that /save has written.") from None
        is_system = bool(said) and said[0]["role"] == "system"
        self.system = said[0]["content"] if is_system else None
        self.turns = said[1:] if is_system else said
