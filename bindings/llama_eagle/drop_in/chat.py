"""Extensions of `create_chat_completion`: schemas, tool calls in both directions, and parsed replies.

Reasoning and tool calls are separated from the content of a reply.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from llama_cpp import LlamaGrammar

from llama_eagle.drop_in.answers.values import with_properties
from llama_eagle.drop_in.replies import (
    ARGUMENTS,
    CALL,
    CALLED,
    CONTENT,
    REASONING,
    FormattedReply,
    NamedCall,
    Part,
    RequiredCall,
)
from llama_eagle.drop_in.templates import Template
from llama_eagle.errors import UsageError
from llama_eagle.sessions.chat import Reply
from llama_eagle.sessions.chats import abilities
from llama_eagle.sessions.chats.calls import is_json
from llama_eagle.sessions.chats.tools import OF_ONE, read_choice
from llama_eagle.sessions.schemas.grammars import arguments_grammar, calls_grammar, schema_grammar

Reader = FormattedReply | RequiredCall | NamedCall
Request = dict[str, Any]  # the arguments of `create_chat_completion`
FORMATS = ("text", "json_object", "json_schema")
# Chat formats of the parent that implement calls themselves.
CALL_FORMATS = ("functionary", "functionary-v1", "functionary-v2", "chatml-function-calling")


def with_choice(arguments: Mapping[str, Any]) -> Request:
    """Return a request whose `tool_choice` is None, "auto", "none", "required" or names one function as OpenAI does.

    A choice of several tools leaves out the others. The rules are those of the server. Raises `UsageError`.
    """
    request = {name: value for name, value in arguments.items() if name != "self"}
    choice = request["function_call"] or request["tool_choice"]
    if choice is None:
        return request
    if isinstance(choice, Mapping):
        choice = {"type": "function", **choice}  # the parent needs no type
    functions = [{"type": "function", "function": each} for each in all_functions(request)]
    mode, kept = read_choice(choice, functions)
    if isinstance(choice, Mapping) and choice["type"] in OF_ONE:
        named = {"type": "function", "function": {"name": kept[0]["function"]["name"]}}
        return request | {"tool_choice": None if request["function_call"] else named}
    if len(kept) < len(functions):
        request["tools"] = kept
    return request | {"tool_choice": mode}


def prepared(request: Request, called: Mapping[str, Any] | None = None, *, is_own: bool = False) -> Request:
    """Return the request that the parent's handlers receive.

    called: the function of a named `tool_choice`. is_own: the chat format implements calls itself. Raises `UsageError`
    for requests that are not supported.
    """
    request = {**request}
    if has_no_alternatives(request):
        request["top_logprobs"] = 0  # the parent returns nothing without a number
    if is_required(request):
        return request | {"grammar": _grammar_of_calls(request), "tool_choice": "auto", "response_format": None}
    if called is not None:  # also checked for formats with own calls: the parent would fall back to any JSON
        own = _grammar(*arguments_grammar(called))
        if not is_own:
            return request | {"grammar": own, "tool_choice": "auto", "function_call": None, "response_format": None}
    if request["response_format"] is not None:
        grammar = format_grammar(request["response_format"])
        if grammar is not None:
            request |= {"grammar": grammar, "response_format": None}
    return request


def has_no_alternatives(request: Mapping[str, Any]) -> bool:
    """Return True if log-probabilities of the tokens alone are requested."""
    return bool(request["logprobs"]) and not request["top_logprobs"]


def without_alternatives(part: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, or a part of one, without alternatives: the parent lists the token itself."""
    choices = []
    for choice in part.get("choices", []):
        logprobs = choice.get("logprobs") or {}
        if logprobs.get("content"):
            content = [{**entry, "top_logprobs": []} for entry in logprobs["content"]]
            choice = {**choice, "logprobs": {**logprobs, "content": content}}
        choices.append(choice)
    return {**part, "choices": choices}


