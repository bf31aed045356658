"""Answers to chats: a request becomes a prompt for the child's slots, and their text becomes pieces of an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llama_eagle import console
from llama_eagle.errors import EagleError
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.ids import new_id
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import Served, served
from llama_eagle.serving.llama_server.slots import Step, Steps
from llama_eagle.serving.pieces import CallPiece, End, Piece
from llama_eagle.serving.requests.bodies import read_chat
from llama_eagle.serving.requests.chat_request import ChatRequest
from llama_eagle.serving.requests.named_templates import apply_named
from llama_eagle.sessions.chat import Reply, schema_grammar
from llama_eagle.sessions.chats.abilities import shows_tools
from llama_eagle.sessions.chats.calls import is_json
from llama_eagle.sessions.chats.messages import render_chat, text_of
from llama_eagle.sessions.chats.responses import is_deepseek_v4

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

LONG_REPLY = 2000  # tokens of an answer whose whole text is parsed in a thread
PROMPT_END = 200  # characters of a prompt that show whether the answer begins with thoughts
Body = Mapping[str, Any]


async def open_chat(front: Front, body: Body) -> Answer:
    """Begin an answer to a body of OpenAI's chat completions, and return when its prompt is being read.

    Raises `Refusal` for a request that is wrong or too long.
    """
    model = await served(front)
    chat = await asyncio.to_thread(prepare, model, body)
    answer_id = new_id("chatcmpl-")
    return Answer(model, chat, await slots.start(front, {**chat.raw, "completion_id": answer_id}), answer_id)


async def prompt(front: Front, body: Body) -> str:
    """Return the prompt of a chat. Raises `Refusal`."""
    model = await served(front)
    text = (await asyncio.to_thread(prepare, model, {**body, "n": None, "n_cmpl": None})).prompt  # of one answer
    return model.literals.restored(text) if model.literals else text


async def count_tokens(front: Front, body: Body) -> int:
    """Return the number of tokens of a chat's prompt. Raises `Refusal`."""
    chat = await asyncio.to_thread(prepare, await served(front), body)
    if chat.request.media:  # the child counts the tokens of media when it evaluates them, and keeps them
        raw = {"prompt": chat.raw["prompt"], "n_predict": 0}
        return int((await slots.ask_json(front, "POST", slots.PATH, raw))["tokens_evaluated"])
    given = chat.raw["prompt"]
    if isinstance(given, list):
        return len(given)
    return len((await slots.ask_json(front, "POST", "/tokenize", {"content": given, "add_special": True}))["tokens"])


@dataclass(frozen=True)
class Chat:
    """A chat for the child. raw: its request. replies: the parsers of the choices; empty if answers are text alone."""

    request: ChatRequest
    prompt: str
    raw: dict[str, Any]
    replies: list[Reply]


def prepare(model: Served, body: Body) -> Chat:
    """Return a chat, whose template is rendered in another process. Raises `Refusal`."""
    request = read_chat(body, model)
    try:
        return _plain_chat(model, request) if not model.chats.has_jinja else _chat(model, request)
    except EagleError as error:
        raise Refusal(400, str(error)) from None


def _chat(model: Served, request: ChatRequest) -> Chat:
    template = model.template_for(has_tools=bool(request.tools))
    variables = _variables(model, request, template)
    text = ""
    if not request.continued:
        text = render_chat(template, variables, model.name)
    given = {
        "template": template, "bos": model.bos, "eos": model.eos, "messages": request.messages,
        "tools": [tool for tool in request.tools if tool["function"]["name"] not in request.withdrawn_tools],
        "tool_choice": request.tool_choice, "parallel_tool_calls": request.parallel_calls,
        "json_schema": request.schema, "chat_template_kwargs": request.variables,
        "reasoning_format": request.reasoning_format, "enable_thinking": variables["enable_thinking"],
        "continue_final_message": request.continued or None, "echo": request.echoes or None,
        "force_pure_content": not model.chats.is_parsed, "prompt_end": text[-PROMPT_END:] or None,
        "streams_calls": True,
    }  # fmt: skip
    replies = [Reply(**given) for _ in range(request.settings["n_cmpl"])]
    for name in replies[0].unenforced:
        _warn_once(f"schema: the grammar does not enforce {name}.")
    if request.tools and not shows_tools(template):
        _warn_once("tools: the model does not see them, because its chat template has no place for them.")
    if request.continued:
        before = {**variables, "messages": variables["messages"][:-1]}
        text = render_chat(template, before, model.name) + replies[0].generation_prompt
    text = text.removeprefix(model.bos) if model.adds_bos else text
    rules = {"grammar": request.grammar, **replies[0].settings, "stop": [*request.settings["stop"], *replies[0].stops]}
    return Chat(request, text, _raw(model, request, text, rules), replies)


def _plain_chat(model: Served, request: ChatRequest) -> Chat:
    """Return a chat with one of llama.cpp's own templates, which read texts alone (--no-jinja)."""
    messages = model.literals.hidden(request.messages) if model.literals else request.messages
    texts = [(str(message["role"]), text_of(message.get("content"))) for message in messages]
    text = apply_named(model.template, texts, adds_generation_prompt=request.adds_generation_prompt)
    grammar = request.grammar if request.schema is None else schema_grammar(json.dumps(request.schema))[0]
    return Chat(request, text, _raw(model, request, text, {"grammar": grammar}), [])


