"""What rounds are expected to take before any was measured, and what follows for the first drafts."""

from __future__ import annotations

import pytest
from llama_eagle.drafting.auto import Auto
from llama_eagle.drafting.expected import Expected
from llama_eagle.drafting.round_times import RoundTimes

# 8 and 24 blocks of Qwen3.5-35B-A3B in Q4_K_M with an EAGLE-3 draft in Q8_0, by what they read
EXPERTS_8 = Expected((1.0, 1.163, 1.32, 1.473, 1.621, 1.764, 1.903, 2.038, 2.168), 0.1943)
EXPERTS_24 = Expected((1.0, 1.261, 1.513, 1.758, 1.995, 2.225, 2.447, 2.663, 2.871), 0.1037)
DENSE = Expected(token=0.0734)


def first_draft(expected: Expected) -> int:
    return Auto(16, RoundTimes(expected)).choose(16)


def test_experts_and_dear_drafts_begin_with_short_ones() -> None:
    assert first_draft(DENSE) == 3
    assert 1 <= first_draft(EXPERTS_8) < first_draft(DENSE)
    assert 1 <= first_draft(EXPERTS_24) < first_draft(DENSE)


def test_a_draft_that_costs_more_than_it_brings_is_not_begun_with() -> None:
    assert first_draft(Expected(token=1.0)) == 0


def test_nothing_measured_is_as_expected() -> None:
    times = RoundTimes(EXPERTS_8)
    assert times.estimate(0) == 1.0
    assert times.estimate(2) == EXPERTS_8.verify(3) + EXPERTS_8.draft(2)
    assert EXPERTS_8.verify(30) > EXPERTS_8.verify(17)  # beyond what was counted


@pytest.mark.parametrize("n_draft", [1, 4])
def test_a_draft_is_expected_at_the_pace_of_the_decodes(n_draft: int) -> None:
    """Before it was measured itself: its time is not left at some number of ms."""
    times = RoundTimes(EXPERTS_8)
    times.observe(0, 50.0)
    assert times.draft.estimate(n_draft) == pytest.approx(50.0 * EXPERTS_8.draft(n_draft))
    times.observe(2, 50.0 * EXPERTS_8.verify(3), 99.0)
    assert times.draft.estimate(2) == pytest.approx(99.0, rel=0.2)
