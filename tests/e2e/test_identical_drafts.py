"""Acceptance is tested as text is: a draft that is always right is accepted whole, whatever came before.

Copies of a target are such drafts, and so are heads that repeat what the target repeats (tests/fixtures/echo.py).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures import echo
from fixtures.serving import Served, serve
from fixtures.tiny_gguf import Variant, write_sliding_window_target, write_target

pytestmark = pytest.mark.native

N_DRAFT = 3
WINDOW = 16
COPIES = {
    "recurrent": lambda path: write_target(path, Variant(sharpness=8.0, mix=0.8)),
    "window": lambda path: write_sliding_window_target(path, window=WINDOW, head=8.0),
}
Pair = tuple[Path, "Path | str"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """A target and its draft, by kind."""
    folder = tmp_path_factory.mktemp("pairs")
    found = {kind: echo.write_pair(folder / kind, kind) for kind in echo.DRAFTS}
    for kind, write in COPIES.items():
        (folder / kind).mkdir()
        target = write(folder / kind / "target.gguf")
        found[kind] = target, Path(shutil.copyfile(target, folder / kind / "copy.gguf"))
    return found


@pytest.fixture(params=[*COPIES, *echo.DRAFTS])
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> Pair:
    return pairs[request.param]


def words(seed: int, n: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=n)


def whole(answer: dict[str, Any]) -> list[int]:
    """Return the tokens of an answer whose drafts were all accepted."""
    timings = answer["timings"]
    assert timings["draft_n_accepted"] == timings["draft_n"] > 0
    return list(answer["tokens"])


def ask(server: Served, prompt: list[int], n: int = 24, **options: Any) -> list[int]:
    return whole(server.complete(prompt, n, temperature=0, ignore_eos=True, **options))


def arguments(pair: Pair, *options: object, n_ctx: int = 512, parallel: int = 1) -> list[object]:
    drafts = ("-m", pair[0], "-d", pair[1], "--n-draft", N_DRAFT, "--no-lookup")
    return [*drafts, "-c", n_ctx * parallel, "-t", 1, "--parallel", parallel, *options]


@pytest.fixture
def server(pair: Pair, tmp_path: Path) -> Iterator[Served]:
    with serve(*arguments(pair, "--", "--slot-save-path", tmp_path)) as running:
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


@pytest.mark.parametrize("kind", ["window", "eagle3", "mtp"])
def test_prompts_that_survive_a_restart(kind: str, pairs: dict[str, Pair], tmp_path: Path) -> None:
    given, here = arguments(pairs[kind], "--cache-disk", "1G", n_ctx=1024), {"LLAMA_EAGLE_CACHE": str(tmp_path)}
    text = words(1, 600)
    with serve(*given, **here) as server:
        text += ask(server, text)
    with serve(*given, **here) as server:
        answer = server.complete(text + words(3, 4), 24, temperature=0, ignore_eos=True)
        assert whole(answer) and answer["timings"]["prompt_n"] < 60
        ask(server, text[:570] + words(3, 4))


def test_several_clients_some_of_which_leave(pair: Pair) -> None:
    """Prompts that take several batches, turns, and streams that end early, in two slots at once."""

    def talk(seed: int) -> None:
        text = words(seed, 70)
        for turn in range(3):
            server.hang_up(text, 24, after=300 * turn)
            text = text + ask(server, text) + words(turn, 9)

    with serve(*arguments(pair, "-ub", 24, parallel=2)) as server, ThreadPoolExecutor(3) as clients:
        list(clients.map(talk, range(3)))


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "small"])
def test_a_context_that_shifts(kind: str, pairs: dict[str, Pair]) -> None:
    with serve(*arguments(pairs[kind], "--", "--context-shift")) as server:
        ask(server, words(1, 300), 400)
        ask(server, words(1, 300), 400)


@pytest.mark.parametrize("kind", COPIES)
def test_a_part_of_the_head(kind: str, pairs: dict[str, Pair]) -> None:
    """It proposes tokens of its rows alone, so some are refused; the text is the same."""
    found = []
    for n_rows in ("all", "64"):
        with serve(*arguments(pairs[kind], "--draft-vocab", n_rows)) as server:
            found.append(server.complete(words(1, 60), 48, temperature=0, ignore_eos=True))
    assert found[0]["tokens"] == found[1]["tokens"] == whole(found[0])
    assert found[1]["timings"]["draft_n_accepted"] < found[1]["timings"]["draft_n"]


@pytest.fixture
def llm(pair: Pair) -> Iterator[Any]:
    from llama_eagle import EagleLlama

    options = {"n_ctx": 1024, "draft_n_ctx": 512, "n_draft": N_DRAFT, "lookup": False, "n_threads": 1, "n_batch": 48}
    model = EagleLlama(str(pair[0]), draft=str(pair[1]), verbose=False, **options)
    yield model
    model.close()


def complete(llm: Any, prompt: list[int], n: int = 24) -> list[int]:
    text = llm.create_completion(prompt, max_tokens=n, temperature=0)["choices"][0]["text"]
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


def test_turns_edits_and_streams_that_end_early(llm: Any) -> None:
    text = words(1, 100)
    for turn in range(3):
        stream = llm.create_completion(text, max_tokens=24, temperature=0, stream=True)
        for _ in range(turn * 3):
            next(stream)
        stream.close()
        text = text + complete(llm, text) + words(turn, 9)
        complete(llm, text[: -20 - turn])


def test_a_server_counts_what_the_library_counts(pair: Pair, server: Served, llm: Any) -> None:
    answer = server.complete(words(1, 60), 24, temperature=0)
    complete(llm, words(1, 60))
    assert len(whole(answer)) > 8
    assert answer["timings"]["draft_n"] == llm.speculative_stats.n_drafted