def functions_of(tools: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """Return the functions among tools. Tools of other types are left to the template."""
    return [tool["function"] for tool in tools or () if tool.get("type", "function") == "function"]


def all_functions(request: Request) -> list[Mapping[str, Any]]:
    """Return the functions of a request in the newer and in the older form."""
    return [*functions_of(request["tools"]), *(request["functions"] or ())]


def warn_dropped(request: Request, name: str) -> None:
    """Warn if the parent's chat format `name` drops tools from the prompt: it knows three roles only."""
    roles = {message["role"] for message in request["messages"]} & {"tool", "function"}
    has_calls = any(message.get("tool_calls") or message.get("function_call") for message in request["messages"])
    left_out = [
        what
        for what, found in {
            "tools": request["tools"] or request["functions"],
            "tool calls": has_calls,
            "tool results": roles,
        }.items()
        if found
    ]
    if left_out:
        what = " and ".join(left_out)
        text = f"chat_format={name!r} does not support {what}: the model does not see them."
        warnings.warn(f"{text} Use the model's own template, or chatml-function-calling.", stacklevel=4)


def warn_unseen(request: Request, template: str) -> None:
    """Warn if a model's own template has no place for tools."""
    if template and (request["tools"] or request["functions"]) and not abilities.shows_tools(template):
        text = "the model does not see the tools: its chat template has no place for them."
        warnings.warn(f"{text} Use a model with tools, or describe them in a message.", stacklevel=4)


def is_required(request: Mapping[str, Any]) -> bool:
    """Return True if the reply must be a tool call."""
    return bool(request["tool_choice"] == "required")


def named_function(request: Request) -> Mapping[str, Any] | None:
    """Return the function that `tool_choice` or `function_call` names; None if it names none."""
    choice = request["function_call"] or request["tool_choice"]
    if not isinstance(choice, Mapping):
        return None
    name = (choice.get("function") or choice)["name"]
    return next(dict(function) for function in all_functions(request) if function["name"] == name)


def _grammar_of_calls(request: Request) -> LlamaGrammar:
    if request["grammar"] is not None:
        raise UsageError("tool_choice='required' and grammar exclude each other. Leave one out.")
    return _grammar(*calls_grammar(all_functions(request)))


def is_constrained(request: Request) -> bool:
    """Return True if a grammar determines the reply, which is then content only."""
    response_format = request["response_format"] or {}
    forced = isinstance(request["tool_choice"], Mapping) or isinstance(request["function_call"], Mapping)
    return request["grammar"] is not None or response_format.get("type") == "json_object" or forced


def template_options(request: Request) -> dict[str, Any]:
    """Return variables for the template: a grammar excludes reasoning."""
    return {"enable_thinking": False} if is_constrained(request) else {}


def reply_to(template: Template, request: Request, options: Mapping[str, Any]) -> Reply:
    """Return the parser of the reply to a request. options: variables of the template."""
    functions = [
        {**each, "strict": False, "parameters": with_properties(each.get("parameters"))}
        for each in free_functions(request)
    ]
    return Reply(
        template=template.text,
        bos=template.bos,
        eos=template.eos,
        messages=request["messages"],
        tools=[{"type": "function", "function": function} for function in functions],
        chat_template_kwargs=options,
    )


def split(answer: Any, make_reader: Callable[[], Reader]) -> Any:
    """Separate reasoning and calls in an answer or a stream. `make_reader` is called when there is text.

    Answers and parts without a message, which a caller's `chat_handler` may return, are unchanged.
    """
    if isinstance(answer, dict):
        return split_answer(answer, make_reader()) if _has(answer, "message") else answer
    return split_stream(answer, make_reader)


def _has(answer: Any, key: str) -> bool:
    """Return True if an answer or a part of a stream has a choice with a message or a delta."""
    return bool(answer and answer.get("choices") and answer["choices"][0].get(key) is not None)


def format_grammar(response_format: Mapping[str, Any]) -> LlamaGrammar | None:
    """Return the grammar of a response format with a schema; None for formats without one, which the parent handles.

    Raises `UsageError` for an unsupported format or schema.
    """
    kind = response_format.get("type")
    if kind not in FORMATS:
        raise UsageError(f"response_format {kind!r} is not one of {', '.join(FORMATS)}. Correct it.")
    wrapped = response_format.get("json_schema", {}) if kind == "json_schema" else response_format
    schema = wrapped.get("schema") if isinstance(wrapped, Mapping) else None
    if schema is None and kind == "json_schema":
        raise UsageError("response_format json_schema needs json_schema={'schema': {...}}. Add it.")
    return None if schema is None else grammar_of_schema(schema)


def grammar_of_schema(schema: Any) -> LlamaGrammar:
    """Return the grammar of a JSON schema. Raises `UsageError` if it cannot be converted."""
    return _grammar(*schema_grammar(schema))


def _grammar(text: str, unenforced: Iterable[str]) -> LlamaGrammar:
    if unenforced:
        warnings.warn(f"the grammar does not enforce {', '.join(unenforced)}. Check the answer.", stacklevel=4)
    return LlamaGrammar.from_string(text, verbose=False)


def free_functions(request: Request) -> list[Mapping[str, Any]]:
    """Return the functions that a reply may call on its own; a forced call is handled by the parent."""
    choice = request["tool_choice"]
    return [] if choice == "none" or isinstance(choice, Mapping) else functions_of(request["tools"])


def split_answer(answer: dict[str, Any], reader: Reader) -> dict[str, Any]:
    """Separate reasoning and calls in a complete answer."""
    choice = answer["choices"][0]
    message = dict(choice["message"])
    if not isinstance(message.get("content"), str) or message.get("tool_calls"):
        return answer
    parts = [*reader.read(message["content"]), *reader.finish()]
    texts = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in (CONTENT, REASONING)}
    calls = _whole_calls(parts)
    message["content"] = None if calls and not texts[CONTENT] else texts[CONTENT]
    if texts[REASONING]:
        message["reasoning_content"] = texts[REASONING]
    if calls:
        message["tool_calls"] = calls
    if isinstance(reader, NamedCall):
        message["function_call"] = calls[0]["function"]
    reason = _reason(choice.get("finish_reason"), parts)
    return {**answer, "choices": [{**choice, "message": message, "finish_reason": reason}]}


