"""Grammars of JSON schemas that the child receives: of raw requests, and of the arguments after `--`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import UsageError
from llama_eagle.files import BYTE_ORDER_MARK, decoded
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.llama_server.extra_args import normalized
from llama_eagle.sessions.schemas.grammars import schema_grammar

SCHEMA = "json_schema"
MAX_ARGUMENT = 100_000  # bytes; Linux allows 128 KiB


async def with_grammar(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a raw request with the grammar of its schema; an empty schema means any object. Raises `Refusal`."""
    import asyncio  # later than `serve` starts llama-server, whose arguments this module reads, too

    if body.get(SCHEMA) is None:
        return body
    try:
        schema = {"type": "object"} if body[SCHEMA] == {} else body[SCHEMA]
        grammar, unenforced = await asyncio.to_thread(schema_grammar, schema)
    except UsageError as error:
        raise Refusal(400, f"'{SCHEMA}': {error}") from None
    warn_unenforced(unenforced)
    # The type of a grammar that the end of the prompt belongs to, if the request says so ("generation_prompt").
    more = {"grammar": grammar, "grammar_type": "tool_calls"}
    return {key: value for key, value in body.items() if key != SCHEMA} | more


def with_grammars(extra: Sequence[str]) -> list[str]:
    """Return arguments of llama-server with grammars in place of schemas. Raises `UsageError`."""
    found = list(extra)
    for i, (argument, value) in enumerate(pairwise(extra)):
        name, path = normalized(argument), Path(value)
        if name in ("--json-schema", "-j"):
            found[i : i + 2] = "--grammar", _grammar_of(argument, value)
        elif name in ("--json-schema-file", "-jf") and path.is_file():
            found[i : i + 2] = "--grammar", _grammar_of(f"{argument} {value}", decoded(path.read_bytes(), value))
    return found


def _grammar_of(argument: str, text: str) -> str:
    try:
        grammar, unenforced = schema_grammar(json.loads(text.removeprefix(BYTE_ORDER_MARK)))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{argument}: no JSON ({error}). Correct it.") from None
    if len(grammar.encode()) > MAX_ARGUMENT:
        raise UsageError(f"{argument}: its grammar has more than {MAX_ARGUMENT} bytes. Send the schema with requests.")
    warn_unenforced(unenforced)
    return grammar


def warn_unenforced(names: Iterable[str]) -> None:
    for name in names:
        warn_once(f"schema: the grammar does not enforce {name}.")


@lru_cache(maxsize=1000)
def warn_once(text: str) -> None:
    console.warn(text)
