"""Answers of Anthropic's Messages API: content blocks, and the events of a stream in the order of its reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_eagle.serving.ids import new_id
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.requests.fields import arguments_of, bare_id

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
DELTAS = {  # by type of a block
    "text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # fmt: skip

Event = dict[str, Any]


class Message:
    """An answer whose blocks follow one another: each ends before the next begins. model: its name."""

    def __init__(self, model: str) -> None:
        self._message: dict[str, Any] = {
            "id": new_id("msg_"), "type": "message", "role": "assistant", "content": [],
            "model": model, "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip
        self._block: dict[str, Any] = {}  # the open one; {} if there is none
        self._text = ""  # of the open block
        self._call = -1  # number of the call that is open
        self._has_begun = False

    @property
    def whole(self) -> dict[str, Any]:
        """The message so far."""
        return self._message

    def add(self, piece: Piece) -> list[Event]:
        """Return the events of a piece. That of a prompt's progress has none."""
        return [] if piece.progress is not None else [*self._add(piece)]

    def _add(self, piece: Piece) -> Iterator[Event]:
        if not self._has_begun:
            self._has_begun = True
            self._message["usage"] = _usage(piece, 0)
            yield {"type": "message_start", "message": {**self._message, "content": []}}
        yield from self._write("thinking", piece.reasoning)
        yield from self._write("text", piece.content)
        for call in piece.calls:
            yield from self._write_call(call)
        if piece.end is not None:
            yield from self._end_message(piece, piece.end)

    def _write(self, kind: str, text: str) -> Iterator[Event]:
        if not text:
            return
        if self._block.get("type") != kind:
            yield from self._begin({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        yield from self._extend(text)

    def _write_call(self, call: CallPiece) -> Iterator[Event]:
        if self._block.get("type") != "tool_use" or self._call != call.index:
            self._call = call.index
            identity = f"toolu_{bare_id(call.id)}"
            yield from self._begin({"type": "tool_use", "id": identity, "name": call.name, "input": {}})
        if call.arguments:
            yield from self._extend(call.arguments)

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._end_block()
        self._block, self._text = block, ""
        yield self._event("content_block_start", content_block=dict(block))

    def _extend(self, text: str) -> Iterator[Event]:
        self._text += text
        kind, key = DELTAS[self._block["type"]]
        yield self._event("content_block_delta", delta={"type": kind, key: text})

    def _end_block(self) -> Iterator[Event]:
        if not self._block:
            return
        kind = self._block["type"]
        if kind == "thinking":  # clients require a signature; nobody checks this one
            yield self._event("content_block_delta", delta={"type": "signature_delta", "signature": ""})
        yield self._event("content_block_stop")
        value = {"input": arguments_of(self._text)} if kind == "tool_use" else {kind: self._text}
        self._message["content"].append(self._block | value)
        self._block = {}

    def _end_message(self, piece: Piece, end: End) -> Iterator[Event]:
        yield from self._end_block()
        usual = "end_turn" if end.stop_text is None else "stop_sequence"
        delta = {"stop_reason": STOP_REASONS.get(end.reason, usual), "stop_sequence": end.stop_text}
        self._message |= delta | {"usage": _usage(piece, end.n_tokens)}
        yield {"type": "message_delta", "delta": delta, "usage": self._message["usage"]}
        yield {"type": "message_stop"}

    def _event(self, kind: str, **data: Any) -> Event:
        return {"type": kind, "index": len(self._message["content"]), **data}


def _usage(piece: Piece, n_generated: int) -> dict[str, int]:
    return {
        "input_tokens": piece.n_prompt - piece.n_cached, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": piece.n_cached, "output_tokens": n_generated,
    }  # fmt: skip
