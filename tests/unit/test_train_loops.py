"""Loops in the target's answers end the request, and the answer keeps the passage once."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from llama_eagle.train.data.loops import CHECK_EVERY, answer_without_loop, loop_start

PASSAGE = "The capital of France is Paris, which is also its largest city and its seat of government. "
PROSE = "".join(f"Sentence {n} of this text mentions the number {n * n}. " for n in range(100))


@pytest.mark.parametrize("text", ["", "a", PASSAGE, PASSAGE * 2, PROSE, PROSE * 2, "x" * 60])
def test_no_loop(text: str) -> None:
    assert loop_start(text) is None


@pytest.mark.parametrize("text, start", [(PASSAGE * 3, len(PASSAGE)), ("Yes. " + "no " * 200, 7), ("-" * 200, 1)])
def test_a_loop_begins_at_its_first_repetition(text: str, start: int) -> None:
    found = loop_start(text)
    assert found is not None and start <= found <= start + len(PASSAGE)
    assert loop_start(text[:found]) is None


def stream(pieces: list[str], key: str, sent: list[int]) -> Generator[dict[str, Any], None, None]:
    for n, piece in enumerate(pieces):
        sent.append(n)
        reason = "stop" if n + 1 == len(pieces) else None
        text = {"text": piece} if key == "text" else {"delta": {key: piece, "role": "assistant"}}
        yield {"choices": [{**text, "finish_reason": reason}]}
    yield {"choices": [], "usage": {}}


@pytest.mark.parametrize("key", ["text", "content", "reasoning_content"])
def test_an_answer_is_cut_and_its_request_ends(key: str) -> None:
    sent: list[int] = []
    answer = answer_without_loop(stream(["Well. ", *[PASSAGE] * 1000], key, sent))
    choice = answer["choices"][0]
    text = choice["text"] if key == "text" else choice["message"][key]
    assert text.startswith("Well. " + PASSAGE[:40]) and len(text) < 3 * len(PASSAGE)
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == len(sent) == CHECK_EVERY


def test_another_answer_is_whole() -> None:
    pieces = [PROSE[i : i + 3] for i in range(0, len(PROSE), 3)]
    answer = answer_without_loop(stream(pieces, "content", []))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": PROSE}
    assert answer["choices"][0]["finish_reason"] == "stop"
    empty = answer_without_loop(stream([], "content", []))["choices"][0]["message"]
    assert empty == {"role": "assistant", "content": ""}
    thinking = answer_without_loop(stream(["hm"], "reasoning_content", []))["choices"][0]["message"]
    assert thinking == {"role": "assistant", "content": "", "reasoning_content": "hm"}
