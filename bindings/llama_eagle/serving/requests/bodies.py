"""The body of OpenAI's Chat Completions API, with llama.cpp's additional keys, as a `ChatRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llama_eagle.errors import EagleError
from llama_eagle.serving.api_errors import Refusal, require
from llama_eagle.serving.requests.chat_request import ChatRequest
from llama_eagle.serving.requests.fields import text_at, without_billing
from llama_eagle.serving.requests.json_body import without_nulls
from llama_eagle.serving.requests.lists import with_lists
from llama_eagle.serving.requests.media import MediaReader
from llama_eagle.serving.requests.parameters import (
    read_n,
    read_stops,
    require_constraints,
    require_types,
    require_unused,
)
from llama_eagle.sessions.chats.continued import CONTENT, QUESTION, REASONING, read_begun, without_empty_end
from llama_eagle.sessions.chats.fallbacks import EFFORT
from llama_eagle.sessions.chats.messages import read_messages, with_arguments
from llama_eagle.sessions.chats.tools import read_choice, read_tools, with_calls, with_tools

if TYPE_CHECKING:
    from llama_eagle.serving.llama_server.served import Served

Body = dict[str, Any]
REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")
N_ALTERNATIVES = 20  # of each token with log-probabilities, unless the request says otherwise
TOOL_PLACES = "eagle_tool_places"  # key of our own: tools that a conversation adds or removes
# Keys that are read here. All others go to the child, which ignores those that it does not know.
READ = frozenset((
    "add_generation_prompt", "chat_template_kwargs", "continue_final_message", "echo", "generation_prompt", "grammar",
    "grammar_lazy", "grammar_triggers", "grammar_type", "json_schema", "message_delimiters", "messages", "model", "n",
    "parallel_tool_calls", "parse_tool_calls", "preserved_tokens", "prompt", "reasoning_effort", "reasoning_format",
    "response_fields", "response_format", "stop", "stream", "stream_options", "thinking_budget_tokens", "tool_choice",
    "tools", "top_logprobs", TOOL_PLACES,
))  # fmt: skip


def read_chat(body: Any, served: Served) -> ChatRequest:
    """Return what a body asks for. Raises `Refusal` with the status 400.

    It may render trials of the template and read files: call it in a thread.
    """
    require(isinstance(body, Mapping), "the body is no JSON object")
    try:
        return _read(without_nulls(body), served)
    except EagleError as error:
        raise Refusal(400, str(error)) from None


def _read(body: Body, served: Served) -> ChatRequest:
    _require_parameters(body)
    has_functions = bool(body.get("functions"))
    body = with_tools(body)
    require_constraints(body)
    tools = read_tools(body.get("tools"))
    choice, tools = read_choice(body.get("tool_choice"), tools)
    has_jinja = served.chats.has_jinja or not tools
    require(has_jinja, "'tools' needs the model's own template: start the server without --no-jinja")
    grammar = body.get("grammar", "")
    require(not grammar or not tools or choice == "none", "'grammar' and 'tools' exclude each other: leave one out")
    template = served.template_for(has_tools=bool(tools))
    media = _media_reader(served)
    messages, continued = _read_conversation(body, template, media, continues=served.chats.continues_answers)
    variables, thinks = _read_variables(body, served)
    late, withdrawn = _read_places(body)
    return ChatRequest(
        messages=messages,
        media=tuple(media.files),
        tools=tools,
        late_tools=late,
        withdrawn_tools=withdrawn,
        tool_choice=choice,
        parallel_calls=body.get("parallel_tool_calls"),
        schema=_read_schema(body),
        grammar=grammar,
        variables=variables,
        thinks=thinks,
        reasoning_format=_read_reasoning_format(body) or served.chats.reasoning_format,
        continued=continued,
        echoes=body.get("echo", False),
        adds_generation_prompt=body.get("add_generation_prompt", True) and not continued,
        settings=_read_settings(body, served),
        n_alternatives=body.get("top_logprobs", 0) if body.get("logprobs") else None,
        model=body["model"] if isinstance(body.get("model"), str) else "",
        has_stream=body.get("stream", False),
        has_usage=bool(body.get("stream_options", {}).get("include_usage")),
        has_functions=has_functions,
    )


def _require_parameters(body: Body) -> None:
    """Refuse parameters that change an answer and are not supported; docs/server.md lists those that are ignored."""
    require("web_search_options" not in body, "this server searches no web: leave out 'web_search_options'")
    require_unused(body, ["audio"])
    modalities = body.get("modalities", [])
    is_text = modalities in ([], ["text"])
    require(is_text, f"'modalities' is {modalities!r:.80}, but this server writes text alone: leave it out")
    require(isinstance(body.get("reasoning_effort", ""), str), "'reasoning_effort' is no text")
    require(body.get("suffix", "") == "", "chats do not complete before a 'suffix': leave it out, or use /infill")
    best_of = body.get("best_of", 1)
    require(
        best_of in (1, body.get("n", 1)), "this server does not choose the best of several answers: leave out 'best_of'"
    )
    require_types(body)
    is_echo = not body.get("echo") or "continue_final_message" in body
    require(is_echo, "chats do not echo prompts: leave out 'echo', or add 'continue_final_message'")


def _media_reader(served: Served) -> MediaReader:
    has = {"image": served.has_images, "audio": served.has_sound, "video": served.has_video}
    kinds = [kind for kind, is_read in has.items() if is_read]
    return MediaReader(served.media_marker, kinds, served.chats.media_path)


def _read_conversation(body: Body, template: str, media: MediaReader, *, continues: bool) -> tuple[list[Body], str]:
    """Return the messages, and what of the last one is continued. continues: unless the request says otherwise."""
    given = body.get("messages")
    require("messages" in body, "'messages' is required")
    require(isinstance(given, list), "'messages' is no list")
    require(bool(given), "'messages' is empty: send at least one message")
    first, *others = with_calls(given or [])
    if text_at(first, "role") in ("system", "developer") and first.get("content"):
        first = {**first, "content": without_billing(first["content"]) or ""}
    messages = read_messages(media.with_marks(template, message) for message in (first, *others))
    messages = [with_arguments(message, as_text=True) for message in messages]
    found = without_empty_end(messages)
    if len(found) < len(messages) or not _continues(body, found, is_usual=continues):
        return found, ""
    require(
        not found[-1].get("tool_calls"),
        "the last message is an answer with tool calls, which no model continues: send the results of the calls",
    )
    if found[-1]["role"] != "assistant":
        return found, QUESTION
    last, continued = read_begun(template, found[-1], body.get("continue_final_message"))
    return [*found[:-1], last], continued


def _continues(body: Body, messages: list[Body], *, is_usual: bool) -> bool:
    """Return True if the model continues the last message. is_usual: it does unless the request says otherwise."""
    asked = body.get("continue_final_message")
    is_last_answer = messages[-1].get("role") == "assistant"
    if asked is True or asked in (CONTENT, REASONING):
        require(
            body.get("add_generation_prompt") is False,
            "'continue_final_message' excludes a generation prompt: set 'add_generation_prompt' to false",
        )
        require(
            is_last_answer or asked != REASONING, "the last message is no answer, so it has no reasoning to continue"
        )
        require(is_last_answer or not body.get("echo"), "only answers are echoed: leave out 'echo'")
        return True
    is_meant = is_usual if asked is None else asked is not False
    if not is_meant or not is_last_answer:
        return False
    is_second = len(messages) > 1 and messages[-2]["role"] == "assistant"
    require(not is_second, "the last two messages are answers: join them, or leave one out")
    return True


def _read_places(body: Body) -> list[frozenset[str]]:
    """Return the names of tools that the prompt's beginning does not show, and of those that are no longer offered."""
    given = body.get(TOOL_PLACES, {})
    found = [given.get(key, []) if isinstance(given, Mapping) else None for key in ("not_at_beginning", "not_offered")]
    are_names = [isinstance(names, list) and all(isinstance(name, str) for name in names) for names in found]
    require(all(are_names), f"'{TOOL_PLACES}' is set by the server: leave it out")
    return [frozenset(names or ()) for names in found]


