"""Texts that do not fit are refused before anything is evaluated, and states of other sessions by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixtures.tiny_gguf import write_pair
from llama_eagle import EagleLlama
from llama_eagle.errors import IncompatibleModels, InputError

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("room"))


def load(folder: Path, draft: bool, **options: int) -> EagleLlama:
    path = folder / "draft.gguf" if draft else None
    return EagleLlama(str(folder / "target.gguf"), draft_path=path, n_ctx=256, n_threads=1, **options)


@pytest.fixture(params=[False, True], ids=["plain", "draft"])
def llm(folder: Path, request: pytest.FixtureRequest) -> Iterator[EagleLlama]:
    with load(folder, request.param) as llm:
        yield llm


def test_texts_that_do_not_fit(llm: EagleLlama) -> None:
    evaluated: list[float] = []
    llm._memory.on_progress = evaluated.append
    with pytest.raises(InputError, match="257 tokens to evaluate, 256 fit"):
        llm.eval([5] * 257)
    assert not evaluated and llm.n_tokens == 0
    llm.eval([5] * 250)
    evaluated.clear()
    with pytest.raises(InputError, match="7 tokens to evaluate, 6 fit"):
        llm.eval([6] * 7)
    assert not evaluated and llm.n_tokens == 250
    with pytest.raises(InputError, match="300 tokens"):
        next(llm.generate([7] * 300))
    assert not evaluated
    llm.eval([6] * 6)
    assert llm.n_tokens == 256


def test_a_cached_state_of_another_type_is_a_miss(folder: Path) -> None:
    from llama_cpp import LlamaRAMCache

    cache, prompt = LlamaRAMCache(), "abcdefgh"
    with load(folder, False, type_k=8, type_v=8) as other:
        other.set_cache(cache)
        other.create_completion(prompt, max_tokens=3, temperature=0)
    (foreign,) = cache.cache_state.values()
    with load(folder, False) as llm:
        expected = llm.create_completion(prompt, max_tokens=3, temperature=0)["choices"]
        llm.reset()
        llm.set_cache(cache)
        assert llm.create_completion(prompt, max_tokens=3, temperature=0)["choices"] == expected
        with pytest.raises(RuntimeError):
            llm.load_state(foreign)


@pytest.mark.parametrize("rest", [b"x", b"12345678", np.array([5, 2, 0], np.int32).tobytes()])
def test_a_damaged_state_of_a_session(rest: bytes, folder: Path) -> None:
    with load(folder, False) as llm:
        state = llm._session.save_state()
        llm._session.load_state(state, 0)
        for damaged in (state + rest, b"llama-eagle plain " + rest):  # the latter was the format of earlier versions
            with pytest.raises(IncompatibleModels, match="not the state"):
                llm._session.load_state(damaged, 0)
