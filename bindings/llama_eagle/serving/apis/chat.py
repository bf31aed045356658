"""OpenAI's Chat Completions API, streamed and whole, and llama-server's paths next to it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from llama_eagle.serving import chats
from llama_eagle.serving.chats import Answer
from llama_eagle.serving.events import JSONAnswer, PieceStream, all_pieces, compact, failed
from llama_eagle.serving.pieces import CallPiece, Piece
from llama_eagle.serving.requests.json_body import read_json_body

Object = dict[str, Any]
FIRST, DONE = '{"role":"assistant","content":%s}', b"data: [DONE]\n\n"


def routes(prefix: str = "") -> list[BaseRoute]:
    """Return the routes. prefix: that of all paths."""
    endpoints = {"": complete, "/input_tokens": count_tokens}
    names = [(f"{version}/chat/completions{end}", each) for version in ("/v1", "") for end, each in endpoints.items()]
    names.append(("/apply-template", apply_template))
    return [Route(f"{prefix}{path}", endpoint, methods=["POST"]) for path, endpoint in names]


async def complete(request: Request) -> Any:
    """Answer a chat."""
    answer = await chats.open_chat(request.app, read_json_body(await request.body()))
    if answer.request.has_stream:
        chunks = Chunks(answer)
        return PieceStream(answer, chunks.written, failed, chunks.finished)
    return JSONAnswer(whole(answer, await all_pieces(answer)))


async def apply_template(request: Request) -> Response:
    """Answer with the prompt of a chat."""
    return JSONAnswer({"prompt": await chats.prompt(request.app, read_json_body(await request.body()))})


async def count_tokens(request: Request) -> Response:
    """Answer with the number of tokens of a chat's prompt."""
    n = await chats.count_tokens(request.app, read_json_body(await request.body()))
    return JSONAnswer({"input_tokens": n, "object": "response.input_tokens"})


class Chunks:
    """The events of a stream."""

    def __init__(self, answer: Answer) -> None:
        self._request = answer.request
        self._usage = Usage()
        about = {"created": int(time.time()), "id": answer.id, "model": answer.model.name}
        about |= {"system_fingerprint": answer.model.build, "object": "chat.completion.chunk"}
        self._tail = compact(about).decode()[1:-1]
        self._begun: set[int] = set()

    def written(self, piece: Piece) -> bytes:
        """Return the events of a piece."""
        deltas = [*self._deltas(piece)]
        if piece.logprobs and not deltas:
            deltas = ["{}"]  # the parser holds back the text
        more = self._more(piece)
        if piece.end is not None:
            return self._ended(piece, deltas, more).encode()
        last = len(deltas) - 1
        chunks = (
            self._chunk(piece.choice, delta, more if i == last else "", piece.logprobs if i == last else None)
            for i, delta in enumerate(deltas)
        )
        return "".join(chunks).encode()

    def _deltas(self, piece: Piece) -> Iterator[str]:
        is_begun = piece.choice in self._begun
        if piece.progress is not None or not (is_begun or piece.end is not None):
            yield FIRST % ('""' if piece.content and not piece.reasoning else "null")
        if piece.progress is None:
            self._begun.add(piece.choice)
        if piece.reasoning:
            yield f'{{"reasoning_content":{_text(piece.reasoning)}}}'
        if piece.content:
            yield f'{{"content":{_text(piece.content)}}}'
        for call in piece.calls:
            yield compact(self._call(call)).decode()

    def _call(self, call: CallPiece) -> Object:
        function = {"name": call.name} if call.name else {}
        function |= {"arguments": call.arguments} if call.arguments else {}
        if self._request.has_functions:
            return {"function_call": function}
        head = {"index": call.index} | ({"id": call.id, "type": "function"} if call.id else {})
        return {"tool_calls": [{**head, "function": function}]}

    def _more(self, piece: Piece) -> str:
        """Return what follows the choices in the last chunk of a piece."""
        found = {"timings": piece.timings, "prompt_progress": piece.progress, "__verbose": piece.raw}
        found = {key: value for key, value in found.items() if value is not None}
        return "," + compact(found).decode()[1:-1] if found else ""

    def _ended(self, piece: Piece, deltas: list[str], more: str) -> str:
        self._usage.add(piece)
        if self._request.has_usage:
            more = ""
        chunks = [self._chunk(piece.choice, delta) for delta in deltas]
        reason = f'"{_reason(piece, self._request.has_functions)}"'
        return "".join([*chunks, self._chunk(piece.choice, "{}", more, piece.logprobs, reason)])

    def _chunk(self, choice: int, delta: str, more: str = "", logprobs: Any = None, reason: str = "null") -> str:
        scores = f',"logprobs":{{"content":{compact(logprobs).decode()}}}' if logprobs else ""
        return (
            f'data: {{"choices":[{{"finish_reason":{reason},"index":{choice},"delta":{delta}{scores}}}],'
            f"{self._tail}{more}}}\n\n"
        )

    def finished(self) -> bytes:
        """Return the end of the stream."""
        if not self._request.has_usage:
            return DONE
        more = compact({"timings": self._usage.timings, "usage": self._usage.shown()}).decode()[1:-1]
        return f'data: {{"choices":[],{self._tail},{more}}}\n\n'.encode() + DONE


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _reason(piece: Piece, has_functions: bool) -> str:
    assert piece.end is not None
    return "function_call" if has_functions and piece.end.reason == "tool_calls" else piece.end.reason


