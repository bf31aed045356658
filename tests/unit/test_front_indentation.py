"""`n_indent`: the same end for whole and streamed answers, wherever the child notices it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from llama_eagle.serving.llama_server.indentation import Indentation

Event = dict[str, Any]
TEXTS = {  # text of an answer -> what is left of it with an indentation of 2
    "a b": "a b", "a\n  b": "a\n  b", "a\n b": "a\n ", "a\nb": "a\n", "a\n\n  b": "a\n", "a\n\t\tb\nc": "a\n\t\tb\n",
    " a\n   ": " a\n   ", "a\n  b\n\t ": "a\n  b\n\t ", "\né": "\n", "": "",
}  # fmt: skip


def whole(text: str) -> Event:
    entries = [{"token": c, "bytes": list(c.encode())} for c in text]
    end = {"stop": True, "stop_type": "eos", "stopping_word": ""}
    found = Indentation(2).cut({"index": 0, "content": text, "completion_probabilities": entries, **end})
    assert found is not None
    return found


@pytest.mark.parametrize(("text", "kept"), TEXTS.items())
def test_the_end_of_an_answer(text: str, kept: str) -> None:
    found = whole(text)
    assert found["content"] == kept and found["stop_type"] == ("eos" if text == kept else "limit")
    assert "".join(entry["token"] for entry in found["completion_probabilities"]) == kept


def test_streams_of_several_choices() -> None:
    """In pieces of any size. Those behind the end are left out, except the last."""
    rng = random.Random(3)
    for _ in range(200):
        cutter, left = Indentation(2), [rng.choice([*TEXTS]) for _ in range(2)]
        expected, found = [TEXTS[text] for text in left], ["", ""]
        while any(left):
            i = rng.choice([i for i in (0, 1) if left[i]])
            n = rng.randint(1, 3)
            event = cutter.cut({"index": i, "content": left[i][:n], "stop": False})
            left[i] = left[i][n:]
            found[i] += event["content"] if event else ""
        assert found == expected
        for i in (0, 1):
            end = cutter.cut({"index": i, "content": "", "stop": True, "stop_type": "word", "stopping_word": "x"})
            assert end is not None and end["content"] == ""


def test_requests_without_it() -> None:
    for body in ({}, {"n_indent": 0}, {"n_indent": None}, {"n_indent": -1}, {"n_indent": "2"}):
        assert Indentation.of(body) is None
