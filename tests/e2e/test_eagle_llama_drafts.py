"""Drafting in EagleLlama: drafters, p_min, exact and rejection sampling, statistics, reports."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.llama_pairs import ALPHABET, complete, load, write_pairs

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(files: dict[str, Path]) -> Iterator[Any]:
    with load(files, draft=None) as llm:
        yield llm


def test_prompt_lookup_and_the_parents_draft_models(files: dict[str, Path], plain: Any) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    from llama_eagle import PromptLookup

    prompt = "abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz abc"
    sources: list[dict[str, Any]] = [
        {"draft": None, "drafter": PromptLookup()},
        {"draft": None, "draft_model": LlamaPromptLookupDecoding(num_pred_tokens=6)},
        {"draft": "draft", "drafter": PromptLookup()},
    ]
    for options in sources:
        llm = load(files, n_draft=6, **options)
        for seed in range(3):
            found = complete(llm, prompt, seed=seed)["text"]
            assert found == complete(plain, prompt, seed=seed)["text"]
        assert llm.speculative_stats.n_accepted > 5
        llm.close()


def test_measuring_plain_decoding_leaves_no_trace(files: dict[str, Path], plain: Any) -> None:
    """A row that is computed and taken back, between two turns and before one more token of a text."""
    texts = []
    for measures in (False, True):
        with load(files, n_draft=4) as llm:
            assert llm.measure_plain() is None  # no text yet
            parts = [complete(llm, "abc", temperature=0, max_tokens=20)["text"]]
            if measures:
                assert llm.measure_plain() > 0
            parts.append(next(llm.generate([], temp=0, reset=False)))
            if measures:
                assert llm.measure_plain() > 0
            parts.append(complete(llm, f"abc{parts[0]}more", temperature=0, max_tokens=20)["text"])
        texts.append(parts)
    assert texts[0] == texts[1]
    complete(plain, "abc", max_tokens=20)
    assert plain.measure_plain() is None  # nothing can be taken back here


class Wrong:
    """A look-up that finds something in every round, and nothing that is right."""

    def begin(self, tokens: Any) -> None: ...

    def accept(self, tokens: Any) -> None: ...

    def draft(self, id_last: int, n_max: int) -> list[int]:
        return [ord("#")] * n_max


def test_a_look_up_is_asked_first_while_it_pays(files: dict[str, Path]) -> None:
    """Rounds for 480 tokens: the draft has one token right in each, the look-up of a text that repeats itself all. A
    look-up costs a small model several per cent of a round: it is tried in every tenth round until it proves itself.
    """
    from llama_eagle import PromptLookup

    rounds = {}
    for drafter in (None, PromptLookup(), Wrong()):
        with load(files, "sharp", "sharp_draft", n_draft=8, drafter=drafter) as llm:
            assert complete(llm, "abc", temperature=0, max_tokens=480)["text"] == (ALPHABET * 20)[3:483]
            rounds[type(drafter).__name__] = llm.speculative_stats.rounds
    assert rounds["NoneType"] == 240
    assert rounds["PromptLookup"] < 240 * 0.75
    assert rounds["Wrong"] < 240 * 1.15


def test_the_parents_draft_models_past_a_batch(files: dict[str, Path]) -> None:
    """There the parent's `scores` overflow, and a recurrent state that cannot be cut goes on wrong."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    prompt = "abcdefg hijklmn " * 20
    texts = []
    for draft_model in (None, LlamaPromptLookupDecoding(num_pred_tokens=10)):
        with load(files, draft=None, draft_model=draft_model, n_batch=32, n_ubatch=32, logits_all=True) as llm:
            answer = complete(llm, prompt, temperature=0.5, max_tokens=150, logprobs=2)
            texts.append((answer["text"], answer["choices"][0]["logprobs"]))
    assert texts[0] == texts[1]
    assert llm.speculative_stats.n_drafted > llm.speculative_stats.n_accepted > 0


