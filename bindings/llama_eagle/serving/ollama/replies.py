"""Answers as lines of ollama's API.

A client loses what its parser does not expect. Each line has a role and a text, the last line no text of the answer,
all calls are in one line, unknown numbers are absent, and a line that says nothing is not sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from llama_eagle.serving.pieces import Piece
from llama_eagle.serving.requests.fields import arguments_of

Body = dict[str, Any]
LENGTH = "length"


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def chat_line(text: str = "", thinking: str = "", calls: list[Body] | None = None) -> Body:
    """Return what a line of /api/chat says."""
    message: Body = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def generate_line(text: str = "", thinking: str = "", calls: list[Body] | None = None) -> Body:
    """Return what a line of /api/generate says. ollama-ai-provider-v2 reads no line without a context."""
    return {"response": text, "context": []} | ({"thinking": thinking} if thinking else {})


@dataclass
class Reply:
    """Turns the pieces of an answer into lines. model: the name that the client uses. say: `chat_line` or another."""

    model: str
    say: Callable[..., Body]
    begun: float = field(default_factory=time.monotonic)
    text: str = ""
    thinking: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)  # number -> id, name, arguments
    probabilities: list[Body] = field(default_factory=list)  # of tokens that no line has yet
    numbers: Body = field(default_factory=dict)

    def take(self, piece: Piece) -> Iterator[Body]:
        """Yield the lines of a piece."""
        for call in piece.calls:
            parts = self.calls.setdefault(call.index, ["", "", ""])
            self.calls[call.index] = [a + b for a, b in zip(parts, (call.id, call.name, call.arguments), strict=True)]
        self.text += piece.content
        self.thinking += piece.reasoning
        self.probabilities += map(_logprob, piece.logprobs or [])
        if piece.reasoning:
            yield self._line(self.say(thinking=piece.reasoning))
        if piece.content:
            yield self._line(self.say(piece.content))
        if piece.end is not None:
            self.numbers = {**ended(LENGTH if piece.end.reason == LENGTH else "stop", self.begun), **_counts(piece)}

    def end(self) -> Iterator[Body]:
        """Yield the calls, and the last line."""
        if self.calls:
            yield self._line(self.say(calls=self._whole_calls()))
        yield {**self._line(self.say()), **self.numbers}

    def whole(self, pieces: Iterable[Piece]) -> Body:
        """Return the whole answer as one line."""
        lines = [line for piece in pieces for line in self.take(piece)]
        self.probabilities = [each for line in lines for each in line.get("logprobs", ())] + self.probabilities
        return {**self._line(self.say(self.text, self.thinking, self._whole_calls())), **self.numbers}

    def _whole_calls(self) -> list[Body]:
        return [
            {"id": identity, "function": {"name": name, "arguments": arguments_of(text)}}
            for _, (identity, name, text) in sorted(self.calls.items())
        ]

    def _line(self, said: Body) -> Body:
        shown = {"logprobs": self.probabilities} if self.probabilities else {}
        self.probabilities = []
        return {"model": self.model, "created_at": now(), **said, **shown, "done": False}


def ended(reason: str, begun: float) -> Body:
    """Return the end of an answer. begun: seconds of `time.monotonic`. The model was loaded when `serve` started."""
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": int((time.monotonic() - begun) * 1e9),
        "load_duration": 0,
    }


def _counts(piece: Piece) -> Body:
    """Return counts of tokens, and times in nanoseconds."""
    timings = piece.end.timings if piece.end else {}
    times = {"prompt_eval_duration": timings.get("prompt_ms"), "eval_duration": timings.get("predicted_ms")}
    counts = {"prompt_eval_count": piece.n_prompt, "eval_count": piece.end.n_tokens if piece.end else 0}
    return counts | {key: int(ms * 1e6) for key, ms in times.items() if ms is not None}


def _logprob(entry: Body) -> Body:
    found: Body = {key: entry[key] for key in ("token", "logprob", "bytes") if key in entry}
    if entry.get("top_logprobs"):
        found["top_logprobs"] = [_logprob(each) for each in entry["top_logprobs"]]
    return found
