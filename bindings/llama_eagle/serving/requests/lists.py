"""Lists in requests whose invalid entries the child ignores: logit_bias, samplers and lora. All raise `Refusal`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llama_eagle.serving.api_errors import require

Body = Mapping[str, Any]
MAX_FLOAT = (2 - 2**-23) * 2.0**127  # of 32 bits
SAMPLERS = (
    "adaptive_p", "dry", "infill", "min_p", "penalties", "temperature", "top_k", "top_n_sigma", "top_p", "typ_p", "xtc",
)  # fmt: skip
NAMES = {"nucleus", "temp", "typ", *(name.replace("_", mark) for name in SAMPLERS for mark in ("_", "-", ""))}
LETTERS = frozenset("adeikmpstxy")  # of a text in place of a list: one for each sampler
_ID = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+")  # what the child reads as an id


def with_lists(body: Body, n_vocab: int, n_adapters: int) -> dict[str, Any]:
    """Check the lists of a body without nulls, and return it with the scales of all adapters."""
    if "logit_bias" in body:
        require_bias(body["logit_bias"], n_vocab)
    if "samplers" in body:
        require_samplers(body["samplers"])
    if "lora" not in body:
        return {**body}
    require_adapters(body["lora"], n_adapters)
    scales = dict.fromkeys(range(n_adapters), 0.0) | {int(entry["id"]): entry["scale"] for entry in body["lora"]}
    return {**body, "lora": [{"id": number, "scale": scale} for number, scale in scales.items()]}


def require_bias(given: Any, n_vocab: int) -> None:
    """Check the bias of tokens, which are ids or texts: an object, or a list of pairs."""
    require(isinstance(given, dict | list), "'logit_bias' is neither an object nor a list")
    is_object = isinstance(given, dict)
    for pair in given.items() if is_object else given:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        require(is_pair, f"'logit_bias': {_shown(pair)} is no pair")
        token, bias = pair
        is_token = _is_key(token, n_vocab) if is_object else _is_token(token, n_vocab)
        ids = f"a token id from 0 to {n_vocab - 1}"
        require(is_token, f"'logit_bias': {_shown(token)} is neither a text nor {ids}")
        is_bias = bias is False or _is_float(bias)
        require(is_bias, f"'logit_bias': {_shown(bias)} is neither a number nor false")


def require_samplers(given: Any) -> None:
    """Check names of samplers. Clients send those of other versions of llama.cpp: one that is known suffices."""
    require(isinstance(given, list | str), "'samplers' is neither a list nor a text")
    if isinstance(given, str):
        is_known = not LETTERS.isdisjoint(given)
    else:
        for name in given:
            require(isinstance(name, str), f"'samplers': {_shown(name)} is no name")
        is_known = any(name.lower() in NAMES for name in given)
    require(is_known or not given, "'samplers' names no sampler of this server")


def require_adapters(given: Any, n_adapters: int) -> None:
    """Check a list of {"id", "scale"}."""
    require(isinstance(given, list), "'lora' is no list")
    for entry in given:
        found = entry if isinstance(entry, dict) else {}
        of_server = f"this server's {n_adapters} adapters (--lora)"
        is_id = _is_id(found.get("id"), n_adapters)
        require(is_id, f"'lora': the id in {_shown(entry)} is none of {of_server}")
        require(_is_float(found.get("scale")), f"'lora': the scale in {_shown(entry)} is no number")


def _is_id(value: Any, n: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < n


def _is_token(value: Any, n_vocab: int) -> bool:
    return value != "" if isinstance(value, str) else _is_id(value, n_vocab)


def _is_key(key: str, n_vocab: int) -> bool:
    """Return True for a key of an object: the child reads one that is a number as an id, up to a NUL."""
    text = key.partition("\0")[0]
    if not _ID.fullmatch(text):
        return text != ""
    return len(text) < 40 and 0 <= int(text) < n_vocab


def _is_float(value: Any) -> bool:
    """Return True for a number that fits into 32 bits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT


def _shown(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.80}"