def _whole_calls(parts: Sequence[Part]) -> list[dict[str, Any]]:
    pieces = [part for part in parts if part.kind == ARGUMENTS]
    named = [Part(CALL, "".join(part.text for part in pieces), pieces[0].name)] if pieces else []
    return [_call(part) for part in [*named, *(part for part in parts if part.kind == CALL)]]


def _reason(reason: str | None, parts: Sequence[Part]) -> str | None:
    """Return the finish reason of a reply: a call that is not whole, because a stop text has cut it, is none to run."""
    ends = [part.is_whole for part in parts if part.kind in (CALL, CALLED)]
    return "tool_calls" if ends and all(ends) and reason == "stop" else reason


def split_stream(chunks: Iterable[dict[str, Any]], make_reader: Callable[[], Reader]) -> Iterator[dict[str, Any]]:
    """Separate reasoning and calls in a stream. `make_reader` is called at its first text."""
    reader: Reader | None = None
    calls: list[Part] = []
    for chunk in chunks:
        if not _has(chunk, "delta"):
            yield chunk
            continue
        choice = chunk["choices"][0]
        text, reason = choice["delta"].get("content"), choice.get("finish_reason")
        if text is None and (reason is None or reader is None):
            yield chunk
            continue
        reader = reader or make_reader()
        parts = reader.read(text or "")
        if reason is not None:
            parts += reader.finish()
        deltas = list(_deltas(parts, len(calls))) or ([{"content": ""}] if choice.get("logprobs") else [])
        for i, delta in enumerate(deltas):
            logprobs = choice.get("logprobs") if i == 0 else None
            yield {**chunk, "choices": [{**choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}]}
        calls += [part for part in parts if part.kind in (CALL, CALLED)]
        if reason is not None:
            reason = _reason(reason, calls)
            yield {**chunk, "choices": [{**choice, "delta": {}, "logprobs": None, "finish_reason": reason}]}


def _deltas(parts: Iterable[Part], n_calls: int) -> Iterator[dict[str, Any]]:
    for part in parts:
        if part.kind == CALL:
            yield {"tool_calls": [{"index": n_calls, **_call(part)}]}
            n_calls += 1
        elif part.kind == ARGUMENTS:
            call = _call(part) if part.name else {"function": {"arguments": part.text}}
            yield {"tool_calls": [{"index": 0, **call}], "function_call": call["function"]}
        elif part.kind != CALLED:
            yield {"content" if part.kind == CONTENT else "reasoning_content": part.text}


def _call(part: Part) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.text}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def own_calls(answer: dict[str, Any], reason: Callable[[], str]) -> dict[str, Any]:
    """Correct the finish reason of an answer with the parent's own calls.

    Arguments that are not JSON were cut by the limit or by a stop text. reason: returns which.
    """
    choice = answer["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if all(is_json(call["function"]["arguments"]) for call in calls):
        return answer
    return {**answer, "choices": [{**choice, "finish_reason": reason()}]}


def named_once(chunks: Iterable[dict[str, Any]], reason: Callable[[], str]) -> Iterator[dict[str, Any]]:
    """Yield a stream of the parent's own calls with each function's name only in the first piece of its call.

    Arguments that are not JSON at the end were cut by the limit or by a stop text. reason: returns which.
    """
    arguments: dict[int, str] = {}
    for chunk in chunks:
        choice = chunk["choices"][0]
        delta, ended = dict(choice["delta"]), choice["finish_reason"]
        pieces = delta.get("tool_calls") or []
        known = [call["index"] in arguments for call in pieces]
        for call in pieces:
            arguments[call["index"]] = arguments.get(call["index"], "") + (call["function"].get("arguments") or "")
        if any(known):
            delta["tool_calls"] = [_more(call) if old else call for call, old in zip(pieces, known, strict=True)]
            if delta.get("function_call"):
                delta["function_call"] = _without_name(delta["function_call"])
        if ended == "tool_calls" and not all(map(is_json, arguments.values())):
            ended = reason()
        yield {**chunk, "choices": [{**choice, "delta": delta, "finish_reason": ended}]}


def _more(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a later piece of a call, without the function's name."""
    return {"index": call["index"], "function": _without_name(call["function"])}


def _without_name(function: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in function.items() if key != "name"}
