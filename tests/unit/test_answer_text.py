"""The text of an answer is the same wherever tokens cut its bytes, and ends at the first stop text."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_eagle.drop_in.answers.embeddings import _batches
from llama_eagle.drop_in.answers.logprobs import TokenLogProbs, joined
from llama_eagle.drop_in.replies import ARGUMENTS, CALL, CALLED, NamedCall, Part, RequiredCall
from llama_eagle.drop_in.text import AnswerText

BYTES = st.one_of(
    st.text(alphabet="ab é€🦊\ufffd", max_size=12).map(str.encode),
    st.lists(st.sampled_from([b"a", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\xff", b"th", b"e"]), max_size=8).map(
        b"".join
    ),
)
STOPS = st.lists(st.text(alphabet="aeth é€", min_size=1, max_size=3), max_size=3)


def ended(text: str, stops: list[str]) -> str:
    """`text` before the stop text that is complete first."""
    for n in range(len(text) + 1):
        found = [n - len(stop) for stop in stops if text[:n].endswith(stop)]
        if found:
            return text[: min(found)]
    return text


@given(data=BYTES, stops=STOPS, cuts=st.data())
def test_pieces_joined_are_the_text_before_the_first_stop(data: bytes, stops: list[str], cuts: st.DataObject) -> None:
    answer, told, n = AnswerText(stops), "", 0
    while n < len(data) and not answer.is_met:
        n = cuts.draw(st.integers(n + 1, len(data)))
        told += answer.push(data[:n])
    assert told + answer.finish() == ended(data.decode("utf-8", "ignore"), stops)


def test_the_first_stop_in_the_text_counts_not_the_first_in_the_list() -> None:
    for text, stops, expected in ((b"in the end", ["e", "th"], "in "), (b"x--y", ["-y", "--"], "x")):
        answer = AnswerText(stops)
        assert answer.push(text) + answer.finish() == expected


def test_a_replacement_at_the_end_waits_for_the_rest_of_its_character() -> None:
    answer = AnswerText([], has_replacements=True)
    pieces = [answer.push(text.encode()) for text in ("a\ufffd", "a\ufffd", "aé", "aé\ufffd")]
    assert [*pieces, answer.finish()] == ["a", "", "é", "", "\ufffd"]


@given(cuts=st.data())
def test_a_named_call_in_pieces(cuts: st.DataObject) -> None:
    text = '{"a": [1, "é"]}'
    n_given = cuts.draw(st.integers(0, len(text)))
    call, parts, n = NamedCall("paint"), [], 0
    while n < n_given:
        end = cuts.draw(st.integers(n + 1, n_given))
        parts += call.read(text[n:end])
        n = end
    parts += call.finish()
    pieces = [part for part in parts if part.kind == ARGUMENTS]
    assert [part.name for part in pieces if part.name] == ["paint"]
    assert pieces[0].name == "paint"
    assert "".join(part.text for part in pieces) == text[:n_given]
    assert (Part(CALLED, "") in parts) == (n_given == len(text))


def test_a_required_call_has_the_arguments_that_were_written() -> None:
    """Also numbers that Python reads as infinite."""
    call, arguments = RequiredCall(), '{"a": 1e999, "b": [{"c": "}\\""}]}'
    call.read('{"name": "p\\"t", "arguments": ' + arguments + "}")
    assert call.finish() == [Part(CALL, arguments, 'p"t')]


@pytest.mark.parametrize("has_bos", [False, True])
def test_the_first_token_of_an_echo_has_no_log_probability(has_bos: bool) -> None:
    """As in OpenAI's API, also behind a BOS, which is not shown."""
    llm = Mock(_scores=np.zeros((4, 8), np.float32), token_bos=lambda: 1)
    llm.detokenize = lambda tokens, prev_tokens: bytes(97 + token for token in tokens)
    found = joined(TokenLogProbs(llm, 2, 0).of_prompt([1] * has_bos + [3, 4, 5]))
    assert (found["tokens"], found["text_offset"]) == (["d", "e", "f"], [0, 1, 2])
    assert found["token_logprobs"] == [None, *[pytest.approx(-math.log(8))] * 2]
    assert found["top_logprobs"][0] is None and all(found["top_logprobs"][1:])


def test_texts_of_a_list_share_batches() -> None:
    """As many as there are sequences, and as long as a batch."""
    llm: Any = Mock(n_batch=10, context_params=Mock(n_seq_max=3))
    rows = [[0] * n for n in (1, 1, 1, 1, 6, 3, 5, 5, 10, 1)]
    assert [[len(row) for row in group] for group in _batches(llm, rows)] == [[1, 1, 1], [1, 6, 3], [5, 5], [10], [1]]
