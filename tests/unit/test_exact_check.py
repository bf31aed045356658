"""The check itself: what it compares and what it reports, without a model."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.sessions import exact
from llama_eagle.sessions.exact_check import CheckOptions, _batches, _first_difference

ON_CUDA = {"where": "CUDA0", "type": "q8_0", "tensors": 3, "why": "never verified"}


def test_batches_cover_the_text_once_and_repeat_with_the_seed() -> None:
    options = CheckOptions(n_prompt=7, max_rows=5, max_threads=3, seed=1)
    batches = list(_batches(100, options))
    assert batches[0][:2] == (7, 12) and batches[-1][1] == 100
    assert all(a[1] == b[0] for a, b in itertools.pairwise(batches))
    assert {stop - start for start, stop, _ in batches} >= {1, 2, 3, 4, 5}
    assert {threads for *_, threads in batches} == {1, 2, 3}
    assert batches == list(_batches(100, options))


def test_the_first_difference_is_named_to_the_bit() -> None:
    alone = np.ones((3, 4), np.float32)
    batch = alone.copy()
    batch[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    batch[2, 0] = -1
    found = _first_difference(alone, batch, start=10, n_threads=2)
    assert (found.token, found.row, found.n_rows, found.n_threads, found.logit, found.bit) == (11, 1, 3, 2, 2, 0)
    assert found.alone == 1 and found.batch > 1
    assert _first_difference(alone, np.where(batch > 0, alone, batch), 0, 1).bit == 31


def test_the_sign_of_zero_is_a_difference() -> None:
    zero = np.zeros((1, 2), np.float32)
    assert _first_difference(zero, -zero, 0, 1).bit == 31


def with_report(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    held = {"exact": False, "mode": "strict", "inexact": [], "unverified": []}
    monkeypatch.setattr(exact, "report", lambda _: held | found)


def test_unverified_weights_are_told_and_inexact_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(handle=None)
    with_report(monkeypatch, exact=True)
    assert exact.require(model) is None
    with_report(monkeypatch, unverified=[ON_CUDA])
    assert exact.require(model) == "3 of q8_0 in CUDA0: never verified"
    with_report(monkeypatch, inexact=[ON_CUDA])
    with pytest.raises(EnvironmentFailure, match="no exact kernel for: 3 of q8_0 in CUDA0"):
        exact.require(model)
