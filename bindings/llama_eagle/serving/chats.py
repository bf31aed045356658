"""Answers to chats: a request becomes a prompt for the child's slots, and their text becomes pieces of an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_eagle.errors import EagleError
from llama_eagle.serving import slots
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.chat_request import ChatRequest
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.served import Served, served
from llama_eagle.serving.slots import Step, Steps
from llama_eagle.sessions.chat import Reply
from llama_eagle.sessions.chats.messages import render_chat

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

LONG_REPLY = 2000  # tokens, from which an answer is parsed in a thread
PROMPT_END = 200  # characters of a prompt that tell whether the answer begins with thoughts
Body = Mapping[str, Any]


async def open_chat(front: Front, body: Body) -> Answer:
    """Begin an answer to a body of OpenAI's chat completions, and return when its prompt is being read.

    Raises `Refusal` for a request that is wrong or too long.
    """
    model = await served(front)
    request, prepared = await asyncio.to_thread(prepare, model, body)
    steps = await slots.start(front, prepared.raw)
    return Answer(model, request, prepared, steps)


@dataclass(frozen=True)
class Prepared:
    """A chat for the child. raw: its request. replies: the parsers of the choices."""

    prompt: str
    raw: dict[str, Any]
    replies: list[Reply]


def prepare(model: Served, body: Body) -> tuple[ChatRequest, Prepared]:
    """Return a request and its prompt. Raises `Refusal`."""
    try:
        request = read_chat(model, body)
        return request, _prepared(model, request)
    except EagleError as error:
        raise Refusal(400, str(error)) from None


def _prepared(model: Served, request: ChatRequest) -> Prepared:
    prompt = prompt_of(model, request)
    template = model.template_for(has_tools=bool(request.tools))
    given = {
        "template": template, "bos": model.bos, "eos": model.eos, "messages": request.messages,
        "tools": request.tools, "tool_choice": request.tool_choice, "chat_template_kwargs": request.variables,
    }  # fmt: skip
    replies = [Reply(**given) for _ in range(request.settings.get("n_cmpl", 1))]
    for reply in replies:
        reply.follow(prompt[-PROMPT_END:])
    settings = request.settings
    raw = {
        **settings,
        "prompt": {"prompt_string": prompt, "multimodal_data": request.media} if request.media else prompt,
        "stop": [*settings.get("stop", ()), *replies[0].stops],
        "preserved_tokens": replies[0].preserved_tokens,
        "stream": request.has_stream,
    }
    return Prepared(prompt, raw, replies)


def prompt_of(model: Served, request: ChatRequest) -> str:
    """Return the prompt without the token that the tokenizer adds. Raises the errors of `render_chat`."""
    template = model.template_for(has_tools=bool(request.tools))
    now = time.localtime()
    variables = {
        "bos_token": model.bos,
        "eos_token": model.eos,
        "enable_thinking": request.thinks is not False,
        "date_string": time.strftime("%d %b %Y", now),
        "datetime": time.strftime("%b %d %Y", now),
        **request.variables,
        "messages": request.messages,
        "tools": request.tools or None,
        "add_generation_prompt": request.adds_generation_prompt,
    }
    prompt = render_chat(template, variables, model.name)
    return prompt.removeprefix(model.bos) if model.adds_bos else prompt


class Answer:
    """The pieces of an answer, one by one, or as `read` returns them: all that have arrived.

    The caller closes it (`aclose`); the child then stops. A `Refusal` behind the first piece ends a stream.
    """

    def __init__(self, model: Served, request: ChatRequest, prepared: Prepared, steps: Steps) -> None:
        self.model = model
        self.request = request
        self.prompt = prepared.prompt
        self._steps = steps
        self._choices = [_Choice(reply) for reply in prepared.replies]
        self._waiting: deque[Piece] = deque()

    async def read(self) -> list[Piece] | None:
        """Return the pieces that have arrived; None at the end. An empty list is a sign of life of the child."""
        steps = await self._steps.read()
        if steps is None:
            return None
        if any(step.n_tokens > LONG_REPLY for step in steps):
            return await asyncio.to_thread(self._pieces, steps)
        return self._pieces(steps)

    def _pieces(self, steps: list[Step]) -> list[Piece]:
        return [self._choices[step.choice].piece(step) for step in steps]

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self._waiting:
            pieces = await self.read()
            if pieces is None:
                raise StopAsyncIteration
            self._waiting.extend(pieces)
        return self._waiting.popleft()

    async def aclose(self) -> None:
        self._steps.close()


class _Choice:
    """One choice of an answer. ends: length of its text after each token."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._text = ""
        self._reasoning = ""
        self._ends: list[int] = []
        self._n_cached = 0
        self._n_calls = 0

    def piece(self, step: Step) -> Piece:
        """Return what a step adds."""
        if step.n_cached is not None:
            self._n_cached = step.n_cached
        if step.progress is not None:
            return self._piece(step, {})
        self._text += step.text
        self._ends += [len(self._text)] * (step.n_tokens - len(self._ends))
        delta = self._reply.add(step.text, is_last=step.is_last) if step.text or step.is_last else {}
        self._reasoning += delta.get("reasoning_content", "")
        return self._piece(step, delta)

    def _piece(self, step: Step, delta: dict[str, Any]) -> Piece:
        return Piece(
            choice=step.choice,
            reasoning=delta.get("reasoning_content", ""),
            content=delta.get("content", ""),
            calls=tuple(self._calls(delta)),
            logprobs=step.probabilities,
            n_prompt=step.n_prompt,
            n_cached=self._n_cached,
            progress=step.progress,
            timings=step.timings,
            end=self._end(step) if step.is_last else None,
        )

    def _calls(self, delta: dict[str, Any]) -> list[CallPiece]:
        found = []
        for call in delta.get("tool_calls", ()):
            found.append(CallPiece(self._n_calls, call["arguments"], f"call_{self._n_calls}", call["name"]))
            self._n_calls += 1
        return found

    def _end(self, step: Step) -> End:
        reason = "length" if step.stop == "limit" else "tool_calls" if self._n_calls else "stop"
        n_reasoning = count_reasoning(self._text, self._reasoning, self._ends)
        return End(reason, step.stop_text or None, step.n_tokens, n_reasoning, step.timings or {})


def count_reasoning(text: str, reasoning: str, ends: list[int]) -> int:
    """Return the number of tokens of `reasoning`. ends: length of the answer's text after each token."""
    begin = text.find(reasoning) if reasoning else -1
    if begin < 0:
        return 0
    end = begin + len(reasoning)
    begins = [0, *ends[:-1]]
    return sum(first < end and last > begin for first, last in zip(begins, ends, strict=True))


def read_chat(model: Served, body: Body) -> ChatRequest:
    """Return a checked request. (Until the reader of bodies is there.)"""
    settings = {key: value for key, value in body.items() if value is not None and key not in ("messages", "model")}
    stop = settings.get("stop", [])
    settings["stop"] = [stop] if isinstance(stop, str) else stop
    settings["n_cmpl"] = settings.pop("n", settings.get("n_cmpl", 1))
    return ChatRequest(
        messages=json.loads(json.dumps(body.get("messages"))),
        settings=settings,
        has_stream=bool(body.get("stream")),
        has_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        model=str(body.get("model", "")),
    )
