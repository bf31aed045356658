"""ollama's API without a model: requests as those of chats, and pieces of an answer as lines."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from fixtures.json_places import VALUES, changed
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.ollama import bodies
from llama_eagle.serving.ollama.replies import Reply, chat_line, generate_line
from llama_eagle.serving.ollama.routes import joined
from llama_eagle.serving.pieces import CallPiece, End, Piece

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
CALL = {"function": {"name": "a", "arguments": {"x": 1}}}


def test_results_of_tools() -> None:
    """Results belong to the call of their id, else to the first one without a result."""
    messages = [
        {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "mine"}], "thinking": "T"},
        {"role": "tool", "tool_call_id": "mine", "content": "2"},
        {"role": "tool", "tool_name": "a", "content": "1"},
    ]
    asked, second, first = bodies.chat({"messages": messages})["messages"]
    assert asked["content"] == "" and asked["reasoning_content"] == "T"
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert second["tool_call_id"] == "mine" and first["name"] == "a"
    assert first["tool_call_id"] == asked["tool_calls"][0]["id"]


def test_images() -> None:
    (message,) = bodies.chat({"messages": [{"role": "user", "content": "", "images": [PNG]}]})["messages"]
    assert message["content"] == [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]


def test_raw_prompts_and_gaps() -> None:
    """They are requests of the child's raw API, so their settings have its names."""
    given = {
        "prompt": "a",
        "options": {"num_predict": 5, "top_k": 3},
        "logprobs": True,
        "format": "json",
        "think": True,
    }
    settings = {"n_predict": 5, "top_k": 3, "n_probs": 1, "json_schema": {}}
    assert bodies.completion(given) == {"prompt": "a", **settings}
    assert bodies.completion({**given, "suffix": "b"}) == {"input_prefix": "a", "input_suffix": "b", **settings}


WHOLE: dict[str, Any] = {
    "model": "m", "prompt": "p", "system": "s", "suffix": "x", "input": ["a"], "think": True, "logprobs": True,
    "top_logprobs": 2, "options": {"temperature": 1, "num_predict": 5, "stop": ["a"]}, "format": {"type": "object"},
    "tools": [{"type": "function", "function": {"name": "f"}}], "images": [],
    "messages": [
        {"role": "system", "content": "a"}, {"role": "user", "content": "b", "images": [PNG]},
        {"role": "assistant", "thinking": "t", "tool_calls": [{"id": "x", **CALL}]},
        {"role": "tool", "tool_name": "a", "content": "r", "tool_call_id": "x"},
    ],
}  # fmt: skip
READERS = (bodies.chat, bodies.generated_chat, bodies.completion, bodies.inputs, bodies.model_name)


@pytest.mark.parametrize("read", READERS)
def test_any_value_in_any_place_is_read_or_refused(read: Callable[[dict[str, Any]], Any]) -> None:
    n_read = 0
    for body in changed(WHOLE, VALUES):
        with contextlib.suppress(Refusal):
            json.dumps(read(bodies.read_body(json.dumps(body).encode())))
            n_read += 1
    assert n_read > 300


PIECES = [
    Piece(reasoning="I "), Piece(reasoning="look.", content="Now"), Piece(logprobs=[{"token": "<", "logprob": -1}]),
    Piece(content=".", logprobs=[{"token": ".", "logprob": -2, "id": 5, "top_logprobs": []}]),
    Piece(calls=(CallPiece(0, '{"x"', id="a", name="f"),)), Piece(calls=(CallPiece(0, ": 1}"),)),
    Piece(n_prompt=3, end=End("tool_calls", n_tokens=9, timings={"prompt_ms": 1.5, "predicted_ms": 2})),
]  # fmt: skip
SCORES = [{"token": "<", "logprob": -1}, {"token": ".", "logprob": -2}]


def test_lines_of_a_chat() -> None:
    """Each says something; all calls are in one line, and a token whose text came later is in the next line."""
    reply = Reply("m", chat_line)
    *lines, last = [*(line for piece in PIECES for line in reply.take(piece)), *reply.end()]
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "I "},
        {"role": "assistant", "content": "", "thinking": "look."},
        {"role": "assistant", "content": "Now"}, {"role": "assistant", "content": "."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]  # fmt: skip
    assert [line.get("logprobs") for line in lines] == [None, None, None, SCORES, None]
    assert not any(line["done"] for line in lines)
    assert last["done"] and last["message"] == {"role": "assistant", "content": ""} and last["done_reason"] == "stop"
    assert (last["prompt_eval_count"], last["eval_count"]) == (3, 9)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (1_500_000, 2_000_000)
    whole = Reply("m", chat_line).whole(PIECES)
    assert whole["message"] == {"role": "assistant", "content": "Now.", "thinking": "I look.", "tool_calls": [call]}
    assert whole["logprobs"] == SCORES and {*whole} == {*last, "logprobs"}


def test_a_generated_text_that_a_limit_has_cut() -> None:
    whole = Reply("m", generate_line).whole([Piece(content="a"), Piece(end=End("length", n_tokens=1))])
    assert (whole["response"], whole["done_reason"], whole["done"]) == ("a", "length", True)
    assert "logprobs" not in whole and "prompt_eval_duration" not in whole  # an unknown number is absent


def test_pieces_that_arrive_together_are_one_line() -> None:
    pieces = [
        Piece(content="a", logprobs=[{"token": "a"}]),
        Piece(content="b", calls=(CallPiece(0),)),
        Piece(end=End("stop")),
    ]
    found = joined(pieces)
    assert (found.content, found.logprobs, len(found.calls), found.end) == ("ab", [{"token": "a"}], 1, End("stop"))
