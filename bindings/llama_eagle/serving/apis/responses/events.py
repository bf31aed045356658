"""Events of OpenAI's Responses API, and the response that they build. Each item ends before the next begins."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.responses.tools import Tool
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.requests.fields import Body, bare_id
from llama_eagle.sessions.chats.calls import completed, is_json

PARTS = {"reasoning": "reasoning_text", "message": "output_text"}  # of an item, by its type
PREFIXES = {"reasoning": "rs_", "message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_"}


@dataclass
class Item:
    """An item of the answer. kind: its type in the API. call, tool: of a call. text: what is written so far."""

    kind: str
    id: str
    index: int
    call: CallPiece | None = None
    tool: Tool | None = None
    text: str = ""

    def part(self) -> Body:
        """Return the part of a text or of reasoning."""
        part = {"type": PARTS[self.kind], "text": self.text}
        return part | ({"annotations": [], "logprobs": []} if self.kind == "message" else {})

    def input(self) -> str:
        """Return the input of a custom tool, which the model writes as an argument."""
        text = completed(self.text).get("input")
        return text if isinstance(text, str) else ""

    def output(self, status: str, *, has_part: bool) -> Body:
        """Return the item as the response has it."""
        found: Body = {"id": self.id, "type": self.kind, "status": status}
        if self.call and self.tool:
            found |= {"call_id": f"call_{bare_id(self.call.id)}", "name": self.tool.name}
            found |= {"input": self.input()} if self.tool.is_custom else {"arguments": self.text}
            return found | ({"namespace": self.tool.namespace} if self.tool.namespace else {})
        found["content"] = [self.part()] if has_part else []
        return found | ({"role": "assistant"} if self.kind == "message" else {"summary": [], "encrypted_content": ""})


class ResponseEvents:
    """Turns the pieces of an answer into events. response: what they have built.

    fields: those that a response repeats. tools: of the request, by the names that the model knows. keep: receives each
    item that has ended.
    """

    def __init__(
        self, fields: Body, tools: Mapping[str, Tool], model: str, keep: Callable[[Body], object] = bool
    ) -> None:
        self._id = secrets.token_hex(16)
        self.response: Body = {
            **fields, "id": f"resp_{self._id}", "object": "response", "created_at": int(time.time()), "model": model,
            "status": "in_progress", "output": [], "usage": None,
        }  # fmt: skip
        self._tools, self._keep = tools, keep
        self._item: Item | None = None
        self._n_items = self._n_events = 0

    def take(self, piece: Piece) -> list[Body]:
        """Return the events of a piece."""
        events = [] if self._n_events else [self._whole("created"), self._whole("in_progress")]
        if piece.progress and not events:
            events.append(self._whole("in_progress"))
        events += self._write("reasoning", piece.reasoning)
        events += self._write("message", piece.content)
        for call in piece.calls:
            events += self._call(call)
        if piece.end:
            events += self._finish(piece, piece.end)
        if events and piece.timings:
            events[-1]["timings"] = piece.timings
        if events and piece.progress:
            events[-1]["prompt_progress"] = piece.progress
        return events

    def fail(self, refusal: Refusal) -> list[Body]:
        """Return the last events of an answer that fails."""
        events = [] if self._n_events else [self._whole("created"), self._whole("in_progress")]
        code = refusal.code or ("server_error" if refusal.status >= 500 else None)
        events.append(self._event("error", code=code, message=str(refusal), param=None))
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": str(refusal)}}
        return [*events, self._whole("failed")]

    def _finish(self, piece: Piece, end: End) -> Iterator[Body]:
        is_whole = end.reason != "length"
        yield from self._end_item(is_whole)
        if is_whole:
            self.response |= {"status": "completed", "completed_at": int(time.time())}
        else:
            self.response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        self.response["usage"] = {
            "input_tokens": piece.n_prompt,
            "input_tokens_details": {"cached_tokens": piece.n_cached, "cache_write_tokens": 0},
            "output_tokens": end.n_tokens,
            "output_tokens_details": {"reasoning_tokens": end.n_reasoning},
            "total_tokens": piece.n_prompt + end.n_tokens,
        }
        event = self._whole("completed" if is_whole else "incomplete")
        yield event | ({"timings": end.timings} if end.timings else {})

    def _call(self, call: CallPiece) -> Iterator[Body]:
        item = self._item
        if item is None or item.call is None or item.call.index != call.index:
            tool = self._tools.get(call.name) or Tool(call.name)
            yield from self._begin("custom_tool_call" if tool.is_custom else "function_call", call, tool)
        yield from self._extend(call.arguments)

    def _write(self, kind: str, text: str) -> Iterator[Body]:
        if text and (self._item is None or self._item.kind != kind):
            yield from self._begin(kind)
        yield from self._extend(text)

    def _begin(self, kind: str, call: CallPiece | None = None, tool: Tool | None = None) -> Iterator[Body]:
        yield from self._end_item()
        index, self._n_items = self._n_items, self._n_items + 1
        item = self._item = Item(kind, f"{PREFIXES[kind]}{self._id}_{index}", index, call, tool)
        yield self._event(
            "response.output_item.added", output_index=index, item=item.output("in_progress", has_part=False)
        )
        if kind in PARTS:
            yield self._of_part("response.content_part.added", item, part=item.part())

    def _extend(self, text: str) -> Iterator[Body]:
        item = self._item
        if not text or item is None:
            return
        item.text += text
        if item.kind == "function_call":
            yield self._of("response.function_call_arguments.delta", item, delta=text)
        elif item.kind in PARTS:  # the input of a custom tool is known at its end
            yield self._of_text(f"response.{PARTS[item.kind]}.delta", item, delta=text)

    def _end_item(self, is_whole: bool = True) -> Iterator[Body]:
        """Yield the events that end the current item. is_whole: no limit has cut it."""
        item, self._item = self._item, None
        if item is None:
            return
        if item.kind == "custom_tool_call":
            yield self._of("response.custom_tool_call_input.delta", item, delta=item.input())
            yield self._of("response.custom_tool_call_input.done", item, input=item.input())
        elif item.tool:
            yield self._of("response.function_call_arguments.done", item, name=item.tool.name, arguments=item.text)
        else:
            yield self._of_text(f"response.{PARTS[item.kind]}.done", item, text=item.text)
            yield self._of_part("response.content_part.done", item, part=item.part())
        is_cut = item.call is not None and not is_json(item.text)  # by a stop text
        output = item.output("completed" if is_whole and not is_cut else "incomplete", has_part=True)
        self.response["output"].append(output)
        self._keep(output)
        yield self._event("response.output_item.done", output_index=item.index, item=output)

    def _of_text(self, name: str, item: Item, /, **data: Any) -> Body:
        return self._of_part(name, item, **data, **({"logprobs": []} if item.kind == "message" else {}))

    def _of_part(self, name: str, item: Item, /, **data: Any) -> Body:
        return self._of(name, item, content_index=0, **data)

    def _of(self, name: str, item: Item, /, **data: Any) -> Body:
        return self._event(name, output_index=item.index, item_id=item.id, **data)

    def _whole(self, status: str) -> Body:
        """Return an event with the response as it is."""
        return self._event(f"response.{status}", response={**self.response, "output": [*self.response["output"]]})

    def _event(self, name: str, /, **data: Any) -> Body:
        number, self._n_events = self._n_events, self._n_events + 1
        return {"type": name, "sequence_number": number, **data}
