"""Sampled text with drafts has the distribution of plain sampling: chi-square against a numpy reference.

Short texts are drawn again and again after one prompt. For each beginning that occurs, the tokens that follow it are
compared with the distribution that numpy computes from the logits after that beginning, evaluated without a draft.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_gguf import Variant, write_draft, write_target

pytestmark = pytest.mark.native

SOFT = Variant(sharpness=8.0, mix=0.4, spread=1.0)  # the drafted token is likely, and everything before has a say
PROMPT = list(b"the abc")
N_TOKENS = 4  # of a text: one from the prompt's row, the others from rounds
LEAST_EXPECTED = 5  # rarer tokens are counted together
LEAST_P_VALUE = 1e-4  # seeds are fixed: a run that passes, passes always

Prefix = tuple[int, ...]


def top_k(logits: np.ndarray, k: int) -> np.ndarray:
    smallest = np.sort(logits)[-k]
    assert np.count_nonzero(logits >= smallest) == k, "a tie: which of them stay is not defined"
    return np.where(logits >= smallest, logits, -np.inf)


def top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """The fewest most likely tokens whose probabilities reach p."""
    order = np.argsort(-logits)
    before = np.cumsum(softmax(logits)[order]) - softmax(logits)[order]
    return np.where(np.isin(np.arange(len(logits)), order[before < p]), logits, -np.inf)


def min_p(logits: np.ndarray, p: float) -> np.ndarray:
    return np.where(logits >= logits.max() + np.log(p), logits, -np.inf)


def penalized(logits: np.ndarray, seen: Sequence[int], repeat: float, frequency: float, presence: float) -> np.ndarray:
    """`seen`: the tokens generated so far; llama-cpp-python's chain does not count the prompt."""
    out = logits.copy()
    for token, count in Counter(seen).items():
        out[token] = out[token] * repeat if out[token] <= 0 else out[token] / repeat
        out[token] -= count * frequency + presence
    return out


def only(logits: np.ndarray, allowed: bytes) -> np.ndarray:
    return np.where(np.isin(np.arange(len(logits)), list(allowed)), logits, -np.inf)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


GRAMMAR = 'root ::= [d-q] [a-m] [e-h] "x" .*'
ALLOWED = (b"defghijklmnopq", b"abcdefghijklm", b"efgh", b"x")
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True)
class Case:
    """Arguments of `generate`, and the logits that remain by them, to be divided by the temperature."""

    arguments: dict[str, Any]
    reference: Callable[[np.ndarray, Prefix], np.ndarray]
    grammar: str | None = None

    def probabilities(self, logits: np.ndarray, generated: Prefix) -> np.ndarray:
        return softmax(self.reference(logits, generated) / self.arguments["temp"])


