"""A request for a chat as a request of the child: its prompt, its grammar and the parsers of its answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llama_eagle.errors import EagleError
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server.grammars import warn_once, warn_unenforced
from llama_eagle.serving.llama_server.served import Served
from llama_eagle.serving.requests.bodies import read_chat
from llama_eagle.serving.requests.chat_request import ChatRequest
from llama_eagle.serving.requests.named_templates import apply_named
from llama_eagle.sessions.chat import Reply
from llama_eagle.sessions.chats.abilities import shows_tools
from llama_eagle.sessions.chats.continued import CONTENT, QUESTION, REASONING, render_begun
from llama_eagle.sessions.chats.messages import render_chat, text_of
from llama_eagle.sessions.chats.responses import is_deepseek_v4

PROMPT_END = 200  # characters of a prompt that show whether the answer begins with thoughts
Body = Mapping[str, Any]


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
    if request.continued == QUESTION:
        text = render_begun(template, variables, model.name)
        return _without_parser(model, request, _without_bos(model, text))
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
    warn_unenforced(replies[0].unenforced)
    if request.tools and not shows_tools(template):
        warn_once("tools: the model does not see them, because its chat template has no place for them.")
    if request.continued:
        before = {**variables, "messages": variables["messages"][:-1]}
        text = render_chat(template, before, model.name) + replies[0].generation_prompt
    text = _without_bos(model, text)
    rules = {"grammar": request.grammar, **replies[0].settings, "stop": [*request.settings["stop"], *replies[0].stops]}
    return Chat(request, text, _raw(model, request, text, rules), replies)


def _plain_chat(model: Served, request: ChatRequest) -> Chat:
    """Return a chat with one of llama.cpp's own templates, which read texts alone (--no-jinja)."""
    messages = model.literals.hidden(request.messages) if model.literals else request.messages
    texts = [(str(message["role"]), text_of(message.get("content"))) for message in messages]
    text = apply_named(model.template, texts, adds_generation_prompt=request.adds_generation_prompt)
    return _without_parser(model, request, text)


def _without_bos(model: Served, text: str) -> str:
    return text.removeprefix(model.bos) if model.adds_bos else text


def _without_parser(model: Served, request: ChatRequest, text: str) -> Chat:
    """Return a chat whose answer is text alone."""
    rules = {"grammar": request.grammar} if request.schema is None else {"json_schema": request.schema}
    return Chat(request, text, _raw(model, request, text, rules), [])


def _variables(model: Served, request: ChatRequest, template: str) -> dict[str, Any]:
    """Return the variables of the template. Those of the request overrule what follows from others."""
    tools = [tool for tool in request.tools if tool["function"]["name"] not in request.late_tools]
    messages = request.messages
    if model.literals is not None:
        is_begun = request.continued in (CONTENT, REASONING)  # the beginning of the answer is the model's own text
        n = len(messages) - is_begun
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
