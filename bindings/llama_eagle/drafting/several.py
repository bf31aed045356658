"""Several sources of drafts, of which each round takes the one that promises the most tokens per second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llama_eagle.drafting.acceptance import Acceptance
from llama_eagle.drafting.auto import Auto
from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.drafting.drafter import NONE, OWN, Drafter, drafted, name_of
from llama_eagle.drafting.expected import UNKNOWN, Expected
from llama_eagle.drafting.round_times import RoundTimes


class Several:
    """A drafter and the policy of its lengths in one: `first`, `second` or, where neither pays, nothing.

    `first` is asked in every round, and what it says is compared with the text that follows, whether it was verified or
    not. So it should be cheap, as a look-up is: while asking it takes time that matters, it is asked only now and then
    unless it pays. `second` may cost what it likes; while it does not pay, it is asked now and then, and what it says
    is compared as well. `lengths`: those that a draft may have, one alone for a fixed length.
    """

    ASK_ANYWAY = 12  # rounds after which a `first` that takes time is asked again
    CHEAP = 0.05  # of a plain round

    def __init__(
        self,
        first: Drafter | None,
        second: Drafter | None,
        n_max: int,
        lengths: Sequence[int] = Auto.LENGTHS,
        expected: Expected = UNKNOWN,
    ) -> None:
        self.name = " and ".join(name_of(drafter) for drafter in (first, second) if drafter is not None)
        self.n_max = n_max
        self.source: Drafter | None = None  # the drafter of the round that is being verified
        self._first, self._second = first, second
        self._lengths = [n for n in lengths if n <= n_max] or [n_max]
        self._times = RoundTimes(expected)
        self._acceptance = Acceptance(n_max)
        self._auto = Auto(n_max, self._times, self._lengths if second is not None else (0,), looks=second is not None)
        self._said: list[int] = []  # by `first` in the last round
        self._looked: list[int] = []  # by `second`, where that was not verified
        self._look_ms = 0.0
        self._follows: list[int] | None = None  # tokens of the text in their place; None: not yet accepted
        self._is_cut = False  # what comes after them was inserted by the caller
        self._asking_ms = 0.0
        self._since_asked = 0
        self._probed = (0, 0)  # drafts of `second` that were compared, not verified: their tokens, and those right
        self._n_probes = 0

    @property
    def source_name(self) -> str:
        """The name of `source`; of a `first` that has the name of `second`, another one."""
        is_same = self.source is self._first and name_of(self._first) == name_of(self._second)
        return OWN if is_same and self._first is not None else name_of(self.source)

    def begin(self, tokens: Sequence[int]) -> None:
        self._said, self._looked, self._follows, self._is_cut = [], [], None, False
        for drafter in (self._first, self._second):
            if drafter is not None:
                drafter.begin(tokens)

    def choose(self, n_max: int) -> int:
        """The longest draft there may be: how long it gets, `draft` decides by who drafts."""
        return min(n_max, self.n_max)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        self._compare(id_last)
        self._said = said = self._ask_first(id_last, n_max)
        n_second = self._auto.choose(n_max)
        length = self._length_of_first(len(said))
        if length and self._first_pays(length, n_second):
            if self._auto.is_worth_a_look(self._speed_of_first(length), self._ms_of_first(length)):
                self._look(id_last, max(n_second, 1))
            self.source = self._first
            return said[:length]
        if self._auto.take_look():
            self._look(id_last, 1)
        self.source = self._second if n_second else None
        return drafted(self._second, id_last, n_second) if self._second is not None and n_second else []

    def accept(self, tokens: Sequence[int]) -> None:
        if self._follows is None:
            self._follows = list(tokens[1:])
        elif not self._is_cut:  # a sampled token, and tokens that the caller inserted after it
            self._follows, self._is_cut = [*self._follows, *tokens[:1]], True
        for drafter in (self._first, self._second):
            if drafter is not None:
                drafter.accept(tokens)

    def observe(self, round_cost: RoundCost) -> None:
        if self._looked:
            self._look_ms = round_cost.draft_ms
        if self._first is not None and self.source is self._first and round_cost.n_draft:
            self._times.observe(round_cost.n_draft, round_cost.verify_ms)
            self._auto.rest()
        else:
            self._auto.observe(round_cost)

    def take_probes(self) -> tuple[str, int, int, int]:
        """Since the last call: the name of `second`, its drafts that were only compared, their tokens, those right."""
        (n_tokens, n_right), n_probes = self._probed, self._n_probes
        self._probed, self._n_probes = (0, 0), 0
        return name_of(self._second), n_probes, n_tokens, n_right

    def _ask_first(self, id_last: int, n_max: int) -> list[int]:
        if self._first is None:
            return []
        dear = self._asking_ms > self.CHEAP * self._times.estimate(0)
        if dear and self.source is not self._first and self._since_asked < self.ASK_ANYWAY:
            self._since_asked += 1
            return []
        start = time.perf_counter()
        said = drafted(self._first, id_last, n_max)
        ms = (time.perf_counter() - start) * 1e3
        self._asking_ms += 0.2 * (min(ms, 2 * self._asking_ms) - self._asking_ms) if self._asking_ms else ms
        self._since_asked = 0
        return said

    def _look(self, id_last: int, n: int) -> None:
        if self._second is not None:
            self._looked = drafted(self._second, id_last, n)

    def _compare(self, id_last: int) -> None:
        """What was said in the last round with what came."""
        came = [*(self._follows or ()), *(() if self._is_cut else (id_last,))]
        if self._said:
            self._acceptance.observe(*_n_right(self._said, came))
        if self._looked:
            n_compared, n_right = _n_right(self._looked, came)
            self._auto.looked(n_compared, n_right, self._look_ms)
            self._probed = (self._probed[0] + n_compared, self._probed[1] + n_right)
            self._n_probes += n_compared > 0
        self._said, self._looked, self._follows, self._is_cut = [], [], None, False

    def _first_pays(self, length: int, n_second: int) -> bool:
        """`second` is asked where it promises more, and until its times are known."""
        if n_second and not self._times.draft.is_settled:
            return False
        return self._speed_of_first(length) > self._auto.best_speed()

    def _length_of_first(self, n_said: int) -> int:
        lengths = [n for n in self._lengths if 0 < n <= n_said] or [n_said]
        return max(lengths, key=self._speed_of_first)

    def _speed_of_first(self, n_draft: int) -> float:
        return self._acceptance.expected_emitted(n_draft) / self._ms_of_first(n_draft)

    def _ms_of_first(self, n_draft: int) -> float:
        return self._times.verify.estimate(n_draft + 1) + self._asking_ms


def who_drafted(drafter: Drafter | None, n_draft: int) -> str:
    """The name of what proposed the `n_draft` tokens of the last round; "none" for none."""
    if not n_draft:
        return NONE
    return drafter.source_name if isinstance(drafter, Several) else name_of(drafter)


def _n_right(said: Sequence[int], came: Sequence[int]) -> tuple[int, int]:
    """Of tokens that can be compared, and of the first of them that are right."""
    pairs = list(zip(said, came, strict=False))
    return len(pairs), next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))
