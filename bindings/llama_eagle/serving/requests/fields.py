"""Fields of requests that several APIs have, read from JSON that clients may have written wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_eagle.serving.api_errors import require
from llama_eagle.sessions.chats.calls import completed, read_json

Body = dict[str, Any]
BILLING = "x-anthropic-billing-header:"
FORMATS = ("text", "json_object", "json_schema")


def text_at(value: Any, key: str) -> str:
    """Return the text that an object has under a key; "" for anything else."""
    text = value.get(key) if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else ""


def object_at(value: Any, key: str) -> Body:
    """Return the object that an object has under a key; {} for anything else."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, dict) else {}


def without_billing(prompt: Any) -> Any:
    """Return a system prompt without Claude Code's line about billing.

    Its version and hash change with each session: everything behind it would be evaluated again.
    """
    if isinstance(prompt, str):
        return prompt.partition("\n")[2] if prompt.startswith(BILLING) else prompt
    if not isinstance(prompt, list):
        return prompt
    parts = [{**part, "text": without_billing(part["text"])} if text_at(part, "text") else part for part in prompt]
    return [part for part in parts if not isinstance(part, dict) or part.get("text") != ""]


def bare_id(given: str) -> str:
    """Return the id of a call as the model wrote it, without the prefix of an API."""
    for prefix in ("call_", "toolu_"):
        if given.startswith(prefix) and given != prefix:
            return given.removeprefix(prefix)
    return given


def arguments_of(text: str) -> Body:
    """Return the arguments of a call that an answer has written; those of one that was cut are completed."""
    try:
        found = read_json(text)
    except ValueError:
        return completed(text)
    return found if isinstance(found, dict) else {}


def response_format(given: Any, name: str) -> Body:
    """Return a chat's `response_format` for {"type": "json_schema", "schema": ...}; {} for a text.

    name: of the field, for errors. Raises `Refusal`.
    """
    kind = text_at(given, "type")
    require(kind in FORMATS, f"{name}.type '{kind}' is not text, json_object or json_schema")
    if kind != "json_schema":
        return {"response_format": {"type": kind}} if kind == "json_object" else {}
    require(given.get("schema") is not None, f"{name} has no schema")
    return {"response_format": {"type": kind, "json_schema": {"schema": given["schema"]}}}
