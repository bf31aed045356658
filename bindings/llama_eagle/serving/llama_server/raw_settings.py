"""Settings of requests in the form that the child's `/completion` reads: whole numbers, seeds and drafts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llama_eagle.serving.api_errors import require

Body = Mapping[str, Any]

DRAFTS = "speculative"  # {"n_max", "n_min", "p_min"} or "none"; or these keys with the prefix "speculative."
OF_DRAFTS = ("n_max", "n_min", "p_min", "type")
RANDOM = 2**32 - 1  # a seed
BITS = {  # of the whole numbers that the child would wrap
    **dict.fromkeys((
        "dry_allowed_length", "dry_penalty_last_n", "id_slot", "logprobs", "max_completion_tokens", "max_tokens",
        "min_keep", "mirostat", "n", "n_cache_reuse", "n_cmpl", "n_discard", "n_indent", "n_keep", "n_predict",
        "n_probs", "n_prompt_probs", "reasoning_budget_tokens", "repeat_last_n", "speculative.n_max",
        "speculative.n_min", "sse_ping_interval", "top_k",
    ), 32),
    "t_max_predict_ms": 64,
}  # fmt: skip
GOLDEN = 0x9E3779B97F4A7C15  # multiplier of Fibonacci hashing


def for_child(body: Body) -> dict[str, Any]:
    """Return a raw request with flat draft settings and a seed of 32 bits. Raises `Refusal`."""
    flat = with_flat_drafts(body)
    for key, n_bits in BITS.items():
        require_whole(key, flat.get(key), n_bits)
    return {**flat, "seed": short_seed(flat["seed"])} if flat.get("seed") is not None else flat


def require_whole(key: str, value: Any, n_bits: int) -> None:
    """Refuse a number that is no integer of n_bits. The child refuses other types itself."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    limit = 2 ** (n_bits - 1)
    fits = not is_number or (value == value // 1 and -limit <= value < limit)
    require(fits, f"Field '{key}': {json.dumps(value):.50} is no integer of {n_bits} bits")


def short_seed(seed: Any) -> Any:
    """Return a seed of 32 bits for one of up to 64, which OpenAI's API allows. -1 is a random one."""
    if isinstance(seed, bool) or not isinstance(seed, int | float):
        return seed  # the child refuses it
    require(seed == seed // 1 and -(2**63) <= seed < 2**63, f"'seed': {seed} is no integer of 64 bits")
    seed = int(seed)
    if -1 <= seed <= RANDOM:
        return seed % 2**32
    found = (seed * GOLDEN % 2**64) >> 32
    return 0 if found == RANDOM else found


def with_flat_drafts(body: Body) -> dict[str, Any]:
    """Return a body with draft settings under dotted keys; "none" is the only type. Raises `Refusal`."""
    flat = {key: value for key, value in body.items() if key != DRAFTS}
    given = body.get(DRAFTS)
    if isinstance(given, Mapping):
        flat |= {f"{DRAFTS}.{key}": value for key, value in given.items()}
    elif given is not None:
        flat[f"{DRAFTS}.type"] = given
    for key in flat:
        prefix, _, name = key.partition(".")
        is_known = prefix != DRAFTS or name in OF_DRAFTS
        require(is_known, f"{key} cannot be set by a request: n_max, n_min, p_min and type can")
    least, most = (flat.get(f"{DRAFTS}.{name}") for name in ("n_min", "n_max"))
    if isinstance(least, int | float) and isinstance(most, int | float):
        require(least <= most, f"{DRAFTS}.n_min is above n_max")
    return flat