def _read_schema(body: Body) -> Any:
    """Return the schema of the answer; None if there is none. An empty one means any object."""
    schema, form = body.get("json_schema"), without_nulls(body.get("response_format", {}))
    kind = form.get("type", "text")
    if kind == "json_object":
        schema = form.get("schema", {}) if "schema" in form or not schema else schema
    elif kind == "json_schema":
        schema = without_nulls(form.get("json_schema", {})).get("schema", {})
    else:
        require(kind in ("", "text"), f"'response_format.type' is {kind!r}, not text, json_object or json_schema")
    return {"type": "object"} if schema == {} else schema


def _read_variables(body: Body, served: Served) -> tuple[Body, bool | None]:
    """Return the template's variables, and whether the model thinks; None if the template decides."""
    variables = {**served.chats.variables, **body.get("chat_template_kwargs", {})}
    switch = variables.get("enable_thinking")
    require(not isinstance(switch, str), "'chat_template_kwargs.enable_thinking' is a text, not true or false")
    thinks = switch if isinstance(switch, bool) else served.chats.thinks
    effort = body.get("reasoning_effort", "")
    if effort == "none":
        return {key: value for key, value in variables.items() if key not in ("enable_thinking", EFFORT)}, False
    return variables | ({EFFORT: effort} if effort else {}), thinks


def _read_reasoning_format(body: Body) -> str:
    given = body.get("reasoning_format", "")
    is_known = given == "" or given in REASONING_FORMATS
    require(is_known, f"'reasoning_format' is {given!r:.80}, which is not one of {', '.join(REASONING_FORMATS)}")
    return str(given)


def _read_settings(body: Body, served: Served) -> Body:
    """Return the settings for the child, which names those that are wrong."""
    settings = {key: value for key, value in body.items() if key not in READ}
    settings = with_lists(settings, served.n_vocab, served.n_adapters)
    settings |= {"stop": read_stops(body), "n_cmpl": read_n(body, served.n_slots)}
    budget = body.get("reasoning_budget_tokens", body.get("thinking_budget_tokens", -1))
    settings["reasoning_budget_tokens"] = served.chats.budget if budget == -1 else budget
    settings.setdefault("reasoning_budget_message", served.chats.budget_message)  # nothing ends thoughts without one
    wanted = body.get("logprobs")
    if isinstance(wanted, bool):
        del settings["logprobs"]
    if wanted is True:
        n = body.get("top_logprobs", N_ALTERNATIVES)
        require(isinstance(n, int) and not isinstance(n, bool), "'top_logprobs' is no whole number")
        settings["n_probs"] = max(1, n)
    else:
        require("top_logprobs" not in body, "'top_logprobs' needs 'logprobs': set it to true")
    return settings
