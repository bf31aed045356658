"""The steps of the child as pieces of an answer: thoughts, text and calls."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_eagle.serving.chats.prepare import Chat
from llama_eagle.serving.chats.reasoning import count_reasoning
from llama_eagle.serving.ids import new_id
from llama_eagle.serving.llama_server.served import Served
from llama_eagle.serving.llama_server.slots import Step, Steps
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.requests.chat_request import ChatRequest
from llama_eagle.sessions.chat import Reply
from llama_eagle.sessions.chats.calls import is_json

LONG_REPLY = 2000  # tokens of an answer whose whole text is parsed in a thread


class Answer:
    """The pieces of an answer, as they arrive.

    The caller closes it (`aclose`); the child then stops. A `Refusal` behind the first piece ends a stream.
    """

    def __init__(self, model: Served, chat: Chat, steps: Steps, answer_id: str) -> None:
        self.id = answer_id
        self.model = model
        self.request = chat.request
        self._steps = steps
        replies: list[Any] = chat.replies or [None] * chat.request.settings["n_cmpl"]
        self._choices = [_Choice(chat.request, reply) for reply in replies]

    async def read(self) -> list[Piece] | None:
        """Return the pieces that have arrived; None at the end. An empty list is a sign of life of the child."""
        while steps := await self._steps.read():
            is_long = any(step.is_last and step.n_tokens > LONG_REPLY for step in steps)
            pieces = await asyncio.to_thread(self._pieces, steps) if is_long else self._pieces(steps)
            if pieces:
                return pieces
        return None if steps is None else []

    def _pieces(self, steps: list[Step]) -> list[Piece]:
        return [piece for step in steps for piece in self._choices[step.choice].pieces(step)]

    async def aclose(self) -> None:
        self._steps.close()


class _Choice:
    """One choice of an answer, whose text is parsed piece by piece in a stream, and else at its end.

    ends: length of the text after each token.
    """

    def __init__(self, request: ChatRequest, reply: Reply | None) -> None:
        self._request = request
        self._reply = reply
        self._text = self._unread = ""
        self._reasoning = ""
        self._ends: list[int] = []
        self._n_cached = 0
        self._calls: list[str] = []  # arguments so far

    def pieces(self, step: Step) -> list[Piece]:
        """Return what a step adds; nothing for the progress of a prompt that the request does not ask for."""
        if step.n_cached is not None:
            self._n_cached = step.n_cached
        if step.progress is not None:
            return [self._piece(step, {})] if self._request.settings.get("return_progress") else []
        self._text += step.text
        self._ends += [len(self._text)] * (step.n_tokens - len(self._ends))
        self._unread += step.text
        is_due = step.is_last or (step.text and self._request.has_stream)
        *begun, last = self._parsed(is_last=step.is_last) if is_due else [{}]
        return [
            *(self._piece(step._replace(stop="", probabilities=None), each) for each in begun),
            self._piece(step, last),
        ]

    def _parsed(self, *, is_last: bool) -> list[dict[str, Any]]:
        """Return what is new; what follows calls separately."""
        text, self._unread = self._unread, ""
        delta: dict[str, Any] = {"content": text} if self._reply is None else self._reply.add(text, is_last=is_last)
        deltas = [delta, delta["rest"]] if "rest" in delta else [delta]
        self._reasoning += "".join(each.get("reasoning_content", "") for each in deltas)
        return deltas

    def _piece(self, step: Step, delta: dict[str, Any]) -> Piece:
        calls = tuple(map(self._call, delta.get("tool_calls", ())))
        return Piece(
            choice=step.choice,
            reasoning=delta.get("reasoning_content", ""),
            content=delta.get("content", ""),
            calls=calls,
            logprobs=step.probabilities and self._scores(step.probabilities),
            n_prompt=step.n_prompt,
            n_cached=self._n_cached,
            progress=step.progress,
            timings=step.timings,
            end=self._end(step) if step.is_last else None,
            raw=step.event if self._request.settings.get("verbose") else None,
        )

    def _call(self, piece: dict[str, Any]) -> CallPiece:
        index, arguments = piece["index"], piece.get("arguments", "")
        if is_new := index == len(self._calls):
            self._calls.append("")
        self._calls[index] += arguments
        call_id = (piece.get("id") or new_id("call_")) if is_new else ""
        return CallPiece(index, arguments, call_id, piece.get("name", "") if is_new else "")

    def _scores(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the entries of log-probabilities with as many alternatives as the request asks for."""
        n = self._request.n_alternatives
        kept = ("top_logprobs", "top_probs")
        return [{key: each[:n] if key in kept else each for key, each in entry.items()} for entry in entries]

    def _end(self, step: Step) -> End:
        has_calls = bool(self._calls) and all(map(is_json, self._calls))
        reason = "length" if step.stop == "limit" else "tool_calls" if has_calls else "stop"
        n_reasoning = count_reasoning(self._text, self._reasoning, self._ends)
        return End(reason, step.stop_text or None, step.n_tokens, n_reasoning, step.timings or {})
