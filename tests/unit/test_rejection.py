"""Rejection sampling on small distributions: what is kept, and that the target's distribution comes out."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from llama_eagle.generation.rejection import Distribution, verified

N = 20_000


def dense(distribution: Distribution, n: int) -> np.ndarray:
    probs = np.zeros(n)
    probs[distribution.ids] = distribution.probs
    return probs


def random_distribution(rng: np.random.Generator, n: int) -> Distribution:
    """Over some of `n` tokens, in any order."""
    ids = rng.permutation(n)[: rng.integers(1, n + 1)].astype(np.int32)
    weights = rng.random(len(ids)) ** 4
    return Distribution(ids, weights / weights.sum())


@pytest.mark.parametrize("seed", range(10))
def test_what_is_verified_has_the_targets_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = random_distribution(rng, 8), random_distribution(rng, 8)
    drafted = [q.draw(rng) for _ in range(N)]
    tokens = [verified(token, q, p, rng) for token in drafted]
    expected = dense(p, 8)
    observed = np.bincount(tokens, minlength=8)
    assert not observed[expected == 0].any()
    possible = expected > 0
    statistic = ((observed - N * expected)[possible] ** 2 / (N * expected[possible])).sum()
    freedom = max(possible.sum() - 1, 1)
    assert torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2)) > 1e-4
    kept = np.mean(np.equal(drafted, tokens))
    assert kept == pytest.approx(np.minimum(expected, dense(q, 8)).sum(), abs=0.02)


def test_equal_distributions_keep_every_token() -> None:
    rng = np.random.default_rng(1)
    p = random_distribution(rng, 50)
    for _ in range(1000):
        token = p.draw(rng)
        assert verified(token, p, p, rng) == token


def test_what_is_left_of_a_distribution() -> None:
    p = Distribution(np.array([4, 1, 2], np.int32), np.array([0.5, 0.3, 0.2]))
    q = Distribution(np.array([2, 9, 4], np.int32), np.array([0.6, 0.2, 0.2]))
    rest = p.beyond(q)
    assert rest is not None
    assert dict(zip(rest.ids.tolist(), rest.probs.tolist(), strict=True)) == pytest.approx({4: 0.5, 1: 0.5, 2: 0.0})
    assert p.beyond(p) is None
    assert (p.prob(4), p.prob(3)) == (0.5, 0.0)


def test_a_token_that_the_target_excludes_is_replaced() -> None:
    """Also if the random number is the smallest possible."""
    p, q = (Distribution(np.array([token], np.int32), np.array([1.0])) for token in (4, 9))
    rng = Mock(random=lambda: 0.0)
    assert verified(9, q, p, rng) == 4
