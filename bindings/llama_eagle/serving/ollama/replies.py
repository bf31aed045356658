"""Answers of llama-server as lines of ollama's API.

A client loses what its parser does not expect. Each line has a role and a text, the last line no text of the answer,
all calls are in one line, unknown numbers are absent, and a line that says nothing is not sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

Body = dict[str, Any]


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
    """Return what a line of /api/generate says."""
    return {"response": text} | ({"thinking": thinking} if thinking else {})


@dataclass
class Reply:
    """Turns the events of an answer into lines. model: the name that the client uses. say: `chat_line` or another."""

    model: str
    say: Callable[..., Body]
    begun: float = field(default_factory=time.monotonic)
    reason: str = "stop"
    calls: list[Body] = field(default_factory=list)
    usage: Body = field(default_factory=dict)
    timings: Body = field(default_factory=dict)

    def take(self, event: Body) -> Iterator[Body]:
        """Yield the lines of an event: a chunk of a chat or of a completion."""
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings
        for choice in event.get("choices", []):
            delta = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            for call in delta.get("tool_calls") or []:
                self._add_call(call)
            if choice.get("finish_reason") == "length":
                self.reason = "length"
            probabilities = (choice.get("logprobs") or {}).get("content") or []
            for said in ({"thinking": delta.get("reasoning_content")}, {"text": delta.get("content")}):
                if any(said.values()):
                    yield self._line(self.say(**said), probabilities)
                    probabilities = []

    def end(self) -> Iterator[Body]:
        """Yield the calls, and the last line."""
        if self.calls:
            yield self._line(self.say(calls=[_call(call) for call in self.calls]))
        yield {**self._line(self.say()), **ended(self.reason, self.begun), **self._numbers()}

    def whole(self, event: Body) -> Body:
        """Return an answer that is not streamed as one line."""
        lines = list(self.take(event))
        choice = (event.get("choices") or [{}])[0]
        message = choice.get("message") or {"content": choice.get("text")}
        said = self.say(
            message.get("content") or "", message.get("reasoning_content") or "", [_call(each) for each in self.calls]
        )
        *_, last = self.end()
        return {**last, **said} | {key: line[key] for line in lines for key in ("logprobs",) if key in line}

    def _add_call(self, call: Body) -> None:
        function = call.get("function", {})
        index = call.get("index", len(self.calls))
        while len(self.calls) <= index:
            self.calls.append({"id": "", "name": "", "arguments": ""})
        self.calls[index]["id"] += call.get("id") or ""
        for key in ("name", "arguments"):
            self.calls[index][key] += function.get(key) or ""

    def _line(self, said: Body, probabilities: list[Body] | None = None) -> Body:
        shown = {"logprobs": [_logprob(each) for each in probabilities]} if probabilities else {}
        return {"model": self.model, "created_at": now(), **said, **shown, "done": False}

    def _numbers(self) -> Body:
        """Return counts of tokens, and times in nanoseconds."""
        found = {
            "prompt_eval_count": self.usage.get("prompt_tokens"),
            "eval_count": self.usage.get("completion_tokens"),
            "prompt_eval_duration": _nanoseconds(self.timings.get("prompt_ms")),
            "eval_duration": _nanoseconds(self.timings.get("predicted_ms")),
        }
        return {key: value for key, value in found.items() if value is not None}


def ended(reason: str, begun: float) -> Body:
    """Return the end of an answer. begun: seconds of `time.monotonic`. The model was loaded when `serve` started."""
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": int((time.monotonic() - begun) * 1e9),
        "load_duration": 0,
    }


def _nanoseconds(ms: float | None) -> int | None:
    return None if ms is None else int(ms * 1e6)


def _call(call: Body) -> Body:
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except ValueError:  # the answer ended within the call
        arguments = {}
    return {"id": call["id"], "function": {"name": call["name"], "arguments": arguments}}


def _logprob(entry: Body) -> Body:
    found: Body = {key: entry[key] for key in ("token", "logprob", "bytes") if key in entry}
    if entry.get("top_logprobs"):
        found["top_logprobs"] = [_logprob(each) for each in entry["top_logprobs"]]
    return found
