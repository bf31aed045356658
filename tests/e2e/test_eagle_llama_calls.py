"""EagleLlama after refused calls, next to other threads, and with values that its parent does not take."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.llama_pairs import complete, load, write_pairs
from llama_eagle.errors import UsageError

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


class Shifted:
    """Letters moved by one."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        return [byte + 1 for byte in text]

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        return bytes(token - 1 for token in tokens)


def test_errors_of_processors_stay_in_their_thread(files: dict[str, Path]) -> None:
    """One instance's processor always fails, the other one's forces a token."""

    def fails(_ids: Any, _scores: Any) -> Any:
        raise KeyError("mine")

    def forces(_ids: Any, scores: Any) -> Any:
        forced = np.full_like(scores, -np.inf)
        forced[5] = 1.0
        return forced

    caught: list[str] = []
    wrong: list[object] = []
    stop = threading.Event()

    def run_failing() -> None:
        with load(files, draft=None) as llm:
            while not stop.is_set():
                try:
                    next(llm.generate([70, 71], temp=0.0, logits_processor=[fails]))
                    wrong.append("an error was lost")
                except KeyError as error:
                    caught.append(str(error))

    other = threading.Thread(target=run_failing)
    other.start()
    try:
        with load(files, draft=None) as llm:
            for _ in range(200):
                try:
                    token = next(llm.generate([72, 73], temp=0.0, logits_processor=[forces]))
                    wrong += [token] if token != 5 else []
                except KeyError:
                    wrong.append("another thread's error")
    finally:
        stop.set()
        other.join()
    assert len(caught) > 10 and not wrong


def test_threads_may_read_tokens(files: dict[str, Path]) -> None:
    with load(files, draft=None) as llm:
        texts = [[(seed * 7 + i) % 250 for i in range(45)] for seed in range(8)]
        expected = [bytes(llm.detokenize(text, special=True)) for text in texts]
        wrong: list[int] = []

        def read(first: int) -> None:
            for i in range(300):
                n = (first + i) % len(texts)
                llm._growing._pieces.clear()
                wrong.extend([n] if llm.detokenize(list(texts[n]), special=True) != expected[n] else [])

        threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_refused_embedding_leaves_the_text(files: dict[str, Path]) -> None:
    text = [70 + i % 9 for i in range(16)]
    with load(files, draft=None, embedding=True, n_batch=64) as llm:
        llm.eval([*text, 70])
        expected = llm.scores[-1]
        llm.reset()
        llm.eval(text)
        with pytest.raises(ValueError, match="batch size"):
            llm.embed(["zyxwvutsrqponmlk", "hello" * 10, "x" * 100], truncate=False)
        assert llm.n_tokens == len(text)
        next(llm.generate([*text, 70], temp=0.0))
        np.testing.assert_array_equal(llm.scores[-1], expected)


@pytest.mark.parametrize("seed", [np.int64(5), np.uint32(5), 5])
def test_seeds_of_numpy(files: dict[str, Path], seed: Any) -> None:
    with load(files, seed=seed) as llm:
        first = complete(llm, seed=None)["text"]
        assert complete(llm, seed=seed)["text"]
        complete(llm, seed=None)
        llm.set_seed(seed)
        assert complete(llm, seed=None)["text"] == first
        with pytest.raises(UsageError, match="seed='x'"):
            llm.set_seed("x")


@pytest.mark.parametrize("draft_sampling", ["match", "rejection"])
def test_a_negative_seed_is_random(files: dict[str, Path], draft_sampling: str) -> None:
    with load(files, draft_sampling=draft_sampling) as llm:
        assert len({complete(llm, seed=-1, temperature=1.5)["text"] for _ in range(4)}) > 1


def test_limits_of_a_refused_call(files: dict[str, Path]) -> None:
    with load(files) as llm:
        with pytest.raises(TypeError, match="bogus"):
            llm.create_completion("abc", bogus=1, speculative="none")
        assert complete(llm, temperature=0)["timings"]["draft_n"] > 0


def test_log_probabilities_after_a_state_without_logits(files: dict[str, Path]) -> None:
    with load(files, draft=None) as plain, load(files, draft=None, logits_all=True) as llm:
        given = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        expected = llm.create_completion("abcdefgh", **given)["choices"][0]["logprobs"]["token_logprobs"]
        llm.create_completion("zyxwvuts", **given)
        plain.eval(plain.tokenize(b"abcdefgh"))
        llm.load_state(plain.save_state())
        found = llm.create_completion("abcdefgh", **given)["choices"][0]["logprobs"]["token_logprobs"]
        assert found[1:] == pytest.approx(expected[1:], abs=1e-5)


def test_scores_are_kept(files: dict[str, Path]) -> None:
    llm = load(files, draft=None)
    llm.eval([70, 71])
    scores = llm.scores
    before = scores.copy()
    llm.eval([72])
    llm.close()
    np.testing.assert_array_equal(scores, before)


def test_a_copy_has_the_tokenizer(files: dict[str, Path]) -> None:
    with load(files, draft=None, tokenizer=Shifted()) as llm:
        copied = pickle.loads(pickle.dumps(llm))
        assert copied.tokenize(b"abc") == llm.tokenize(b"abc") == [98, 99, 100]
        copied.close()


@pytest.mark.parametrize("adds_bos", [True, False])
def test_texts_begin_with_bos_where_the_vocabulary_says_so(files: dict[str, Path], adds_bos: bool) -> None:
    """As in the parent; ids are unchanged."""
    bos = 3
    keys = {"tokenizer.ggml.add_bos_token": adds_bos, "tokenizer.ggml.bos_token_id": bos}
    with load(files, kv_overrides=keys) as llm:
        from llama_cpp import Llama  # after our library is loaded

        parent = Llama(str(files["target"]), n_ctx=512, kv_overrides=keys, verbose=False)
        ids = llm.tokenize(b"abc", add_bos=False)
        for prompt, expected in (("abc", [bos] * adds_bos + ids), (ids, ids)):
            usage = [complete(each, prompt, max_tokens=1)["usage"] for each in (llm, parent)]
            assert usage[0] == usage[1]
            assert usage[0]["prompt_tokens"] == len(expected)
            assert llm._input_ids.tolist()[: len(expected)] == expected
        parent.close()


def test_the_number_of_tokens(files: dict[str, Path]) -> None:
    with load(files, "sharp", n_ctx=256) as llm:
        for max_tokens, n in ((1, 1), (2, 2), (0, 253), (-1, 253), (None, 253), (253, 253), (1000, 253)):
            answer = complete(llm, "abc", max_tokens=max_tokens, temperature=0)
            assert (answer["usage"]["completion_tokens"], answer["reason"]) == (n, "length")
