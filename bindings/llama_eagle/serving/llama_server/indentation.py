"""`n_indent`: an answer ends before the first new line with less indentation.

The child notices such a line some tokens later, when a stream has shown its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = dict[str, Any]
SPACES = " \t"


class Indentation:
    """Cuts the raw events of a request, whole or streamed. n: characters of indentation that a line must have."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._lines: dict[int, int] = {}  # of each choice: indentation of a line without other characters, -1 behind it
        self._ended: set[int] = set()

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Indentation | None:
        """Return what a request's `n_indent` needs; None if it has none."""
        n = body.get("n_indent")
        return cls(n) if isinstance(n, int) and n > 0 else None

    def cut(self, event: Event) -> Event | None:
        """Return an event without what is behind the end of its choice; None if nothing is left."""
        choice, text = event.get("index", 0), event.get("content", "")
        is_last = event.get("stop", True)  # an answer that is not streamed may lack it
        has_ended = choice in self._ended
        n_kept = 0 if has_ended else self._n_kept(choice, text)
        if n_kept == len(text) and not has_ended:
            return event
        self._ended.add(choice)
        if not is_last and n_kept == 0:
            return None
        found = {**event, "content": text[:n_kept]} if "content" in event else {**event}
        if "completion_probabilities" in event:
            found["completion_probabilities"] = _within(event["completion_probabilities"], text[:n_kept])
        return {**found, "stop_type": "limit", "stopping_word": ""} if "stop_type" in event else found

    def _n_kept(self, choice: int, text: str) -> int:
        """Return the number of characters of the next text that belong to the answer."""
        indentation = self._lines.get(choice, -1)
        for i, character in enumerate(text):
            if indentation >= 0 and character not in SPACES and indentation < self._n:
                return i
            if character == "\n":
                indentation = 0
            elif indentation >= 0:
                indentation = indentation + 1 if character in SPACES else -1
        self._lines[choice] = indentation
        return len(text)


def _within(entries: list[Any], text: str) -> list[Any]:
    """Return the entries of the tokens that begin within a text."""
    size, n_bytes, kept = len(text.encode()), 0, []
    for entry in entries:
        if n_bytes >= size:
            break
        kept.append(entry)
        n_bytes += len(entry["bytes"])
    return kept
