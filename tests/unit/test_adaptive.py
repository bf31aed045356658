"""Several drafters over texts that suit one of them or none, on recorded costs: what is taken, and what that costs."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from llama_eagle.drafting.adaptive import AdaptiveDrafter
from llama_eagle.drafting.choose import combine
from llama_eagle.drafting.draft_length import Fixed, RoundCost
from llama_eagle.drafting.drafter import NONE, GivenDrafter, OwnDrafter
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.generation.stats import Statistics, unaccepted

# ms of a verification by rows and of a draft by tokens: Qwen3.5-0.8B shape, Q8_0, two cores (docs/performance.md).
VERIFY = {1: 26.7, 2: 28.2, 3: 28.4, 4: 30.8, 5: 34.8, 7: 43.5, 9: 50.1, 13: 66.0, 17: 82.0}
DRAFT_TOKEN = 1.2
HALF = 600  # tokens
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

pytestmark = pytest.mark.native


class Knows(OwnDrafter):
    """Says what follows, right with a chance that depends on the place; silent where that is None."""

    def __init__(self, name: str, text: Sequence[int], right: Callable[[int], float | None], ms: float) -> None:
        self.name, self.token_ms = name, ms
        self._text, self._right = text, right
        self._rng = random.Random(name)
        self._at = 0
        self.ms = 0.0  # of drafts so far
        self.n_asked = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self._at = len(tokens)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        right = self._right(self._at)
        if right is None:
            return []
        self.ms += self.token_ms * n_max
        self.n_asked += 1
        follows = self._text[self._at + 1 : self._at + 1 + n_max]
        return [token if self._rng.random() < right else -1 for token in follows]

    def accept(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)


def verify_ms(n_rows: int) -> float:
    sizes = sorted(VERIFY)
    high = next(i for i, size in enumerate(sizes) if size >= n_rows)
    if sizes[high] == n_rows:
        return VERIFY[n_rows]
    low_size, high_size = sizes[high - 1], sizes[high]
    share = (n_rows - low_size) / (high_size - low_size)
    return VERIFY[low_size] + share * (VERIFY[high_size] - VERIFY[low_size])


def play(text: list[int], drafter: Any, length: Any, sources: list[Knows]) -> tuple[float, list[str]]:
    """ms for the whole text, and what drafted each round."""
    rng = random.Random(5)
    drafter.begin(text[:1])
    at, total, used = 1, 0.0, []
    while at < len(text) - 1:
        before = sum(source.ms for source in sources)
        n_max = length.choose(min(16, len(text) - 1 - at))
        drafted = drafter.draft(text[at], n_max) if n_max else []
        draft_ms = sum(source.ms for source in sources) - before
        n_right = next((i for i, token in enumerate(drafted) if token != text[at + 1 + i]), len(drafted))
        ms = verify_ms(len(drafted) + 1) * (1 + rng.gauss(0, 0.03))
        drafter.accept(text[at : at + 1 + n_right])
        length.observe(RoundCost(len(drafted), n_right, draft_ms, ms))
        used.append(drafter.source_name if drafted else NONE)
        total += draft_ms + ms
        at += n_right + 1
    return total, used


def by_half(first: float | None, second: float | None) -> Callable[[int], float | None]:
    return lambda at: first if at < HALF else second


TEXTS: dict[str, tuple[Callable[[int], float | None], Callable[[int], float | None]]] = {
    "the model fails halfway": (by_half(0.1, 0.9), by_half(0.8, 0.05)),
    "look-up fails halfway": (by_half(0.95, 0.05), by_half(0.6, 0.6)),
    "look-up falls silent halfway": (by_half(0.95, None), by_half(0.6, 0.6)),
    "both fail halfway": (by_half(0.9, 0.1), by_half(0.8, 0.1)),
    "the model alone is good": (by_half(0.1, 0.1), by_half(0.8, 0.8)),
    "nothing helps": (by_half(0.1, 0.1), by_half(0.1, 0.1)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_faster_one_is_taken(name: str) -> None:
    """Over the whole text within five percent of the better one at its best length, and three of plain decoding."""
    text = list(range(2 * HALF))
    look_up, model = TEXTS[name]

    def sources() -> list[Knows]:
        return [Knows("look-up", text, look_up, 0.0), Knows("model", text, model, DRAFT_TOKEN)]

    alone = []
    for i in (0, 1):
        for n in LENGTHS:
            source = sources()[i]
            alone.append(play(text, source, Fixed(n), [source])[0])
    first, second = sources()
    both = AdaptiveDrafter(first, second, 16)
    ms, used = play(text, both, both, [first, second])
    plain = alone[0]
    assert min(alone) / ms > (0.97 if min(alone) > 0.98 * plain else 0.95)
    assert set(used) <= {"look-up", "model", "none"}


def test_look_up_alone_takes_long_drafts_where_they_are_right_and_none_where_not() -> None:
    def look_up() -> Knows:
        return Knows("look-up", text, by_half(0.97, 0.05), 0.0)

    text = list(range(2 * HALF))
    source = look_up()
    alone = AdaptiveDrafter(source, None, 16)
    ms, used = play(text, alone, alone, [source])
    assert used[20:60] == ["look-up"] * 40
    source = look_up()
    good_half = play(text[: HALF + 1], source, Fixed(16), [source])[0]
    assert ms < 1.05 * (good_half + HALF * VERIFY[1])


def test_policies_decide_what_is_left_open() -> None:
    """Among several drafters, and the length by "auto"; neither for one drafter with a fixed length, or for none."""
    first, second = (Knows(name, [], lambda _: 1.0, 0.0) for name in ("look-up", "model"))
    for drafters, n_draft in (([first], "auto"), ([first, second], "auto"), ([first, second], 4)):
        both, length = combine(list(drafters), n_draft, 8)
        assert isinstance(both, AdaptiveDrafter) and both is length
    for n_draft in (0, 4):
        drafter, length = combine([first], n_draft, 8)
        assert drafter is first and isinstance(length, Fixed) and length.n_draft == n_draft
    for n_draft in (4, "auto"):
        drafter, length = combine([], n_draft, 8)
        assert drafter is None and not isinstance(length, AdaptiveDrafter)
    drafter, length = combine([first, second], "auto", 8, sampled=True)
    assert drafter is first and not isinstance(length, AdaptiveDrafter)


def test_a_fixed_length_stays_and_the_better_one_drafts() -> None:
    text = list(range(2 * HALF))
    first = Knows("look-up", text, by_half(0.9, 0.1), 0.0)
    second = Knows("model", text, by_half(0.2, 0.8), DRAFT_TOKEN)
    both = AdaptiveDrafter(first, second, 16, 4)
    _, used = play(text, both, both, [first, second])
    assert used[5:50].count("look-up") > 40
    assert used[-50:].count("model") > 40
    assert both.draft(1, 2) == [] or len(both.draft(1, 2)) <= 2


@pytest.mark.parametrize("name", ["model", "none"])
def test_drafters_are_told_apart_whatever_their_names(name: str) -> None:
    text = list(range(2 * HALF))
    first = Knows(name, text, by_half(0.95, 0.95), 0.0)
    second = Knows("model", text, by_half(0.6, 0.6), DRAFT_TOKEN)
    both = AdaptiveDrafter(GivenDrafter(first), second, 16)
    _, used = play(text, both, both, [first, second])
    assert used.count("drafter") > 0.6 * len(used)
    assert GivenDrafter(first).source_name == ("drafter" if name == "none" else "model")


def test_a_model_that_becomes_good_is_noticed() -> None:
    text = list(range(2 * HALF))
    model = Knows("model", text, by_half(0.02, 0.9), DRAFT_TOKEN)
    alone = AdaptiveDrafter(None, model, 16)
    _, used = play(text, alone, alone, [model])
    plain = used[:HALF]
    assert plain.count("model") < 0.2 * len(plain)
    assert used[HALF:].count("model") > 0.5 * len(used[HALF:])


def test_tokens_of_the_caller_are_no_drafts() -> None:
    """Inserted tokens count as text, and the next draft follows them."""
    text = list(range(40))
    first = Knows("look-up", text, by_half(1.0, 1.0), 0.0)
    both = AdaptiveDrafter(first, None, 8, 4)
    both.begin(text[:1])
    assert both.draft(text[1], 4) == [2, 3, 4, 5]
    both.accept(text[1:3])
    both.accept([3, 90, 91])
    assert len(both.draft(92, 4)) == 4


@pytest.mark.parametrize("lookup", [0.2, None])
def test_a_dead_head_next_to_a_look_up_is_noticed(lookup: float | None) -> None:
    text = [random.Random(2).randrange(1000) for _ in range(2 * HALF)]
    first = Knows("look-up", text, lambda _: lookup, 0.0)
    for right in (0.0, 0.5):
        second = Knows("EAGLE-3", text, lambda _: right, DRAFT_TOKEN)  # noqa: B023
        adaptive = AdaptiveDrafter(first, second, 16)
        statistics = Statistics()
        _, used = play(text, adaptive, adaptive, [first, second])
        for name in used:
            statistics.add_round(int(name != "none"), 0 if right == 0 or name != "EAGLE-3" else 1, 1, name)
        assert (unaccepted(statistics) is not None) == (right == 0), statistics.rounds_of


@pytest.mark.parametrize("is_look_up", [True, False])
def test_the_time_of_a_proposal_is_not_that_of_the_draft(is_look_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock is 7 ms after the one before; a proposal takes two."""
    seconds = itertools.count(100.0, 0.007)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    text = list(range(200)) * 2
    first = PromptLookup() if is_look_up else Knows("look-up", text, lambda _: 1.0, 0.0)
    adaptive = AdaptiveDrafter(first, None, 8)
    observed: list[float] = []
    monkeypatch.setattr(adaptive._policy, "observe", lambda cost, _source: observed.append(cost.draft_ms))
    adaptive.begin(text[:20])
    adaptive.draft(text[19], 8)
    adaptive.observe(RoundCost(0, 0, 20.0, 30.0))
    assert observed == pytest.approx([13.0])
