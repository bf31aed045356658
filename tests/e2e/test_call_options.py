"""Options of single calls: limits on drafts, and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.command import llama_eagle
from fixtures.llama_pairs import load, write_pairs
from llama_eagle.errors import ConfigError, UsageError
from llama_eagle.generation.options import sampler_seed

pytestmark = pytest.mark.native

ASKED = [{"role": "user", "content": "abc"}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pairs(tmp_path_factory.mktemp("models"))


def drafted(llm: Any, call: str, **options: Any) -> tuple[str, int, int]:
    """The answer, the tokens that were drafted, and the longest draft."""
    given = {"max_tokens": 40, "temperature": 0, **options}
    if call == "chat":
        answer = llm.create_chat_completion(ASKED, **given)
    else:
        answer = llm(prompt="abc", **given) if call == "call" else llm.create_completion("abc", **given)
    parts = list(answer) if options.get("stream") else [answer]
    text = "".join(str(part["choices"][0].get("text") or part["choices"][0].get("delta")) for part in parts)
    return text, llm.speculative_stats.n_drafted, len(llm.speculative_stats.positions.tried)


@pytest.mark.parametrize("call", ["completion", "chat", "call"])
@pytest.mark.parametrize("n_draft", [4, "auto"])
@pytest.mark.parametrize("stream", [False, True])
def test_limits_on_drafts_hold_for_one_call(files: dict[str, Path], call: str, n_draft: Any, stream: bool) -> None:
    with load(files, n_draft=n_draft, n_draft_max=6) as llm:
        for speculative in ("none", {"n_max": 0}):
            assert drafted(llm, call, speculative=speculative, stream=stream)[1:] == (0, 0)
        assert drafted(llm, call, stream=stream)[1] > 0
        assert drafted(llm, call, speculative={"n_max": 2}, stream=stream)[2] <= 2
        if n_draft == 4:
            assert drafted(llm, call, speculative={"n_min": 5}, stream=stream)[1] == 0
            _, n, longest = drafted(llm, call, speculative={"n_min": 4, "n_max": None}, stream=stream)
            assert longest == 4
            assert n % 4 in (0, 1, 2, 3)
            few = drafted(llm, call, speculative={"p_min": 0.999}, stream=stream)[1]
            assert few < drafted(llm, call, stream=stream)[1]


def test_the_text_is_the_same(files: dict[str, Path]) -> None:
    with load(files, n_draft=4) as llm:
        limits = [None, "none", {"n_max": 1}, {"p_min": 0.5}, {"n_min": 2, "n_max": 3}]
        texts = {
            llm.create_completion("abc", max_tokens=40, seed=5, speculative=each)["choices"][0]["text"]
            for each in limits
        }
    assert len(texts) == 1


WRONG = [
    {"n_max": 7}, {"n_max": -1}, {"n_max": 2.0}, {"n_max": True}, {"n_max": "2"}, {"n_min": -1}, {"n_min": 7},
    {"n_min": 3, "n_max": 2}, {"p_min": 1}, {"p_min": -0.1}, {"p_min": float("nan")}, {"p_min": "0"}, {"n": 2},
    "off", 3,
]  # fmt: skip


@pytest.mark.parametrize("speculative", WRONG, ids=str)
def test_limits_out_of_range(files: dict[str, Path], speculative: Any) -> None:
    with load(files, n_draft_max=6) as llm:
        for call in ("completion", "chat", "call"):
            with pytest.raises(ConfigError, match="speculative"):
                drafted(llm, call, speculative=speculative)
        assert drafted(llm, "completion")[1] > 0


def test_limits_where_nothing_drafts(files: dict[str, Path]) -> None:
    with load(files, draft=None) as llm:
        assert drafted(llm, "completion", speculative={"n_max": 16})[1] == 0


def test_chats_are_random_without_a_seed(files: dict[str, Path]) -> None:
    given = ("chat", "-m", files["target"], "-t", 1, "-n", 40)
    given += ("--temp", 5, "--top-k", 0, "--top-p", 1, "--min-p", 0)
    assert len({llama_eagle(*given, stdin="hello\n").stdout for _ in range(2)}) == 2
    assert len({llama_eagle(*given, "--seed", 3, stdin="hello\n").stdout for _ in range(2)}) == 1


def test_an_instance_without_a_seed_answers_as_the_parent_does(files: dict[str, Path]) -> None:
    """As documented: the same answers after each load, one after the other different."""
    rows = []
    for seed in ({}, {}, {"seed": 8}):
        with load(files, **seed) as llm:
            rows.append([llm.create_completion("abc", max_tokens=30)["choices"][0]["text"] for _ in range(2)])
    assert rows[0] == rows[1] != rows[2]
    assert rows[0][0] != rows[0][1]


def test_seeds_of_64_bits(files: dict[str, Path]) -> None:
    """As of OpenAI's clients: not cut to 32 bits."""
    with load(files) as llm:
        options = {"max_tokens": 30, "temperature": 2.0}
        texts = [llm.create_completion("abc", seed=seed, **options)["choices"][0]["text"] for seed in (5, 2**40 + 5)]
        assert texts[0] != texts[1]
        with pytest.raises(UsageError, match="at most 64 bits"):
            llm.create_completion("abc", seed=2**64, **options)
    with load(files, seed=2**40 + 5) as llm:
        assert llm._seed == sampler_seed(2**40 + 5) < 2**32


def test_refused_arguments_leave_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    import gc

    from llama_eagle import EagleLlama

    for arguments in ({}, {"model_path": "x.gguf", "unknown": 1}):
        with pytest.raises(TypeError):
            EagleLlama(**arguments)
    gc.collect()
    assert capfd.readouterr().err == ""


def test_eval_refuses_what_has_no_room_before_it_begins(files: dict[str, Path]) -> None:
    with load(files, n_ctx=256) as llm:
        llm.eval([97] * 10)
        with pytest.raises(ValueError, match="247 tokens to evaluate, 246 fit"):
            llm.eval([97] * 247)
        assert llm.n_tokens == 10
        llm.eval([97] * 246)
        assert llm.n_tokens == 256


@pytest.mark.parametrize("kind", ["context", "no state"])
def test_a_cache_of_something_else_is_a_miss(files: dict[str, Path], kind: str) -> None:
    from llama_cpp import LlamaRAMCache

    cache = LlamaRAMCache()
    with load(files, n_ctx=256) as llm:
        llm.set_cache(cache)
        llm.create_completion("abcabc", max_tokens=5)
    if kind == "no state":
        cache.cache_state = dict.fromkeys(cache.cache_state, "text")  # type: ignore[assignment]
        cache.cache_state[(97, 98, 99)] = b""  # type: ignore[assignment]
    with load(files, n_ctx=128, type_k=8, type_v=8, flash_attn=True) as llm:
        expected = llm.create_completion("abcabc", max_tokens=9, temperature=0)["choices"]
        llm.reset()
        if kind == "context":
            llm.set_cache(cache)
        else:
            llm.cache = _Found(cache)
        assert llm.create_completion("abcabc", max_tokens=9, temperature=0)["choices"] == expected


class _Found:
    """A cache that returns what it holds, without looking at it, and keeps nothing."""

    def __init__(self, cache: Any) -> None:
        self._values = list(cache.cache_state.values())

    def __getitem__(self, key: Any) -> Any:
        return self._values[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        pass