def _variables(model: Served, request: ChatRequest, template: str) -> dict[str, Any]:
    """Return the variables of the template. Those of the request overrule what follows from others."""
    tools = [tool for tool in request.tools if tool["function"]["name"] not in request.late_tools]
    messages = request.messages
    if model.literals is not None:
        n = len(messages) - bool(request.continued)  # the beginning of the answer is the model's own text
        messages = [*model.literals.hidden(messages[:n]), *messages[n:]]
        tools = model.literals.hidden_tools(tools)
    now = time.localtime()
    found = {
        "bos_token": model.bos,
        "eos_token": model.eos,
        "enable_thinking": request.thinks is not False and _has_thoughts(template),
        "date_string": time.strftime("%d %b %Y", now),
        "datetime": time.strftime("%b %d %Y", now),
    }
    if isinstance(preserves := request.variables.get("preserve_reasoning"), bool):  # as templates name it
        found |= {"preserve_thinking": preserves}
        found |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not preserves)
    if effort := request.variables.get("reasoning_effort"):
        found["reasoning_strength"] = effort
    if request.schema is not None and is_deepseek_v4(template):
        found["response_format"] = request.schema
    found |= {**request.variables, "messages": messages, "tools": tools or None}
    # Undefined instead of False: two templates add the beginning of an answer by default, and its parser expects that.
    return found | ({"add_generation_prompt": True} if request.adds_generation_prompt else {})


@lru_cache(maxsize=8)
def _has_thoughts(template: str) -> bool:
    """Return True if the parser knows the thoughts of the template's answers."""
    reply = Reply(template=template, bos="", eos="", messages=[{"role": "user", "content": "Question"}], tools=[])
    return "reasoning_budget_start_tag" in reply.settings


@lru_cache(maxsize=1000)
def _warn_once(text: str) -> None:
    console.warn(text)


def _raw(model: Served, request: ChatRequest, text: str, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the child's request. It streams, because the tokens of the reasoning are counted."""
    given: Any = model.literals.encode(text) if model.literals else text
    if request.media:
        given = {"prompt_string": text, "multimodal_data": request.media}
    found = {
        **request.settings,
        **rules,
        "prompt": given,
        "stream": True,
        "return_progress": request.has_stream,  # the first sign reports how much of the prompt is known
    }
    if request.settings.get("verbose"):
        found["response_fields"] = []
    return found


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
        found = (self._choices[step.choice].piece(step) for step in steps)
        return [piece for piece in found if piece is not None]

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

    def piece(self, step: Step) -> Piece | None:
        """Return what a step adds; None for the progress of a prompt that the request does not ask for."""
        if step.n_cached is not None:
            self._n_cached = step.n_cached
        if step.progress is not None:
            return self._piece(step, {}) if self._request.settings.get("return_progress") else None
        self._text += step.text
        self._ends += [len(self._text)] * (step.n_tokens - len(self._ends))
        self._unread += step.text
        delta = self._parsed(is_last=step.is_last) if step.is_last or (step.text and self._request.has_stream) else {}
        self._reasoning += delta.get("reasoning_content", "")
        return self._piece(step, delta)

    def _parsed(self, *, is_last: bool) -> dict[str, Any]:
        text, self._unread = self._unread, ""
        return {"content": text} if self._reply is None else self._reply.add(text, is_last=is_last)

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


def count_reasoning(text: str, reasoning: str, ends: list[int]) -> int:
    """Return the number of tokens of `reasoning`, which may have several parts in `text` with markup between them.

    ends: length of the text after each token.
    """
    spans = list(zip([0, *ends], ends, strict=False))
    n = at = token = 0
    while reasoning:
        begin, size = _longest_beginning(text, reasoning, at)
        reasoning = reasoning[max(1, size) :]  # a character that is not in the text was added by the parser
        if not size:
            continue
        at = begin + size
        while token < len(spans) and spans[token][1] <= begin:
            token += 1
        while token < len(spans) and spans[token][0] < at:
            n += _is_within(text, spans[token], begin, at)
            token += 1
    return n


def _longest_beginning(text: str, part: str, at: int) -> tuple[int, int]:
    """Return where the longest beginning of `part` that is in `text` behind `at` begins, and its length."""
    found, n_least, n_most = -1, 0, min(len(part), len(text) - at)
    n = n_most  # usually all of it
    while n_least < n_most:
        begin = text.find(part[:n], at)
        if begin < 0:
            n_most = n - 1
        else:
            found, n_least = begin, n
        n = n_least + (n_most - n_least + 1) // 2
    return found, n_least


def _is_within(text: str, span: tuple[int, int], begin: int, end: int) -> bool:
    """Return True if a token is within a part of the text, or shares more with it than the space before a tag."""
    first, last = span
    shared = text[max(first, begin) : min(last, end)]
    return (begin <= first and last <= end) or bool(shared.strip(" \t\r\n"))
