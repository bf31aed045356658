"""What the study of trimmed heads counts."""

from __future__ import annotations

from vocabulary_coverage import fixed, following


def test_the_lowest_ids_are_known_after_the_prompt() -> None:
    assert fixed([99, 99, 1, 99, 7, 8, 2, 3], 8) == 4 / 6  # 99 and 8 are not; the prompt's two are not counted


def test_what_was_said_is_known_from_then_on() -> None:
    ids = [50, 1, 50, 60, 60, 1, 1, 1]  # eight rows: seven lowest ids and one that moves
    assert following(ids, 8) == 5 / 6  # 60 is new once


def test_the_least_recently_used_gives_way() -> None:
    assert following([50, 60, 50, 60, 50, 60, 50, 60], 8) == 0  # one row cannot keep two
    assert following([50, 60, 50, 60, 50, 60, 50, 60], 16) == 1
