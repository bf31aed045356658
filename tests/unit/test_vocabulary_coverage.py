"""What the study of trimmed heads counts."""

from __future__ import annotations

from vocabulary_coverage import fixed, following


def test_the_lowest_ids_are_known() -> None:
    assert fixed([99, 1, 7, 8, 2], 8) == [False, True, True, False, True]


def test_what_was_said_is_known_from_then_on() -> None:
    # eight rows: seven lowest ids and one that moves
    assert following([50, 1, 50, 60, 60, 7], 8) == [False, True, True, False, True, False]


def test_the_least_recently_used_gives_way() -> None:
    assert not any(following([50, 60, 50, 60, 50, 60], 8))  # one row cannot keep two
    assert following([50, 60, 50, 60, 50, 60], 16) == [False, False, True, True, True, True]
