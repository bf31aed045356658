"""Rows of pictures in a text memory: what is evaluated, what is kept, and where a text may be cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from llama_eagle.errors import InputError
from llama_eagle.sessions import text_memory
from llama_eagle.sessions.checkpoints import CheckpointStore
from llama_eagle.sessions.session import Listener
from llama_eagle.sessions.text_memory import TextMemory
from llama_eagle.vision.encoder import Frame
from llama_eagle.vision.in_text import FIRST_ID, PicturesInText, cut_before

pytestmark = pytest.mark.native

N_VOCAB, N_CTX, N_PIECE = 100, 24, 4
P, Q = FIRST_ID, FIRST_ID - 1  # a picture of three rows, one of two
TEXT = [1, 2, 3, 4, 5, P, P, P, 6, 7, Q, Q, P, P, P, 8]
EVALUATED: list[Any] = [[1, 2, 3, 4], [5], "P", [6, 7], "Q", "P", [8]]


class Session:
    """A session that notes what it evaluates. Its memory can be cut anywhere."""

    listener = Listener()
    n_ctx, n_piece, n_draft_max, longer_text = N_CTX, N_PIECE, 0, ""

    def __init__(self) -> None:
        self.n_past = 0
        self.evaluated: list[Any] = []

    def eval(self, tokens: list[int]) -> None:
        self.evaluated.append(tokens)
        self.n_past += len(tokens)

    def eval_rows(self, rows: Any) -> None:
        self.evaluated.append(rows.name)
        self.n_past += rows.n

    def settle(self) -> bool:
        return True

    def trim(self, n_tokens: int) -> bool:
        self.n_past = n_tokens
        return True

    def reset(self) -> None:
        self.n_past = 0


def make_memory() -> TextMemory:
    def encode(picture: Any) -> Any:
        return SimpleNamespace(name=picture.key, n={"P": 3, "Q": 2}[picture.key])

    def frame(picture: Any) -> Frame:
        return Frame((), 1, {"P": 3, "Q": 2}[picture.key], ())

    encoder: Any = SimpleNamespace(frame=frame, encode=encode)
    pictures = PicturesInText(encoder)
    for key, at in (("P", P), ("Q", Q)):
        picture: Any = SimpleNamespace(key=key, data=b"")
        assert set(pictures.ids(picture)) == {at}
    session: Any = Session()
    return TextMemory(session, N_VOCAB, CheckpointStore(0), pictures=pictures)


def test_pieces_and_pictures_are_evaluated_one_after_the_other() -> None:
    memory = make_memory()
    done: list[float] = []
    memory.on_progress = done.append
    assert memory.set_tokens(TEXT) == len(TEXT)
    assert memory.session.evaluated == EVALUATED
    assert memory.known.tolist() == TEXT
    assert memory.is_live and not memory.needs_eval(())
    work = text_memory._work
    assert done == [work(0, n) / work(0, len(TEXT)) for n in (4, 5, 8, 10, 12, 15, 16)]
    assert memory.pictures is not None and memory.pictures.n_encoded == 3


# The length of a beginning -> what is left of it: no picture is cut.
WHOLE = {0: 0, 4: 4, 5: 5, 6: 5, 7: 5, 8: 8, 9: 9, 10: 10, 11: 10, 12: 12, 13: 12, 14: 12, 15: 15, 16: 16}


@pytest.mark.parametrize("n", WHOLE)
def test_texts_are_cut_before_pictures(n: int) -> None:
    memory = make_memory()
    assert cut_before(TEXT, n, memory.pictures) == WHOLE[n]
    assert cut_before(TEXT, n, None) == n
    memory.set_tokens(TEXT)
    memory.truncate(n)
    assert memory.known.tolist() == TEXT[: WHOLE[n]]
    assert memory.is_live == (n == len(TEXT))


def test_a_text_that_differs_after_a_picture_reuses_its_rows() -> None:
    memory = make_memory()
    memory.set_tokens(TEXT)
    memory.session.evaluated.clear()
    assert memory.set_tokens([*TEXT[:12], 9]) == 1
    assert memory.session.evaluated == [[9]]
    assert memory.set_tokens([*TEXT[:10], P, P, P]) == 3
    assert memory.session.evaluated == [[9], "P"]
    assert memory.set_tokens([*TEXT[:10], P, P, P]) == 0
    memory.truncate(13)
    memory.extend([P, P, P, 1])
    assert memory.known.tolist() == [*TEXT[:10], P, P, P, P, P, P, 1]


REFUSED = {
    "2 rows of a picture that has 3": [1, P, P, 2],
    "4 rows of a picture that has 3": [P, P, P, P],
    "picture that is no longer available": [1, FIRST_ID - 2],
    "7 of them for pictures, and the context has room for 24": [P, P, P, *[1] * 18, Q, Q, Q, Q],
    "25 tokens and the context has room for 24": [1] * 25,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_texts_that_are_refused_before_any_is_evaluated(reason: str) -> None:
    for call in ("set_tokens", "extend"):
        memory = make_memory()
        with pytest.raises(InputError, match=reason):
            getattr(memory, call)(REFUSED[reason])
        assert memory.session.evaluated == []


def test_two_of_one_picture_next_to_each_other() -> None:
    memory = make_memory()
    memory.set_tokens([P] * 6)
    assert memory.session.evaluated == ["P", "P"]
    assert [cut_before(np.array([P] * 6), n, memory.pictures) for n in range(7)] == [0, 0, 0, 3, 3, 3, 6]
