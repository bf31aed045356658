"""The first drafts, before any round was measured: by the weights that rounds read."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from llama_eagle.drafting.auto import Auto, Expected
from llama_eagle.drafting.choose import expected_times

pytestmark = pytest.mark.native

# 8 and 24 blocks of Qwen3.5-35B-A3B in Q4_K_M with an EAGLE-3 draft in Q8_0, by the bytes that they read
EXPERTS_8 = Expected((1.0, 1.163, 1.32, 1.473, 1.621, 1.764, 1.903, 2.038, 2.168), 0.1943)
EXPERTS_24 = Expected((1.0, 1.261, 1.513, 1.758, 1.995, 2.225, 2.447, 2.663, 2.871), 0.1037)
DENSE = Expected(token=0.0734)


def first_draft(expected: Expected) -> int:
    return Auto(16, expected).choose(16)


@pytest.mark.parametrize("drafts_blocks", [False, True])
def test_times_follow_the_bytes(drafts_blocks: bool) -> None:
    session: Any = Mock(
        bytes_read=lambda n_rows: 400 + 100 * n_rows, n_draft_max=2, draft_bytes_read=125, drafts_blocks=drafts_blocks
    )
    found = expected_times(session)
    assert found.decodes == (1.0, 1.2, 1.4)
    assert (found.draft if drafts_blocks else found.token) == 0.25
    assert expected_times(Mock(bytes_read=session.bytes_read, n_draft_max=1, has_draft=False)) == Expected((1.0, 1.2))


def test_experts_and_dear_drafts_begin_with_short_ones() -> None:
    assert first_draft(DENSE) in (2, 3)
    assert 1 <= first_draft(EXPERTS_8) < first_draft(DENSE)
    assert 1 <= first_draft(EXPERTS_24) <= first_draft(DENSE)


def test_a_draft_that_costs_more_than_it_brings_is_not_begun_with() -> None:
    assert first_draft(Expected(token=1.0)) == 0
