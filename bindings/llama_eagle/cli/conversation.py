"""A conversation: its messages, the removal of questions, and a file to keep it in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llama_eagle.errors import InputError, UsageError
from llama_eagle.files import read_text, temporary_next_to, typed


@dataclass
class Conversation:
    """system: first message of the conversation, or None. images: parts to add to the next question.

    files: saved or loaded, which `save` may replace.
    """

    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)  # messages of user and assistant, alternating
    images: list[dict[str, Any]] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.turns]

    def ask(self, text: str) -> None:
        content = [*self.images, {"type": "text", "text": text}] if self.images else text
        self.turns.append({"role": "user", "content": content})
        self.images = []

    def answer(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def undo(self) -> str:
        """Remove the last question and its answer, and return the question. Its images are kept for the next question.

        Raises `UsageError` if there is no question.
        """
        for at in range(len(self.turns) - 1, -1, -1):
            if self.turns[at]["role"] == "user":
                *self.images, text = _parts(self.turns[at]["content"])
                del self.turns[at:]
                return str(text["text"])
        raise UsageError("there is no question to remove. Ask one first.")

    @property
    def is_unanswered(self) -> bool:
        """True if the last message is a question."""
        return bool(self.turns) and self.turns[-1]["role"] == "user"

    @property
    def n_questions(self) -> int:
        return sum(turn["role"] == "user" for turn in self.turns)

    def drop_oldest(self) -> bool:
        """Remove the oldest question and its answer; return False if only one question is left."""
        starts = [at for at, turn in enumerate(self.turns) if turn["role"] == "user"]
        if len(starts) < 2:
            return False
        del self.turns[: starts[1]]
        return True

    def clear(self) -> None:
        self.turns, self.images = [], []

    def save(self, path: Path) -> None:
        """Write the messages as JSON in OpenAI's format.

        Raises `UsageError` for a file of something else, and `InputError` if it cannot be written.
        """
        if path.is_file() and path.resolve() not in self.files:
            raise UsageError(f"{path} exists: name another file.")
        try:
            with temporary_next_to(path) as (middle,):
                middle.write_text(json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2), "utf-8")
                middle.replace(path)
            self.files.add(path.resolve())
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}). Name another file.") from None

    def load(self, path: Path) -> None:
        """Replace the messages by those of a saved conversation. Raises `InputError` for a file that holds none."""
        saved = typed(path, _read(path), {"messages": list[Any]})["messages"]
        said = [_message(path, each, f"messages.{i}") for i, each in enumerate(saved)]
        is_system = bool(said) and said[0]["role"] == "system"
        self.system = said[0]["content"] if is_system else None
        self.turns = said[1:] if is_system else said
        self.files.add(path.resolve())


def text_of(content: Any) -> str:
    """Return the text of a message, without its images."""
    return str(_parts(content)[-1]["text"])


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return the parts of a message, its text last."""
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _read(path: Path) -> Any:
    text = read_text(path, "Give a file that /save has written.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not a conversation. Give a file that /save has written.") from None


def _message(path: Path, saved: Any, where: str) -> dict[str, Any]:
    """Check a saved message: a text, or images followed by a text, as `ask` and `answer` make them."""
    roles = Literal["system", "user", "assistant"]
    message = typed(path, saved, {"role": roles, "content": str | list[Any]}, where=where, others=True)
    if isinstance(message["content"], str):
        return message
    *images, text = message["content"] or [None]
    parts = [_image(path, part, f"{where}.content.{i}") for i, part in enumerate(images)]
    last = {"type": Literal["text"], "text": str}
    return {**message, "content": [*parts, typed(path, text, last, where=f"{where}.content.{len(images)}")]}


def _image(path: Path, part: Any, where: str) -> dict[str, Any]:
    found = typed(path, part, {"type": Literal["image_url"], "image_url": Any}, where=where)
    return {**found, "image_url": typed(path, found["image_url"], {"url": str}, where=f"{where}.image_url")}
