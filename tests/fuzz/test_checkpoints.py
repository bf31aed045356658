"""Saved states with changed bytes: refused or taken, never the end of the process, and the session goes on.

`make fuzz` tries 10,000 of them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fixtures.llama_pairs import complete, load, write_pairs
from fixtures.tiny_gguf import Variant, write_draft, write_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_eagle.errors import EagleError
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import ContextOptions, PairOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession

pytestmark = pytest.mark.native

CASES = int(os.environ.get("LLAMA_EAGLE_FUZZ_CASES", "150"))
many = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
PROMPT = [5, 6, 7, 8]
EXTREMES = (0, 1, -1, 2**31 - 1, -(2**31), 255, 65536)


@st.composite
def changes(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Some words overwritten, mostly in the header, then perhaps cut or lengthened."""
    words = draw(st.lists(st.tuples(st.integers(0, 12) | st.integers(0, 4000), st.sampled_from(EXTREMES)), max_size=4))
    length = draw(st.sampled_from((0, 0, 0, -1, -4, -400, 1, 4096)))

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for word, value in words:
            struct.pack_into("<i", changed, min(4 * word, len(changed) - 4), value)
        return bytes(changed[:length] if length < 0 else changed + bytes(length))

    return change


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EagleSession]:
    folder = tmp_path_factory.mktemp("pair")
    files = PairOptions(write_target(folder / "t.gguf", Variant()), write_draft(folder / "d.gguf", Variant()))
    options = ContextOptions(n_ctx=64, n_batch=32, n_threads=1, n_rs_seq=4)
    with (
        ModelPair(files) as pair,
        Context(pair.target, options) as context,
        EagleSession(context, pair.draft, SessionOptions(4)) as opened,
    ):
        yield opened


@many
@given(change=changes(), n_past=st.sampled_from((len(PROMPT), 0, 1, 63, 64, 65, -1, 2**31 - 1)))
def test_draft_states(session: EagleSession, change: Callable[[bytes], bytes], n_past: int) -> None:
    session.reset()
    session.eval(PROMPT)
    sound = session.save_state()
    try:
        session.load_state(change(sound), n_past)
    except EagleError as error:
        assert "state" in str(error) or "tokens" in str(error)
        session.load_state(sound, len(PROMPT))
    else:  # values of features or of the cache: they cost acceptance
        assert n_past == len(PROMPT)
    if session.n_past == len(PROMPT):
        assert len(session.draft(9, 4)) == 4


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    instance = load(write_pairs(tmp_path_factory.mktemp("models")), n_draft=3, n_ctx=128)
    yield instance
    instance.close()


@settings(parent=many, max_examples=max(10, CASES // 10))
@given(change=changes(), part=st.sampled_from(("llama_state", "draft_state")))
def test_states_of_an_instance(llm: Any, change: Callable[[bytes], bytes], part: str) -> None:
    llm.reset()
    llm.eval(llm.tokenize(b"abc"))
    state = llm.save_state()
    sound = getattr(state, part)
    setattr(state, part, change(sound))
    if getattr(state, part) == sound:
        llm.load_state(state)
        return
    with pytest.raises(RuntimeError, match="damaged"):
        llm.load_state(state)
    assert complete(llm, temperature=0, max_tokens=4)["text"]
