"""eagle_round.h: rounds through the C interface, and every way to misuse it."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_eagle.bench.round_context import REPLAY, SNAPSHOTS, RoundContext, RoundModel
from llama_eagle.native.calls import ERR_ARGUMENT, ERR_INCOMPATIBLE, ERR_STATE, library
from llama_eagle.synthetic.recurrent import Shape, write_recurrent

pytestmark = pytest.mark.native


class Info(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("is_open", ctypes.c_int32),
        ("n_rows", ctypes.c_int32),
        ("n_undoable", ctypes.c_int32),
        ("is_dirty", ctypes.c_int32),
    )


class Rounds:
    """The calls on one context; a status other than 0 is raised as (status, text)."""

    def __init__(self, context: RoundContext) -> None:
        self.context = context

    def call(self, name: str, *args: object) -> None:
        code = getattr(library(), name)(ctypes.c_void_p(self.context.handle), *args)
        if code:
            raise RoundError(code, library().eagle_last_error().decode())

    def begin(self, seq: int = 0) -> None:
        self.call("eagle_round_begin", ctypes.c_int32(seq))

    def commit(self, n_kept: int, seq: int = 0) -> None:
        self.call("eagle_round_commit", ctypes.c_int32(seq), ctypes.c_int32(n_kept))
        self.context.n_past[seq] -= self._surplus(seq)

    def rollback(self, seq: int = 0) -> None:
        self.call("eagle_round_rollback", ctypes.c_int32(seq))
        self.context.n_past[seq] -= self._surplus(seq)

    def pending(self, seq: int = 0) -> tuple[int, int, int, int]:
        info = Info(struct_size=ctypes.sizeof(Info))
        self.call("eagle_round_pending", ctypes.c_int32(seq), ctypes.byref(info))
        return info.is_open, info.n_rows, info.n_undoable, info.is_dirty

    def _surplus(self, seq: int) -> int:
        import llama_cpp

        return self.context.n_past[seq] - 1 - int(llama_cpp.llama_memory_seq_pos_max(self.context.memory, seq))


class RoundError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RoundModel:
    return RoundModel(write_recurrent(tmp_path_factory.mktemp("api") / "m.gguf", "qwen35", Shape(state=32)))


@pytest.fixture
def rounds(model: RoundModel) -> Iterator[Rounds]:
    context = model.context(n_seq_max=2)
    context.decode({0: [random.Random(0).randrange(90) for _ in range(20)]})
    yield Rounds(context)


def expect(code: int, text: str) -> pytest.RaisesExc[RoundError]:
    return pytest.raises(RoundError, match=f"^{code}: .*{text}")


def test_commit_keeps_the_first_rows(rounds: Rounds, model: RoundModel) -> None:
    other = model.context(n_seq_max=2)
    other.decode({0: [random.Random(0).randrange(90) for _ in range(20)]})
    rounds.begin()
    assert rounds.pending() == (1, 0, 5, 0)
    rounds.context.decode({0: [1, 2, 3, 4, 5]})
    assert rounds.pending() == (1, 5, 5, 0)
    rounds.commit(2)
    assert rounds.pending() == (0, 0, 2, 0)
    other.decode({0: [1, 2, 3, 4, 5]})
    assert other.trim(0, 22)
    assert rounds.context.decode({0: [7]}).tobytes() == other.decode({0: [7]}).tobytes()


def test_rollback_undoes_the_round(rounds: Rounds) -> None:
    before = rounds.context.save(0)
    rounds.begin()
    rounds.context.decode({0: [1, 2, 3]})
    rounds.rollback()
    assert rounds.context.n_past[0] == 20
    assert rounds.context.save(0) == before


def test_rounds_of_two_sequences(rounds: Rounds) -> None:
    rounds.context.decode({1: [4, 5]})
    rounds.begin(0)
    rounds.begin(1)
    rounds.context.decode({0: [1, 2, 3], 1: [1, 2, 3]})
    rounds.commit(1, seq=1)
    assert rounds.pending(0) == (1, 3, 3, 0)
    assert rounds.pending(1) == (0, 0, 1, 0)
    rounds.commit(3, seq=0)


def test_misuse(rounds: Rounds) -> None:
    with expect(ERR_STATE, "no round is open on sequence 0"):
        rounds.commit(1)
    with expect(ERR_ARGUMENT, "sequence 2 is out of range"):
        rounds.begin(2)
    rounds.begin()
    with expect(ERR_STATE, "a round is open on sequence 0: commit it first"):
        rounds.begin()
    with expect(ERR_STATE, "no round is open on sequence 1"):
        rounds.commit(0, seq=1)
    rounds.context.decode({0: [1, 2, 3]})
    for n_kept in (-1, 4):
        with expect(ERR_ARGUMENT, f"{n_kept} rows to keep, the round has 3"):
            rounds.commit(n_kept)
    rounds.commit(3)
    with expect(ERR_STATE, "no round is open"):
        rounds.rollback()


def test_more_rows_than_can_be_undone(rounds: Rounds) -> None:
    rounds.begin()
    rounds.context.decode({0: list(range(9))})
    with expect(ERR_STATE, "9 rows of sequence 0 cannot be undone, at most 5"):
        rounds.rollback()
    rounds.commit(4)


def test_a_removed_sequence_ends_its_round(rounds: Rounds) -> None:
    rounds.begin()
    rounds.context.remove(0)
    with expect(ERR_STATE, "trimmed below the start of its round"):
        rounds.commit(0)
    rounds.begin()


@pytest.mark.parametrize(("mode", "arch"), [(SNAPSHOTS, "qwen35")])
def test_without_replay(tmp_path: Path, mode: str, arch: str) -> None:
    model = RoundModel(write_recurrent(tmp_path / "m.gguf", arch, Shape(state=32)))
    with expect(ERR_INCOMPATIBLE, "LLAMA_EAGLE_RS=snapshots"):
        Rounds(model.context(mode=mode)).begin()
    Rounds(model.context(mode=REPLAY)).begin()
