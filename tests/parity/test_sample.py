"""eagle_sample beside llama_sampler_sample: the same tokens from the same chains, whatever the row looks like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fixtures.tiny_gguf import Variant, write_target
from llama_eagle.errors import InputError, NativeError, UsageError
from llama_eagle.generation.options import SamplingParams
from llama_eagle.generation.sampling import Sampler
from llama_eagle.native import calls
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, SessionOptions

pytestmark = pytest.mark.native

N_VOCAB = 5000  # several blocks of a row, and not a whole number of them
N_ROWS = 60
ROW = 2  # of the decoded batch

Rng = np.random.Generator

ROWS: dict[str, Callable[[Rng], np.ndarray]] = {
    "random": lambda rng: 3 * rng.standard_normal(N_VOCAB),
    "many ties": lambda rng: rng.integers(0, 6, N_VOCAB),
    "few ties": lambda rng: rng.integers(0, 900, N_VOCAB) / 100,
    "rising": lambda rng: np.sort(rng.standard_normal(N_VOCAB)),
    "falling": lambda rng: -np.sort(rng.standard_normal(N_VOCAB)),
    "all but one equal": lambda rng: np.where(np.arange(N_VOCAB) == rng.integers(N_VOCAB), -1.0, 1.0),
    "one high": lambda rng: np.where(np.arange(N_VOCAB) == rng.integers(N_VOCAB), 9.0, rng.standard_normal(N_VOCAB)),
    "mostly excluded": lambda rng: np.where(rng.random(N_VOCAB) < 0.005, rng.standard_normal(N_VOCAB), -np.inf),
}

CHAINS = {
    "defaults": SamplingParams(seed=1),
    "hot": SamplingParams(temperature=5.0, top_p=1.0, seed=2),
    "one": SamplingParams(top_k=1, seed=3),
    "largest selected": SamplingParams(temperature=5.0, top_k=128, top_p=1.0, seed=4),
    "larger": SamplingParams(temperature=5.0, top_k=129, top_p=1.0, seed=5),
    "whole vocabulary": SamplingParams(temperature=5.0, top_k=N_VOCAB + 1, top_p=1.0, seed=6),
    "no top-k": SamplingParams(temperature=2.0, top_k=0, top_p=0.5, seed=7),
    "penalties": SamplingParams(temperature=5.0, repeat_penalty=1.5, seed=8),
    "greedy": SamplingParams(temperature=0.0),
    "greedy with penalties": SamplingParams(temperature=0.0, repeat_penalty=1.5),
}


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A context after a decode of three rows, whose logits the tests overwrite."""
    path = write_target(tmp_path_factory.mktemp("model") / "target.gguf", Variant(n_vocab=N_VOCAB))
    with Model.target(path) as model, Context(model, ContextOptions(n_ctx=64, n_threads=1)) as context:
        from llama_eagle.sessions.session import EagleSession

        with EagleSession(context, None, SessionOptions(0)) as session:
            session.verify([1, 2, 3])
            yield session.ctx


def logits(ctx: Any) -> np.ndarray:
    import llama_cpp

    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, ROW), shape=(N_VOCAB,))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("chain", CHAINS)
def test_same_tokens(ctx: Any, chain: str, kind: str) -> None:
    import llama_cpp

    rng = np.random.default_rng(9)
    with Sampler(CHAINS[chain], N_VOCAB) as ours, Sampler(CHAINS[chain], N_VOCAB) as theirs:
        for _ in range(N_ROWS):
            logits(ctx)[:] = ROWS[kind](rng)
            expected = llama_cpp.llama_sampler_sample(theirs.handle, ctx, ROW)
            assert ours.sample(ctx, ROW) == expected
            assert ours.sample(ctx, -1) == llama_cpp.llama_sampler_sample(theirs.handle, ctx, -1)


