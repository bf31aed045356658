"""A stream joined is the whole answer: any text, cut anywhere, for every API of `EagleLlama`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.llama_pairs import load, write_pairs

pytestmark = pytest.mark.native

ASKED = [{"role": "user", "content": "x"}]
PAINT = {
    "name": "paint",
    "parameters": {"type": "object", "properties": {"color": {"enum": ["rot", "grün"]}}, "required": ["color"]},
}
LETTERS = ["a", "b", "t", "th", "e", " ", "é", "€", "🦊", "\n", "日本"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=[None, "draft"])
def llm(files: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Every token is a byte: characters of several bytes are cut at every place."""
    with load(files, draft=request.param, n_draft=3, logits_all=True) as llm:
        yield llm


class Say:
    """A logits processor: the model says these bytes, and ends."""

    def __init__(self, llm: Any, text: bytes) -> None:
        self._tokens = [*text, llm.token_eos()]
        self._n_prompt: int | None = None

    def __call__(self, ids: Any, logits: Any) -> Any:
        self._n_prompt = len(ids) if self._n_prompt is None else self._n_prompt
        forced = np.full_like(logits, -np.inf)
        forced[self._tokens[min(len(ids) - self._n_prompt, len(self._tokens) - 1)]] = 0
        return forced


def said(llm: Any, text: bytes | None, call: str = "create_completion", **options: Any) -> Any:
    asked = {"messages": ASKED} if call == "create_chat_completion" else {"prompt": "abc"}
    forced = {} if text is None else {"logits_processor": [Say(llm, text)]}
    return getattr(llm, call)(**asked, temperature=0, **forced, **options)


def texts(rng: random.Random) -> bytes:
    data = bytearray("".join(rng.choices(LETTERS, k=rng.randint(0, 12))).encode())
    if data and rng.random() < 0.3:  # bytes that form no character
        data[rng.randrange(len(data))] = rng.choice([0xFF, 0xE2, 0x80])
    return bytes(data)


