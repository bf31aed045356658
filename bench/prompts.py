"""Prompt files: JSON lines, our own, Spec-Bench's and SPEED-Bench's, or plain messages and prompts.

    {"question_id": 1, "category": "math", "turns": ["A first question", "one about its answer"]}
    {"messages": [{"role": "user", "content": "A question"}]}          # an answer at the end is left out
    {"prompt": "A text to continue, without the chat template"}
    {"images": ["a.png"], "turns": ["What is in <__media__>?"]}        # files in this folder, one per marker

Each line may have a `category`.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle.errors import InputError
from llama_eagle.vision.encoder import MARKER

DATA = Path(__file__).parent / "data"
OWN = {path.stem: path for path in sorted(DATA.glob("*.jsonl"))}
DEFAULT_CATEGORY = "all"

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """One line of a file. Each of `turns` is answered in turn, after `messages`; or `text` is continued as it is."""

    source: str  # file:line
    category: str
    turns: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    text: str | None = None
    images: tuple[Path, ...] = ()  # for the markers <__media__> of all turns, in their order

    @property
    def given(self) -> str | list[Message]:
        """The input before the first answer: a text, or the messages of all turns with empty answers."""
        asked = [[{"role": "user", "content": turn}, {"role": "assistant", "content": ""}] for turn in self.turns]
        return self.text or [*self.messages, *(message for turn in asked for message in turn)][:-1]


def read_prompts(files: Iterable[str]) -> list[Prompt]:
    """Return the prompts of files, or of our own files by their name: `chat`, `math`, `lookup`.

    Raises InputError with file and line if any part of a file is invalid.
    """
    return [prompt for file in files for prompt in _read_file(OWN.get(file, Path(file)))]


def take(prompts: list[Prompt], limit: int) -> list[Prompt]:
    """Return the first `limit` prompts of each category (0: all)."""
    seen: Counter[str] = Counter()
    taken = []
    for prompt in prompts:
        seen[prompt.category] += 1
        if not limit or seen[prompt.category] <= limit:
            taken.append(prompt)
    return taken


def _read_file(path: Path) -> list[Prompt]:
    try:
        data = path.read_bytes()
    except OSError as error:
        own = ", ".join(OWN)
        raise InputError(f"{path}: cannot be read ({error.strerror}). Give a JSONL file, or one of {own}.") from None
    data = data.removeprefix(codecs.BOM_UTF8)
    prompts = [
        _prompt(line, f"{path}:{number}") for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()
    ]
    if not prompts:
        raise InputError(f"{path}: contains no prompts. Write one JSON object per line.")
    return prompts


def _prompt(line: bytes, source: str) -> Prompt:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 text (byte {error.start}). Convert the file to UTF-8.") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{source}: not JSON ({error.msg}, column {error.colno}). Correct the line.") from None
    if not isinstance(record, dict):
        raise InputError(f"{source}: expected a JSON object, found {type(record).__name__}. Correct the line.")
    category = record.get("category", DEFAULT_CATEGORY)
    if not _is_text(category):
        raise InputError(f"{source}: category is {category!r}, not a name. Correct or remove it.")
    images = _images(record, source)
    if "turns" in record:
        return Prompt(source, category, turns=_turns(record["turns"], source), images=images)
    if "messages" in record:
        *messages, last = _messages(record["messages"], source)
        return Prompt(source, category, turns=(last["content"],), messages=tuple(messages), images=images)
    if "prompt" in record:
        if not _is_text(record["prompt"]):
            raise InputError(f"{source}: prompt must be a non-empty string. Correct it.")
        return Prompt(source, category, text=record["prompt"], images=images)
    raise InputError(f"{source}: contains no turns, messages or prompt. Add one of them.")


def _images(record: dict[str, Any], source: str) -> tuple[Path, ...]:
    value = record.get("images", [])
    if not isinstance(value, list) or not all(_is_text(name) for name in value):
        raise InputError(f"{source}: images is not a list of file names. Correct it.")
    n_markers = json.dumps([record.get(name) for name in ("turns", "messages", "prompt")]).count(MARKER)
    if value and n_markers != len(value):
        raise InputError(f"{source}: {len(value)} images, but {n_markers} markers {MARKER}. Give one for each.")
    folder = Path(source.rpartition(":")[0]).parent
    return tuple(folder / name for name in value)


def _turns(value: Any, source: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(_is_text(turn) for turn in value):
        raise InputError(f"{source}: turns is not a list of texts. Give one or more strings that are not empty.")
    return tuple(value)


def _messages(value: Any, source: str) -> list[Message]:
    """Return the messages up to the last one of the user."""
    if not isinstance(value, list) or not all(_is_message(message) for message in value):
        raise InputError(f"{source}: messages is not a list of objects with the texts role and content. Correct it.")
    n = max((i for i, message in enumerate(value, start=1) if message["role"] == "user"), default=0)
    if n == 0:
        raise InputError(f"{source}: messages contains no message of the user. Add one.")
    return [{"role": message["role"], "content": message["content"]} for message in value[:n]]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("role")) and isinstance(value.get("content"), str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
