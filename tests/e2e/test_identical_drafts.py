"""Acceptance is tested as text is: a draft that is a copy of its target is accepted whole, whatever came before."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import Variant, write_sliding_window_target, write_target

pytestmark = pytest.mark.native

N_DRAFT = 3
WINDOW = 16
TARGETS = {
    "recurrent": lambda path: write_target(path, Variant(sharpness=8.0, mix=0.8)),
    "window": lambda path: write_sliding_window_target(path, window=WINDOW, head=8.0),
}


@pytest.fixture(scope="module", params=TARGETS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and its copy."""
    folder = tmp_path_factory.mktemp(request.param)
    target = TARGETS[request.param](folder / "target.gguf")
    return target, Path(shutil.copyfile(target, folder / "copy.gguf"))


def words(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=n)


def whole(answer: dict[str, Any]) -> list[int]:
    """Return the tokens of an answer whose drafts were all accepted."""
    timings = answer["timings"]
    assert timings["draft_n_accepted"] == timings["draft_n"] > 0
    return list(answer["tokens"])


def ask(server: Served, prompt: list[int], n: int = 24, **options: Any) -> list[int]:
    return whole(server.complete(prompt, n, temperature=0, ignore_eos=True, **options))


@pytest.fixture
def server(pair: tuple[Path, Path], tmp_path: Path) -> Iterator[Served]:
    options = ("-c", 512, "-t", 1, "--parallel", 1, "--", "--slot-save-path", tmp_path)
    with serve("-m", pair[0], "-d", pair[1], "--n-draft", N_DRAFT, "--no-lookup", *options) as running:
        yield running


def test_conversations_return_from_the_cache_in_memory(server: Served) -> None:
    """Three conversations with one slot: each turn evicts another prompt, and returns it with its draft."""
    talks = [words(seed, 60) for seed in range(3)]
    for turn in range(3):
        for i, text in enumerate(talks):
            talks[i] = text + ask(server, text) + words(turn, 5)
            ask(server, talks[i][: -20 - i])  # an edit


def test_slots_that_were_saved(server: Served) -> None:
    """Another text in between, then one more turn, and an edit before the window of the saved end."""
    text = words(1, 100)
    for kept in (124, 124 - WINDOW, 50):
        text = text[:100] + ask(server, text[:100])
        assert server.post("/slots/0?action=save", {"filename": "a.bin"})[0] == 200
        ask(server, words(2, 70))
        assert server.post("/slots/0?action=restore", {"filename": "a.bin"})[0] == 200
        ask(server, text[:kept] + words(3, 4))


def test_a_part_of_the_head(pair: tuple[Path, Path]) -> None:
    """It proposes tokens of its rows alone, so some are refused; the text is the same."""
    found = []
    for n_rows in ("all", "64"):
        drafts = ("-d", pair[1], "--n-draft", N_DRAFT, "--no-lookup", "--draft-vocab", n_rows)
        with serve("-m", pair[0], *drafts, "-c", 512, "-t", 1, "--parallel", 1) as server:
            found.append(server.complete(words(1, 60), 48, temperature=0, ignore_eos=True))
    assert found[0]["tokens"] == found[1]["tokens"] == whole(found[0])
    assert found[1]["timings"]["draft_n_accepted"] < found[1]["timings"]["draft_n"]


@pytest.fixture
def llm(pair: tuple[Path, Path]) -> Iterator[Any]:
    from llama_eagle import EagleLlama

    options = {"n_ctx": 1024, "draft_n_ctx": 512, "n_draft": N_DRAFT, "lookup": False, "n_threads": 1}
    model = EagleLlama(str(pair[0]), draft_path=pair[1], verbose=False, **options)
    yield model
    model.close()


def complete(llm: Any, prompt: list[int], n: int = 24) -> list[int]:
    text = llm.create_completion(prompt, max_tokens=n, temperature=0, logit_bias={256: -100.0})["choices"][0]["text"]
    assert llm.speculative_stats.n_accepted == llm.speculative_stats.n_drafted > 0
    return list(text.encode())


def test_a_text_that_fits_after_one_that_did_not(llm: Any) -> None:
    """The draft's context is half of the target's. A text beyond it moves the draft's start, which must return."""
    expected = complete(llm, words(1, 400))
    for seed in (2, 1):
        llm.create_completion(words(seed, 600), max_tokens=24, temperature=0)
        assert complete(llm, words(1, 400)) == expected
        llm.reset()
        assert complete(llm, words(1, 400)) == expected


def test_states_that_were_saved(llm: Any) -> None:
    text = words(1, 100)
    for kept in (100, 100 - WINDOW, 50):
        complete(llm, text)
        state = llm.save_state()
        complete(llm, words(2, 70))
        llm.load_state(state)
        complete(llm, text[:kept] + words(3, 4))
