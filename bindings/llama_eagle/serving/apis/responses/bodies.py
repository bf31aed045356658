"""Requests of OpenAI's Responses API as requests of a chat."""

from __future__ import annotations

from typing import Any

from llama_eagle.serving.api_errors import require
from llama_eagle.serving.apis.responses import items as response_items
from llama_eagle.serving.apis.responses import tools as response_tools
from llama_eagle.serving.apis.responses.items import RecentItems
from llama_eagle.serving.requests.fields import Body, response_format, text_at
from llama_eagle.serving.requests.json_body import without_nulls

UNSUPPORTED = ("background", "conversation", "previous_response_id", "prompt", "context_management")
LOGPROBS = "message.output_text.logprobs"
NO_LOGPROBS = "answers of this API have no probabilities: leave {}, or use /v1/chat/completions"
OURS = (
    "error",
    "incomplete_details",
    "store",
    "background",
    "truncation",
    "service_tier",
)  # those of a request have no effect
OF_THIS_API = ("input", "instructions", "text", "reasoning", "max_output_tokens", "tools", "tool_choice")
IGNORED = ("top_logprobs", "n", "n_cmpl", "metadata")  # of chats, not of this API


def read(given: Any, recent: RecentItems) -> Body:
    """Return the request of a chat. Raises `Refusal`."""
    body = without_nulls(given)
    _check(body)
    chat = {key: value for key, value in body.items() if key not in (*OF_THIS_API, *IGNORED, *UNSUPPORTED)}
    if tools := response_tools.functions(body.get("tools", [])):
        chat["tools"] = tools
    if "tool_choice" in body:
        chat["tool_choice"] = response_tools.chosen(body["tool_choice"])
    if (form := body.get("text", {}).get("format")) is not None:
        chat |= response_format(form, "format")
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    if (effort := body.get("reasoning", {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    require("input" in body, "'input' is required")
    rules = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    return {**chat, "messages": [*rules, *response_items.messages(body["input"], recent)]}


def repeated(given: Body) -> Body:
    """Return the fields of a request that its response repeats, which clients require."""
    fields: Body = {
        "background": False, "error": None, "incomplete_details": None, "instructions": None,
        "max_output_tokens": None, "max_tool_calls": None, "metadata": {}, "parallel_tool_calls": True,
        "previous_response_id": None, "prompt_cache_key": None, "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None, "service_tier": "default", "store": False, "temperature": None,
        "text": {}, "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": None,
        "truncation": "disabled", "user": None,
    }  # fmt: skip
    fields |= {key: given[key] for key in fields if key not in OURS and given.get(key) is not None}
    fields["text"] = {"format": {"type": "text"}, **fields["text"]}
    return fields


def _check(body: Body) -> None:
    """Raise `Refusal` for fields that would change an answer, but are not supported."""
    for key in UNSUPPORTED:
        require(body.get(key) in (None, False, "", {}, []), f"this server does not support '{key}': leave it out")
    require(isinstance(body.get("instructions", ""), str), "'instructions' is no text")
    for key in ("reasoning", "text"):
        require(isinstance(body.get(key, {}), dict), f"'{key}' is no object")
    require(isinstance(body.get("reasoning", {}).get("effort") or "", str), "'reasoning.effort' is no text")
    truncation = text_at(body, "truncation")
    require(truncation in ("", "auto", "disabled"), f"'truncation' is '{truncation}', which is not auto or disabled")
    require(body.get("top_logprobs", 0) == 0, NO_LOGPROBS.format("out 'top_logprobs'"))
    require(isinstance(body.get("include", []), list), "'include' is no list")
    require(LOGPROBS not in body.get("include", []), NO_LOGPROBS.format(f"'{LOGPROBS}' out of 'include'"))
