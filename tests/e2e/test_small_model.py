"""A small model as the drafter: equal texts, a memory that follows every round, saved states, refusals."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures.llama_pairs import SOFT, complete, load
from fixtures.native import NativeTarget, draft_with_probs, load_model
from fixtures.serving import serve
from fixtures.tiny_gguf import N_VOCAB, Variant, write_sliding_window_target, write_target
from llama_eagle.errors import IncompatibleModels
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession

pytestmark = pytest.mark.native

N_STEPS = 5
SMALL = Variant(hidden=32, seed=9, sharpness=8.0, mix=0.4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target with recurrent layers; drafts with and without them, and one of another family."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_target(folder / "target.gguf", SOFT),
        "hybrid": write_target(folder / "hybrid.gguf", SMALL),
        "padded": write_target(folder / "padded.gguf", Variant(hidden=32, seed=3, sharpness=8.0, n_vocab=N_VOCAB + 9)),
        "window": write_sliding_window_target(folder / "window.gguf", window=16),
    }


class Draft:
    """A loaded draft, as sessions take it."""

    def __init__(self, path: Path) -> None:
        self.path, self.handle = path, load_model(path)


@pytest.fixture(scope="module", params=["hybrid", "padded", "window"])
def draft(request: pytest.FixtureRequest, files: dict[str, Path]) -> Draft:
    return Draft(files[request.param])


@pytest.fixture
def open_session(files: dict[str, Path], draft: Draft) -> Iterator[Callable[..., EagleSession]]:
    contexts: list[NativeTarget] = []
    sessions: list[EagleSession] = []

    def opened(**options: Any) -> EagleSession:
        context = NativeTarget(files["target"], n_ctx=512, n_ubatch=64, n_rs_seq=N_STEPS)
        contexts.append(context)
        sessions.append(EagleSession(context, draft, SessionOptions(**{"n_draft_max": N_STEPS, **options})))
        return sessions[-1]

    yield opened
    for session, context in zip(sessions, contexts, strict=True):
        session.close()
        context.__exit__(None, None, None)


def test_texts_are_those_of_plain_decoding(files: dict[str, Path]) -> None:
    with load(files, draft=None) as plain:
        for name in ("hybrid", "window"):
            with load(files, draft=name, n_draft=4) as llm:
                for options in ({"temperature": 0}, {"seed": 3}, {"seed": 4, "top_k": 5}):
                    assert complete(llm, "abc", **options)["text"] == complete(plain, "abc", **options)["text"]
                assert llm.speculative_stats.n_drafted > 50
                if name == "hybrid":
                    assert llm.speculative_stats.n_accepted > 10
                assert "small model" in str(llm.speculative_stats.as_dict())


def test_the_memory_follows_every_round(open_session: Callable[..., EagleSession]) -> None:
    """After each number of kept rows, long pieces and a shorter text, drafts are those of a session from the start."""
    rng = random.Random(5)
    session = open_session()
    text = [rng.randrange(256) for _ in range(150)]
    session.eval(text)
    for n_kept in [*rng.sample(range(N_STEPS + 2), N_STEPS + 2), 3, 0]:
        id_last = rng.randrange(256)
        drafted = session.draft(id_last, N_STEPS)
        fresh = open_session()
        fresh.eval(text)
        assert drafted == fresh.draft(id_last, N_STEPS) and len(drafted) == N_STEPS
        session.verify([id_last, *drafted])
        session.commit(n_kept)
        text += [id_last, *drafted][:n_kept]
    session.reset()
    session.eval(text[:40])
    fresh = open_session()
    fresh.eval(text[:40])
    assert session.draft(7, 3) == fresh.draft(7, 3)


def test_saved_states(open_session: Callable[..., EagleSession]) -> None:
    session, restored = open_session(), open_session()
    session.eval([*range(100)])
    session.verify([7, *session.draft(7, N_STEPS)])
    session.commit(2)
    data, n_past = session.save_state(), session.n_past
    restored.load_state(data, n_past)
    assert restored.draft(9, N_STEPS) == session.draft(9, N_STEPS)
    for broken in (data[:40], data[:-8], data[:28] + bytes([data[28] ^ 1]) + data[29:]):
        with pytest.raises(IncompatibleModels):
            restored.load_state(broken, n_past)
    restored.load_state(None, n_past)
    restored.eval([65, 66, 67])
    assert len(restored.draft(68, N_STEPS)) == N_STEPS  # from the text that it knows


def test_probabilities_end_a_draft(open_session: Callable[..., EagleSession]) -> None:
    session = open_session()
    session.eval([*b"abcabc"])
    ids, probs = draft_with_probs(session, ord("d"), N_STEPS)
    assert len(ids) == N_STEPS and all(0 < prob <= 1 for prob in probs)
    p_min = probs[0] * probs[1] * 0.999
    n_good = sum(product >= p_min for product in itertools.accumulate(probs, operator.mul))
    assert draft_with_probs(session, ord("d"), N_STEPS, p_min)[0] == ids[:n_good]


def test_a_part_of_the_head(open_session: Callable[..., EagleSession]) -> None:
    """Only tokens with a row are proposed, and those of the text have one."""
    text = [*range(200, 230)]
    session = open_session(n_vocab_draft=64)
    session.eval(text)
    rows = set(session.draft_ids.tolist())
    assert len(rows) == 64 and len(rows & set(text)) >= 8
    assert set(session.draft(text[-1], N_STEPS)) <= rows
    n_bytes = session.draft_bytes_read
    session.close()  # the model has its whole head again
    assert n_bytes < open_session().draft_bytes_read


def test_a_context_smaller_than_the_text(open_session: Callable[..., EagleSession]) -> None:
    session = open_session(n_ctx_draft=64)
    session.eval([i % 256 for i in range(40)])
    assert session.draft_notice == ""
    session.eval([i % 256 for i in range(260)])
    assert session.draft_notice == "the text is longer than the draft's context: it drafts from the last 64 tokens"
    for i in range(30):
        drafted = session.draft(i, N_STEPS)
        assert len(drafted) == N_STEPS
        session.verify([i, *drafted])
        session.commit(3)


def test_clients_of_a_server_read_the_text_of_plain_decoding(files: dict[str, Path]) -> None:
    """Four slots at once, each with prompts and drafts of its own length; the small model drafts for all together."""
    rng = random.Random(2)
    asked = [
        {
            "prompt": rng.choices(range(256), k=rng.randint(1, 90)),
            "n": rng.randint(1, 30),
            "temperature": i % 2,
            "seed": i,
        }
        for i in range(16)
    ]
    options = ("-m", files["target"], "-c", 512, "-t", 1)
    found = []
    for drafting in (("-d", "none"), ("-d", files["hybrid"], "--n-draft", 4), ("-d", files["window"], "--no-lookup")):
        with serve(*options, *drafting) as server, ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda each: server.complete(**each, ignore_eos=True), asked))
        found.append([answer["tokens"] for answer in answers])
        if "--n-draft" in drafting:
            assert sum(answer["timings"].get("draft_n_accepted", 0) for answer in answers) > 20
            assert {answer["timings"].get("drafter") for answer in answers} <= {"draft-simple", None, "none"}
    assert found[0] == found[1] == found[2]
