"""The long ones: random chats and JSON schemas with and without the draft, and ten thousand rounds."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.tiny_gguf import Variant, write_draft, write_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.native, pytest.mark.slow]

VARIANT = Variant(sharpness=8.0, mix=0.4)
Pair = tuple[Any, Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The same model without a draft and with one."""
    from llama_eagle import EagleLlama

    folder = tmp_path_factory.mktemp("models")
    target, draft = write_target(folder / "t.gguf", VARIANT), write_draft(folder / "d.gguf", VARIANT)
    common: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "verbose": False}
    plain = EagleLlama(target, **common)
    drafting = EagleLlama(target, draft_path=draft, n_draft=3, checkpoint_every=64, **common)
    yield plain, drafting
    plain.close()
    drafting.close()


sampling = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.5]),
        "top_k": st.sampled_from([0, 5, 40]),
        "top_p": st.sampled_from([0.5, 0.95, 1.0]),
        "repeat_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "mirostat_mode": st.sampled_from([0, 0, 0, 1, 2]),
        "seed": st.integers(0, 1000),
        "max_tokens": st.integers(1, 60),
    }
)
turn = st.tuples(
    st.text(alphabet="abc xyzéß.\n", max_size=40),
    sampling,
    st.sampled_from([0, 1, 2, 3, 7, 16, "auto"]),
    st.integers(0, 9),
)


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(turn, min_size=1, max_size=6))
def test_random_chats(pair: Pair, turns: list[tuple[str, dict[str, Any], Any, int]]) -> None:
    """A thousand chats of one to six turns: continued, or edited from an earlier turn on."""
    plain, drafting = pair
    messages: list[dict[str, str]] = []
    for text, options, n_draft, back in turns:
        if back < len(messages) and back % 2 == 0:
            messages = messages[:back]
        messages.append({"role": "user", "content": text})
        drafting.set_n_draft(n_draft)
        expected = plain.create_chat_completion(messages, **options)["choices"]
        assert drafting.create_chat_completion(messages, **options)["choices"] == expected
        messages.append({"role": "assistant", "content": expected[0]["message"]["content"]})


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kinds = ["boolean", "null", "enum", "integer"] + (["array", "object"] if depth else [])
    kind = rng.choice(kinds)
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", 1, 2.5, True, None], rng.randint(1, 4))}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": 0, "maxItems": rng.randint(1, 3)}
    if kind == "object":
        properties = {f"k{i}": random_schema(rng, depth - 1) for i in range(rng.randint(1, 3))}
        return {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": kind}


def matches(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return any(value == allowed and type(value) is type(allowed) for allowed in schema["enum"])
    if schema["type"] == "array":
        return isinstance(value, list) and all(matches(item, schema["items"]) for item in value)
    if schema["type"] == "object":
        wanted = schema["properties"]
        return (
            isinstance(value, dict) and set(value) == set(wanted) and all(matches(value[k], wanted[k]) for k in wanted)
        )
    kinds: dict[str, Any] = {"boolean": bool, "null": type(None), "integer": int}
    return isinstance(value, kinds[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))


def test_json_schemas(pair: Pair) -> None:
    plain, drafting = pair
    drafting.set_n_draft(4)
    rng = random.Random(3)
    finished = 0
    for seed in range(200):
        schema = {"type": "object", "properties": {"v": random_schema(rng)}, "required": ["v"]}
        options = {
            "response_format": {"type": "json_object", "schema": schema}, "temperature": 1.5, "seed": seed,
            "max_tokens": 300,
        }  # fmt: skip
        messages = [{"role": "user", "content": "json"}]
        expected = plain.create_chat_completion(messages, **options)["choices"]
        assert drafting.create_chat_completion(messages, **options)["choices"] == expected
        if expected[0]["finish_reason"] == "stop":
            finished += 1
            assert matches(json.loads(expected[0]["message"]["content"]), schema)
    assert finished > 150


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def test_memory_does_not_grow(pair: Pair) -> None:
    """Ten thousand rounds: the slope of the second half, after caches have filled."""
    drafting = pair[1]
    drafting.set_n_draft(3)
    points: list[tuple[int, int]] = []
    rounds = 0
    while rounds < 10_000:
        for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": rounds}):
            drafting.create_completion(f"abc {rounds}", max_tokens=400, **options)
            rounds += drafting.speculative_stats.rounds
        gc.collect()
        points.append((rounds, resident_kib()))
    half = [point for point in points if point[0] > rounds // 2]
    growth, passed = half[-1][1] - half[0][1], half[-1][0] - half[0][0]
    assert growth * 1024 / passed < 100  # bytes a round