def test_the_parents_draft_models_keep_logits_once_they_are_asked_for(files: dict[str, Path]) -> None:
    """In the parent they always do: there `logprobs` needs no `logits_all` beside `draft_model`."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    with (
        load(files, draft=None, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4)) as llm,
        load(files, draft=None, logits_all=True) as plain,
    ):
        complete(llm, "abcabc")
        assert llm.scores.shape[0] == 1
        found = [complete(each, "abcabcabc", logprobs=2)["choices"][0]["logprobs"] for each in (llm, plain)]
        assert found[0] == found[1]


def test_statistics(files: dict[str, Path]) -> None:
    llm = load(files, "sharp", "sharp_draft", n_draft=2)
    complete(llm, temperature=0, max_tokens=41)
    first = llm.speculative_stats
    assert first.accepted_per_position == [1.0, 0.0]
    assert first.mean_emitted == pytest.approx(2, abs=0.1)
    assert set(first.ms) == {"draft", "verify", "sample", "commit", "python"}
    complete(llm, temperature=0, max_tokens=41)
    assert llm.speculative_totals.n_drafted == first.n_drafted + llm.speculative_stats.n_drafted


def test_answers_say_what_llama_cpps_server_says(files: dict[str, Path]) -> None:
    """The fields of its `timings` object; here 41 tokens in rounds of two, the first token comes with the prompt."""
    rates = {
        f"{phase}_{field}" for phase in ("prompt", "predicted") for field in ("n", "ms", "per_token_ms", "per_second")
    }
    with load(files, "sharp", "sharp_draft", n_draft=1) as llm:
        complete(llm, "xyz", temperature=0, max_tokens=2)
        answer = complete(llm, "xyzabcd", temperature=0, max_tokens=41)
        timings = answer["timings"]
        assert set(timings) == {"cache_n", "draft_n", "draft_n_accepted", *rates}
        assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (4, 3, 41)
        assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 41, "total_tokens": 48}
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (20, 20)
        assert timings["predicted_per_second"] == pytest.approx(40e3 / timings["predicted_ms"])
        assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 40)
        llm.set_n_draft(0)
        assert set(complete(llm)["timings"]) == {"cache_n", *rates}


def test_p_min_shortens_drafts_and_changes_nothing_else(files: dict[str, Path], plain: Any) -> None:
    n_drafted = {}
    for p_min in (0.0, 0.9):
        with load(files, n_draft=8, p_min=p_min) as llm:
            for seed in range(3):
                assert complete(llm, seed=seed)["text"] == complete(plain, seed=seed)["text"]
            n_drafted[p_min] = llm.speculative_totals.n_drafted
    assert 0 < n_drafted[0.9] < n_drafted[0.0] / 2


@pytest.mark.parametrize("n_draft", [1, 2, 4])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_tiny_p_min_ends_no_draft(files: dict[str, Path], n_threads: int, n_draft: int) -> None:
    n_drafted = set()
    for p_min in (0.0, 1e-9):
        with load(files, n_draft=n_draft, p_min=p_min, n_threads=n_threads) as llm:
            complete(llm, temperature=0)
            n_drafted.add(llm.speculative_totals.n_drafted)
    assert len(n_drafted) == 1 and min(n_drafted) >= 20


EXACT = """
import sys
from llama_eagle import EagleLlama

target, draft = sys.argv[1:]
settings = {"n_ctx": 512, "n_threads": 1, "verbose": False}
llm = EagleLlama(target, draft_path=draft, n_draft=7, exact=True, **settings)
plain = EagleLlama(target, **settings)
for seed in range(3):
    texts = [m.create_completion("abc", max_tokens=200, seed=seed)["choices"][0]["text"] for m in (llm, plain)]
    assert texts[0] == texts[1], texts
assert llm.speculative_stats.n_accepted > 0
try:
    llm.set_n_draft(17)
except ValueError as error:
    assert "neither 'auto' nor a number from 0 to 16" in str(error)
else:
    raise AssertionError("a draft beyond the exact rows was taken")
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="exact kernels are for x86")
def test_exact(files: dict[str, Path]) -> None:
    """Weights that only inexact kernels read would be refused; these are not.

    In a process of its own: with AMX, exactness must be asked for before the first model is loaded.
    """
    command = [sys.executable, "-c", EXACT, str(files["target"]), str(files["draft"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_rejection_sampling_keeps_more_when_it_is_hot(files: dict[str, Path]) -> None:
    """Greedy text stays what it is; mirostat is refused by name."""
    accepted = {}
    for draft_sampling in ("match", "rejection"):
        with contextlib.closing(load(files, n_draft=3, draft_sampling=draft_sampling)) as llm:
            for seed in range(20):
                complete(llm, seed=seed, temperature=1.5, top_k=20, top_p=1.0, min_p=0.0)
            accepted[draft_sampling] = llm.speculative_totals.mean_emitted
            with contextlib.closing(load(files, draft=None)) as plain:
                assert complete(llm, temperature=0)["text"] == complete(plain, temperature=0)["text"]
            again = [complete(llm, seed=5)["text"] for _ in range(2)]
            assert again[0] == again[1]
    assert accepted["rejection"] > 1.1 * accepted["match"]
    with contextlib.closing(load(files, draft_sampling="rejection")) as llm:
        with pytest.raises(ValueError, match="mirostat depends on its own samples"):
            complete(llm, mirostat_mode=2)
        complete(llm)  # it is usable all the same
