"""Checks of a request's parameters that the child would ignore or misread. All raise `Refusal`.

Ranges and types of the settings of an answer (samplers, limits, ...) are checked by the child, except those in
llama_server/raw_settings.py and lists.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llama_eagle.serving.api_errors import Refusal, require
from llama_eagle.serving.requests.json_body import without_nulls

Body = Mapping[str, Any]
SWITCHES = ("stream", "parallel_tool_calls", "add_generation_prompt", "echo", "return_tokens")
INTERNAL = ("chat_format", "chat_parser")  # of the child: a parser could refer to itself
TOKEN, WORD = 0, 1  # types of triggers; patterns could take exponential time after each token


def is_object(body: Body, key: str) -> bool:
    return isinstance(body.get(key, {}), Mapping)


def require_unused(body: Body, keys: Iterable[str]) -> None:
    """Refuse parameters that are not supported, if their values request something."""
    for key in keys:
        is_idle = body.get(key) in (None, False, "", {}, [])
        require(is_idle, f"this server does not support '{key}': leave it out")


def require_tokens(value: Any, n_vocab: int) -> None:
    """Refuse integers that are no token ids. They may be in lists, and in the text of a prompt with media."""
    if isinstance(value, Mapping):
        require_tokens(value.get("prompt_string"), n_vocab)
    elif isinstance(value, list):
        for part in value:
            require_tokens(part, n_vocab)
    elif isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < n_vocab:
        ids = f"its {n_vocab} tokens have the ids 0 to {n_vocab - 1}"
        raise Refusal(400, f"{value} is no token id of this model: {ids}")


def require_types(body: Body) -> None:
    """Refuse settings of a wrong type, which the child would replace by their defaults. Nulls have been removed."""
    for key in SWITCHES:
        require(isinstance(body.get(key, False), bool), f"'{key}' is not true or false")
    for key in ("n", "n_cmpl"):
        n = body.get(key, 1)
        is_whole = isinstance(n, int | float) and not isinstance(n, bool) and n == n // 1
        require(is_whole, f"'{key}' is no whole number")
    options = body.get("stream_options", {})
    require(isinstance(options, Mapping), "'stream_options' is no object")
    has_usage = options.get("include_usage")
    require(has_usage is None or isinstance(has_usage, bool), "'stream_options.include_usage' is not true or false")


def require_constraints(body: Body) -> None:
    """Check the constraints of an answer: their types, and that a grammar is the only one. Nulls have been removed."""
    for key in INTERNAL:
        require(key not in body, f"'{key}' is set by the server: leave it out")
    triggers = body.get("grammar_triggers")
    for trigger in triggers if isinstance(triggers, list) else ():
        kind = trigger.get("type") if isinstance(trigger, Mapping) else None
        is_known = kind in (TOKEN, WORD) and not isinstance(kind, bool)
        require(is_known, "'grammar_triggers' are tokens (type 0) and words (type 1)")
    require(isinstance(body.get("grammar", ""), str), "'grammar' is no text")
    read_stops(body)
    require(is_object(body, "chat_template_kwargs"), "'chat_template_kwargs' is no object")
    has_schema = "json_schema" in body or _has_format(body)
    require(not has_schema or not body.get("grammar"), "'grammar' and a JSON schema exclude each other: leave one out")


def _has_format(body: Body) -> bool:
    """Return True for a response format that is JSON."""
    require(is_object(body, "response_format"), "'response_format' is no object")
    given = without_nulls(body.get("response_format", {}))
    kind = given.get("type", "")
    require(isinstance(kind, str), "'response_format.type' is no text")
    require(is_object(given, "schema"), "'response_format.schema' is no object")
    require(is_object(given, "json_schema"), "'response_format.json_schema' is no object")
    wrapped = without_nulls(given.get("json_schema", {}))
    require(is_object(wrapped, "schema"), "'response_format.json_schema.schema' is no object")
    is_misplaced = kind == "json_schema" and "schema" in given and "json_schema" not in given
    require(not is_misplaced, "'response_format.schema' belongs into 'json_schema'")
    return kind in ("json_object", "json_schema")


def read_n(body: Body, n_slots: int) -> int:
    """Return the number of choices, which are answered at the same time. Its type has been checked."""
    key = "n_cmpl" if "n_cmpl" in body else "n"
    n = int(body.get(key, 1))
    require(1 <= n <= n_slots, f"'{key}' is {n}: this server answers 1 to {n_slots} at the same time (--parallel)")
    return n


def read_stops(body: Body) -> list[str]:
    """Return the texts that end an answer. Empty ones end none."""
    given = body.get("stop", [])
    require(isinstance(given, str | list), "'stop' is neither a text nor a list")
    stops = [given] if isinstance(given, str) else given
    require(all(isinstance(stop, str) for stop in stops), "'stop' has a part that is no text")
    return [stop for stop in stops if stop]