class Usage:
    """Counts of the answers to one prompt. timings: of the last one that has ended."""

    def __init__(self) -> None:
        self.timings: Object = {}
        self._n_prompt = self._n_cached = self._n_tokens = self._n_reasoning = 0

    def add(self, piece: Piece) -> None:
        """Add an answer, by its last piece."""
        assert piece.end is not None
        if not self.timings:
            self._n_prompt, self._n_cached = piece.n_prompt, piece.n_cached
        self._n_tokens += piece.end.n_tokens
        self._n_reasoning += piece.end.n_reasoning
        self.timings = piece.end.timings

    def shown(self) -> Object:
        return {
            "completion_tokens": self._n_tokens,
            "prompt_tokens": self._n_prompt,
            "total_tokens": self._n_tokens + self._n_prompt,
            "prompt_tokens_details": {"cached_tokens": self._n_cached},
            "completion_tokens_details": {"reasoning_tokens": self._n_reasoning},
        }


def whole(answer: Answer, pieces: list[Piece]) -> Object:
    """Return the answer that is not streamed."""
    usage = Usage()
    ends = sorted((piece for piece in pieces if piece.end is not None), key=lambda piece: piece.choice)
    for piece in ends:
        usage.add(piece)
    choices = [_choice([each for each in pieces if each.choice == end.choice], answer) for end in ends]
    assert ends[0].end is not None
    more = {"__verbose": ends[0].raw} if ends[0].raw is not None else {}
    return {
        "choices": choices,
        "created": int(time.time()),
        "model": answer.model.name,
        "system_fingerprint": answer.model.build,
        "object": "chat.completion",
        "usage": usage.shown(),
        "id": answer.id,
        **more,
        "timings": ends[0].end.timings,
    }


def _choice(pieces: list[Piece], answer: Answer) -> Object:
    has_functions = answer.request.has_functions
    message: Object = {"role": "assistant", "content": "".join(piece.content for piece in pieces)}
    if reasoning := "".join(piece.reasoning for piece in pieces):
        message["reasoning_content"] = reasoning
    calls: dict[int, Object] = {}
    for piece in (call for each in pieces for call in each.calls):
        function = {"name": piece.name, "arguments": ""}
        call = calls.setdefault(piece.index, {"type": "function", "function": function, "id": piece.id})
        call["function"]["arguments"] += piece.arguments
    if calls and has_functions:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = [*calls.values()]
    last = pieces[-1]
    found = {"finish_reason": _reason(last, has_functions), "index": last.choice, "message": message}
    if logprobs := [entry for piece in pieces for entry in piece.logprobs or ()]:
        found["logprobs"] = {"content": logprobs}
    return found
