"""Prompt look-up where no draft model is: the default of every front end, with the text of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.command import assert_one_line_error, llama_eagle
from fixtures.serving import serve
from fixtures.targets import make_dense_gguf
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.errors import NativeError
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.synthetic.ggufs import PairFolder

pytestmark = pytest.mark.native

START, N = 300, 40
LOOK_UP = "drafts: prompt look-up"
SETTINGS = ("--tokens", START, "-n", N, "--temp", 0, "-t", 1, "--ignore-eos", "--json", "-m")


@pytest.fixture(scope="module")
def repeats(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A target with a recurrent state and no head that repeats three tokens, as in "12.12.12."; and what it says."""
    folder = PairFolder(tmp_path_factory.mktemp("repeats") / "tiny", "tiny", keep=True)
    cycle = folder.mtp(1.0, "q8_0", rare=3).cycle
    target = tmp_path_factory.mktemp("bare") / "repeats.gguf"
    convert_target(folder.path / "mtp-1-rare-3", target, TargetOptions(outtype="q8_0", mtp=False))
    return target, cycle.expected_tokens(START, N)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with attention alone."""
    return make_dense_gguf(tmp_path_factory.mktemp("dense"))


def load(path: Path, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    return EagleLlama(path, n_ctx=256, n_threads=1, **options)


def tokens(llm: Any, temp: float = 0.0) -> list[int]:
    llm.set_seed(7)
    return [token for token, _ in zip(llm.generate([START % 256], temp=temp), range(60), strict=False)]


def test_a_short_pattern_is_drafted_by_generate_and_serve(repeats: tuple[Path, list[int]]) -> None:
    target, expected = repeats
    drafting = ("-d", "lookup", "--n-draft", 4)
    found = llama_eagle("generate", *SETTINGS, target, *drafting).json
    assert found["tokens"] == expected
    counts = [(found["speculative"]["n_drafted"], found["speculative"]["n_accepted"])]
    with serve("-m", target, *drafting, "-c", 256, "-t", 1, "-np", 1) as server:
        answer = server.complete([START], N, temperature=0, ignore_eos=True)
    assert answer["tokens"] == expected
    counts.append((answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]))
    for n_drafted, n_accepted in counts:
        assert n_accepted == n_drafted >= 26


def test_it_is_the_default_of_every_front_end(repeats: tuple[Path, list[int]]) -> None:
    target, expected = repeats
    for options, drafter in (((), "look-up"), (("-d", "none"), None)):
        found = llama_eagle("generate", *SETTINGS, target, *options).json
        assert found["tokens"] == expected
        assert (found["speculative"] and found["speculative"]["drafter"]) == drafter
        assert drafter is None or found["speculative"]["n_accepted"] > 0
    asked = llama_eagle("chat", "-m", target, "--plain", "-n", N, "-t", 1, "--temp", 0, stdin="a\n/stats\n")
    assert "look-up: " in asked.stdout + asked.stderr
    with load(target) as llm:
        assert llm.drafter.startswith(LOOK_UP)
        assert [token for token, _ in zip(llm.generate([START], temp=0), range(N), strict=False)] == expected
        assert llm.speculative_stats.n_accepted > 0
    with serve("-m", target, "-c", 256, "-t", 1, "-np", 1) as server:
        answer = server.complete([START], N, temperature=0, ignore_eos=True)
        assert server.metric('drafter_accepted_tokens_total{drafter="ngram-simple"}') > 0
    assert answer["tokens"] == expected


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(repeats: tuple[Path, list[int]], dense: Path, temp: float) -> None:
    for target in (repeats[0], dense):
        with load(target, draft="none") as plain, load(target) as llm, load(target, n_draft=8) as often:
            assert tokens(plain, temp) == tokens(llm, temp) == tokens(often, temp)
            assert often.speculative_stats.n_drafted > 0


def test_a_plain_round_of_a_recurrent_target_records_nothing(repeats: tuple[Path, list[int]]) -> None:
    """Only a round with drafted tokens can be undone: without them it costs what plain decoding does."""
    options = ContextOptions(n_ctx=64, n_threads=1, n_rs_seq=4)
    with Model.target(repeats[0]) as model, Context(model, options) as context:
        session = EagleSession(context, None, SessionOptions(4))
        session.eval([1, 2, 3])
        session.verify([4])
        session.commit(0)
        session.verify([4], is_final=True)
        session.commit(1)
        assert session.n_past == 4
        session.verify([5, 6])
        session.commit(1)
        session.verify([6], is_final=True)
        with pytest.raises(NativeError, match="cannot undo"):
            session.commit(0)
        session.close()


def test_it_gives_way_unless_it_was_asked_for(dense: Path) -> None:
    given = ("generate", "--tokens", "1,2,3", "-n", 3, "-t", 1, "--temp", 0, "-ub", 8, "-m", dense)
    assert llama_eagle(*given, "--json").json["speculative"] is None
    assert_one_line_error(llama_eagle(*given, "-d", "lookup"), 2, "ubatch size 8 (--ubatch-size) is below 18")
    for options in ({"n_ubatch": 8}, {"logits_all": True}):
        with load(dense, **options) as llm:
            assert llm.drafter.startswith("no drafter: ")
    with serve("-m", dense, "-ub", 8, "-c", 64, "-t", 1) as server:
        assert "draft_n" not in server.complete([1, 2, 3], 8, temperature=0)["timings"]