def test_an_invalid_grammar_leaves_nothing_behind(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain is freed with the samplers that it has by then."""
    from llama_eagle.native import llama_cpp

    freed = []
    free = llama_cpp.llama_sampler_free

    def count(chain: Any) -> None:
        freed.append(llama_cpp.llama_sampler_chain_n(chain))
        free(chain)

    monkeypatch.setattr(llama_cpp, "llama_sampler_free", count)
    vocab = llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(ctx))
    with pytest.raises(UsageError, match="Correct it"):
        Sampler(SamplingParams(repeat_penalty=1.5, grammar="root ::= ("), N_VOCAB, vocab)
    assert freed == [1]


def with_one(value: float) -> np.ndarray:
    row = np.random.default_rng(3).standard_normal(N_VOCAB)
    row[77] = value
    return row


NO_NUMBERS = {
    "all equal": np.full(N_VOCAB, 0.5),
    "zeros": np.zeros(N_VOCAB),
    "NaN": np.full(N_VOCAB, np.nan),
    "excluded": np.full(N_VOCAB, -np.inf),
    "infinite": np.full(N_VOCAB, np.inf),
    "an overflow": with_one(np.inf),
}


@pytest.mark.parametrize("kind", [*NO_NUMBERS, "one NaN"])
@pytest.mark.parametrize("chain", CHAINS)
def test_rows_of_no_numbers(ctx: Any, chain: str, kind: str) -> None:
    """llama.cpp's samplers turn one NaN into NaN for all probabilities; its greedy choice passes over it."""
    logits(ctx)[:] = NO_NUMBERS.get(kind, with_one(np.nan))
    with Sampler(CHAINS[chain], N_VOCAB) as sampler:
        if (chain, kind) == ("greedy", "one NaN"):
            assert sampler.sample(ctx, ROW) == int(np.nanargmax(logits(ctx)))
        else:
            with pytest.raises(InputError, match="the model computes no numbers at token 3"):
                sampler.sample(ctx, ROW)


def test_samplers_that_are_switched_off_and_biases(ctx: Any) -> None:
    """llama-cpp-python's chains begin with penalties that are mostly switched off; a bias ahead of top-k counts."""
    import llama_cpp as api

    def chain(bias: float) -> Any:
        handle = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        biases = (api.llama_logit_bias * 1)(api.llama_logit_bias(77, bias))
        for part in (
            api.llama_sampler_init_penalties(N_VOCAB, 64, 1.0, 0.0, 0.0),
            api.llama_sampler_init_logit_bias(N_VOCAB, int(bias != 0), biases),
            api.llama_sampler_init_top_k(3),
            api.llama_sampler_init_dist(5),
        ):
            api.llama_sampler_chain_add(handle, part)
        return handle

    rng = np.random.default_rng(4)
    for bias in (0.0, 100.0):
        with contextlib.ExitStack() as stack:
            ours, theirs = chain(bias), chain(bias)
            stack.callback(api.llama_sampler_free, ours)
            stack.callback(api.llama_sampler_free, theirs)
            for _ in range(N_ROWS):
                logits(ctx)[:] = ROWS["many ties"](rng)
                token = calls.sample(ctx, ours, ROW)
                assert token == api.llama_sampler_sample(theirs, ctx, ROW)
                assert (token == 77) == (bias > 0)


def test_refusals(ctx: Any) -> None:
    import llama_cpp as api

    for add in (None, lambda: api.llama_sampler_init_temp(0.5), lambda: api.llama_sampler_init_top_k(4)):
        unfinished = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        if add:
            api.llama_sampler_chain_add(unfinished, add())
        with pytest.raises(NativeError, match="chooses no token"):
            calls.sample(ctx, unfinished, ROW)
    for row in (3, 99, -4):
        with pytest.raises(NativeError, match=f"no logits in row {row}"):
            calls.sample(ctx, unfinished, row)
    with pytest.raises(NativeError, match="sampler is null"):
        calls.sample(ctx, None, ROW)
    api.llama_sampler_free(unfinished)
