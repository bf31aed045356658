"""Contexts and saved states that a session refuses because it could not continue from them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import pytest
from fixtures.tiny_gguf import Variant, write_draft, write_target
from llama_eagle.errors import IncompatibleModels, NativeError
from llama_eagle.native.calls import ERR_ARGUMENT, ERR_CONTEXT_FULL, ERR_STATE, last_error, library
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import ContextOptions, LoadOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession

pytestmark = pytest.mark.native

PROMPT = [5, 6, 7, 8]
HEADER = struct.Struct("8i")
FIELDS = ("magic", "n_past", "first_slot", "end_slot", "pos", "n", "n_tokens", "width")
BAD = (-(2**31), -1, 2**31 - 1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelPair]:
    folder = tmp_path_factory.mktemp("pair")
    files = PairOptions(write_target(folder / "t.gguf", Variant()), write_draft(folder / "d.gguf", Variant()))
    with ModelPair(files) as opened:
        yield opened


def test_both_files_of_a_pair_are_one_progress(pair: ModelPair) -> None:
    seen: list[float] = []
    assert pair.draft is not None
    with ModelPair(PairOptions(pair.target.path, pair.draft.path, LoadOptions(on_progress=seen.append))):
        share = pair.target.header.file_size / (pair.target.header.file_size + pair.draft.header.file_size)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert share in seen


@pytest.fixture
def context(pair: ModelPair) -> Iterator[Context]:
    with Context(pair.target, ContextOptions(n_ctx=64, n_batch=32, n_threads=1, n_rs_seq=4)) as opened:
        yield opened


def open_session(context: Context, pair: ModelPair) -> EagleSession:
    return EagleSession(context, pair.draft, SessionOptions(4))


def test_a_context_with_tokens_in_memory(context: Context, pair: ModelPair) -> None:
    with open_session(context, pair) as session:
        session.eval(PROMPT)
    with pytest.raises(NativeError, match="clear it first") as error:
        open_session(context, pair)
    assert error.value.code == ERR_STATE


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("field", [*FIELDS, "token"])
def test_damaged_states(context: Context, pair: ModelPair, field: str, value: int) -> None:
    with open_session(context, pair) as session:
        session.eval(PROMPT)
        data = bytearray(session.save_state())
        at = HEADER.size if field == "token" else 4 * FIELDS.index(field)
        before = session.draft(9, 4)
        struct.pack_into("i", data, at, value)
        with pytest.raises(IncompatibleModels, match="state"):
            session.load_state(bytes(data), len(PROMPT))
        assert session.draft(9, 4) == before  # the session is unchanged


def code_of(call: Callable[..., object], *arguments: object) -> int:
    with pytest.raises(NativeError) as error:
        call(*arguments)
    return error.value.code


def test_without_a_draft(context: Context) -> None:
    """Rounds and limits are the same; only drafting is refused."""
    with EagleSession(context, None, SessionOptions(4)) as session:
        assert not session.has_draft and session.draft_device is None
        assert session.draft_kind == session.draft_notice == "" and session.draft_bytes_read == 0
        session.eval(PROMPT)
        assert code_of(session.draft, 9, 2) == ERR_STATE
        assert code_of(session.draft_logits, 0) == ERR_STATE
        assert code_of(session.verify, range(6)) == ERR_ARGUMENT  # a token and four drafts are the most
        session.verify(range(5))
        assert code_of(session.verify, [9]) == ERR_STATE  # a round is pending
        session.commit(2)
        assert session.n_past == len(PROMPT) + 2
        session.eval([9] * (context.n_ctx - session.n_past - 2))
        assert session.n_draft_room == 1
        assert code_of(session.verify, range(3)) == ERR_CONTEXT_FULL  # llama.cpp's own context is larger
        session.verify(range(2))
        session.commit(0)
        assert session.n_room == 2


def test_states_with_and_without_a_draft_differ(context: Context, pair: ModelPair) -> None:
    with EagleSession(context, None, SessionOptions(4)) as session:
        session.eval(PROMPT)
        without = session.save_state()
        session.reset()
    with open_session(context, pair) as session:
        session.eval(PROMPT)
        with_draft = session.save_state()
        with pytest.raises(IncompatibleModels, match="this draft"):
            session.load_state(without, len(PROMPT))
        session.reset()
    plain = EagleSession(context, None, SessionOptions(4))
    with plain as session, pytest.raises(IncompatibleModels, match="no draft"):
        session.load_state(with_draft, len(PROMPT))


@pytest.mark.parametrize("field, value", [("n_threads", 513), ("n_threads", -1), ("n_ctx_draft", 2**31 - 1)])
def test_numbers_that_would_end_the_process(context: Context, pair: ModelPair, field: str, value: int) -> None:
    params = library().eagle_session_default_params()
    setattr(params, field, value)
    handle = ctypes.c_void_p()
    status = library().eagle_session_new(context.handle, pair.draft.handle, ctypes.byref(params), ctypes.byref(handle))
    assert (status, handle.value) == (ERR_ARGUMENT, None)
    assert field in last_error()


@pytest.mark.parametrize("size", [-1, -(2**63)])
def test_states_of_negative_size(context: Context, pair: ModelPair, size: int) -> None:
    with open_session(context, pair) as session:
        session.eval(PROMPT)
        data = session.save_state()
        assert library().eagle_state_load(session._handle, data, size, len(PROMPT)) == ERR_ARGUMENT
        assert session.draft(9, 4)