CASES = {
    "temperature": Case({**OFF, "temp": 0.9}, lambda logits, _: logits),
    "hot": Case({**OFF, "temp": 1.3}, lambda logits, _: logits),
    "top-k": Case({**OFF, "temp": 2.0, "top_k": 7}, lambda logits, _: top_k(logits, 7)),
    "top-p": Case({**OFF, "temp": 1.5, "top_p": 0.8}, lambda logits, _: top_p(logits, 0.8)),
    "min-p": Case({**OFF, "temp": 1.2, "min_p": 0.003}, lambda logits, _: min_p(logits, 0.003)),
    "penalties": Case(  # negative, so that tokens repeat in so short a text
        {**OFF, "temp": 0.9, "repeat_penalty": 0.9, "frequency_penalty": -3.0, "presence_penalty": -2.0},
        lambda logits, generated: penalized(logits, generated, 0.9, -3.0, -2.0),
    ),
    "grammar": Case({**OFF, "temp": 2.5}, lambda logits, generated: only(logits, ALLOWED[len(generated)]), GRAMMAR),
    "all": Case(
        {"temp": 1.5, "top_k": 8, "top_p": 0.95, "min_p": 0.002, "repeat_penalty": 0.8, "presence_penalty": -3.0},
        lambda logits, seen: min_p(top_p(top_k(penalized(logits, seen, 0.8, 0, -3.0), 8), 0.95), 0.002),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_target(folder / "target.gguf", SOFT)
    write_draft(folder / "draft.gguf", SOFT)
    return folder


def load(folder: Path, **options: Any) -> Any:
    from llama_eagle import EagleLlama

    return EagleLlama(folder / "target.gguf", n_ctx=64, n_threads=1, verbose=False, **options)


@pytest.fixture(scope="module")
def logits_after(folder: Path) -> Iterator[Callable[[Prefix], np.ndarray]]:
    """The logits after the prompt and some tokens, from plain decoding."""
    llm = load(folder)
    known: dict[Prefix, np.ndarray] = {}

    def logits(generated: Prefix) -> np.ndarray:
        if generated not in known:
            llm.reset()
            llm.eval([*PROMPT, *generated])
            known[generated] = llm.scores[-1].copy()
        return known[generated]

    yield logits
    llm.close()


@pytest.fixture(scope="module", params=["match", "rejection"])
def drafting(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    llm = load(folder, draft_path=folder / "draft.gguf", n_draft=3, draft_sampling=request.param)
    yield llm
    llm.close()


def draw(llm: Any, case: Case, n_texts: int) -> dict[Prefix, Counter[int]]:
    """Count the continuations of each beginning."""
    from llama_cpp import LlamaGrammar

    following: dict[Prefix, Counter[int]] = defaultdict(Counter)
    for seed in np.random.default_rng(1).integers(0, 2**32 - 1, n_texts):
        llm.set_seed(int(seed))
        grammar = None if case.grammar is None else LlamaGrammar.from_string(case.grammar, verbose=False)
        stream = llm.generate(PROMPT, grammar=grammar, **case.arguments)
        tokens = tuple(islice(stream, N_TOKENS))
        stream.close()
        for i, token in enumerate(tokens):
            following[tokens[:i]][token] += 1
    return following


def chi_square(counts: Counter[int], probabilities: np.ndarray) -> tuple[float, int]:
    """The statistic and its degrees of freedom; tokens expected fewer than LEAST_EXPECTED times share one cell."""
    assert all(probabilities[token] > 0 for token in counts), "a token that cannot be sampled was"
    observed = np.array([counts[token] for token in range(len(probabilities))], dtype=float)
    expected = probabilities * observed.sum()
    rare = expected < LEAST_EXPECTED
    if expected[rare].sum() < LEAST_EXPECTED:  # too few even together: with the rarest of the others
        rare[np.argmin(np.where(rare, np.inf, expected))] = True
    o, e = (np.append(values[~rare], values[rare].sum()) for values in (observed, expected))
    return float(((o - e) ** 2 / e).sum()), len(e) - 1


def p_value(following: dict[Prefix, Counter[int]], expected: Callable[[Prefix], np.ndarray]) -> float:
    """Return the p-value of all beginnings together: their statistics and degrees of freedom add up."""
    parts = [chi_square(counts, expected(prefix)) for prefix, counts in following.items() if counts.total() >= 50]
    statistic, freedom = (sum(values) for values in zip(*parts, strict=True))
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), torch.tensor(statistic / 2).double()))


def check(llm: Any, name: str, logits_after: Callable[[Prefix], np.ndarray], n_samples: int) -> None:
    case = CASES[name]
    before = llm.speculative_totals.n_accepted
    following = draw(llm, case, n_samples // N_TOKENS)
    assert sum(counts.total() for counts in following.values()) == n_samples
    assert llm.speculative_totals.n_accepted - before > n_samples // 50  # rows that an accepted draft reached
    assert p_value(following, lambda prefix: case.probabilities(logits_after(prefix), prefix)) > LEAST_P_VALUE


@pytest.mark.parametrize("name", CASES)
def test_drafts_do_not_change_the_distribution(
    drafting: Any, logits_after: Callable[[Prefix], np.ndarray], name: str
) -> None:
    check(drafting, name, logits_after, 1_200)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_drafts_do_not_change_the_distribution_of_many_samples(
    drafting: Any, logits_after: Callable[[Prefix], np.ndarray], name: str
) -> None:
    check(drafting, name, logits_after, 20_000)