def test_completions(llm: Any) -> None:
    rng = random.Random(4)
    for _ in range(40):
        text = texts(rng)
        options: dict[str, Any] = {
            "max_tokens": rng.choice([1, 2, 3, 7, 60]),
            "stop": rng.choice([[], "é", ["e", "th"], ["\n", "日"], ["🦊x", "ab"]]),
            "echo": rng.random() < 0.3,
            "logprobs": rng.choice([None, 2]),
        }
        whole = said(llm, text, **options)["choices"][0]
        parts = [part["choices"][0] for part in said(llm, text, stream=True, **options)]
        assert "".join(part["text"] for part in parts) == whole["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [whole["finish_reason"]]
        if options["logprobs"]:
            for name, values in whole["logprobs"].items():
                assert [value for part in parts if part["logprobs"] for value in part["logprobs"][name]] == values
        answer = whole["text"].removeprefix("abc") if options["echo"] else whole["text"]
        cut = text[: options["max_tokens"]].decode("utf-8", "ignore")
        stops = [options["stop"]] if isinstance(options["stop"], str) else options["stop"]
        assert answer == cut[: min([cut.index(stop) for stop in stops if stop in cut], default=len(cut))]


def test_chats(llm: Any) -> None:
    rng = random.Random(5)
    for _ in range(20):
        text = texts(rng)
        options = {"max_tokens": rng.choice([1, 3, 60]), "stop": rng.choice([None, ["e", "th"]])}
        whole = said(llm, text, "create_chat_completion", **options)["choices"][0]
        deltas = [part["choices"][0] for part in said(llm, text, "create_chat_completion", stream=True, **options)]
        assert "".join(part["delta"].get("content") or "" for part in deltas) == (whole["message"]["content"] or "")
        assert deltas[-1]["finish_reason"] == whole["finish_reason"]


def test_limits_hold_inside_characters(llm: Any) -> None:
    for n in range(1, 9):
        answer = said(llm, "🦊🦊".encode(), max_tokens=n)
        assert answer["usage"]["completion_tokens"] == n
        assert answer["choices"][0]["text"] == "🦊" * (n // 4)


def test_processors_and_biases_work_together(llm: Any) -> None:
    def no_b(ids: Any, logits: Any) -> Any:
        logits[ord("b")] = -np.inf
        return logits

    bias = {ord("b"): 1e4, ord("q"): 1e3}
    answer = llm.create_completion("a", max_tokens=3, temperature=0, logits_processor=[no_b], logit_bias=bias)
    assert answer["choices"][0]["text"] == "qqq"


@pytest.mark.parametrize("way", ["tool_choice", "function_call"])
@pytest.mark.parametrize("n", [1, 9, 200])
def test_a_named_function(llm: Any, way: str, n: int) -> None:
    """Its name comes once; arguments that were cut by the limit are not called finished."""
    if way == "tool_choice":
        named = {"type": "function", "function": {"name": "paint"}}
        options: dict[str, Any] = {"tools": [{"type": "function", "function": PAINT}], "tool_choice": named}
    else:
        options = {"functions": [PAINT], "function_call": {"name": "paint"}}
    chat = "create_chat_completion"
    whole = said(llm, None, chat, max_tokens=n, **options)["choices"][0]
    chunks = [part["choices"][0] for part in said(llm, None, chat, max_tokens=n, stream=True, **options)]
    deltas = [call for part in chunks for call in part["delta"].get("tool_calls") or ()]
    assert [call["function"]["name"] for call in deltas if "name" in call["function"]] == ["paint"]
    assert [call["id"] for call in deltas if "id" in call] == [deltas[0]["id"]]
    arguments = "".join(call["function"]["arguments"] for call in deltas)
    assert arguments == whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert chunks[-1]["finish_reason"] == whole["finish_reason"]
    if n == 200:
        assert json.loads(arguments)["color"] in ("rot", "grün")
        assert whole["finish_reason"] == "tool_calls"
    else:
        assert whole["finish_reason"] == "length"
    assert whole["message"]["function_call"]["arguments"] == arguments


def test_a_named_function_of_the_parents_formats(files: dict[str, Path]) -> None:
    with load(files, chat_format="chatml-function-calling") as llm:
        named = {"type": "function", "function": {"name": "paint"}}
        options = {"tools": [{"type": "function", "function": PAINT}], "tool_choice": named}
        chat = "create_chat_completion"
        for n, stop, reason in ((3, [], "length"), (100, [], "tool_calls"), (100, ["color"], "stop")):
            given = options | {"max_tokens": n, "stop": stop}
            whole = said(llm, None, chat, **given)["choices"][0]
            assert whole["finish_reason"] == reason
            chunks = [part["choices"][0] for part in said(llm, None, chat, stream=True, **given)]
            calls = [call for part in chunks for call in part["delta"].get("tool_calls") or ()]
            assert [call["function"].get("name") for call in calls] == ["paint", *[None] * (len(calls) - 1)]
            assert chunks[-1]["finish_reason"] == reason


def test_streams_of_named_functions_keep_their_reasons(files: dict[str, Path]) -> None:
    """The same model gives another answer, which ends for another reason, before the last part of a stream is read."""
    with load(files, chat_format="chatml-function-calling") as llm:
        named = {"type": "function", "function": {"name": "paint"}}
        options = {"tools": [{"type": "function", "function": PAINT}], "tool_choice": named}
        kinds = {"length": {"max_tokens": 3}, "stop": {"max_tokens": 100, "stop": ["color"]}}
        for reason, other in (("length", "stop"), ("stop", "length")):
            given: list[dict[str, Any]] = [options | {"stream": True} | kinds[each] for each in (reason, other)]
            n = len(list(said(llm, None, "create_chat_completion", **given[0])))
            stream = said(llm, None, "create_chat_completion", **given[0])
            assert all(next(stream)["choices"][0]["finish_reason"] is None for _ in range(n - 1))
            found = list(said(llm, None, "create_chat_completion", **given[1]))
            assert found[-1]["choices"][0]["finish_reason"] == other
            assert next(stream)["choices"][0]["finish_reason"] == reason


def test_a_name_that_no_tool_has(llm: Any) -> None:
    with pytest.raises(ValueError, match="'draw', which is not in"):
        llm.create_chat_completion(
            ASKED,
            tools=[{"type": "function", "function": PAINT}],
            tool_choice={"type": "function", "function": {"name": "draw"}},
        )
