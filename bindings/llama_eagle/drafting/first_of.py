"""Two drafters, of which the one that pays is asked."""

from __future__ import annotations

from collections.abc import Sequence

from llama_eagle.drafting.drafter import Drafter, name_of


class FirstOf:
    """Asks `first`; asks `second` where that has nothing to propose, or while `second` has more accepted.

    A look-up is nearly free and long when a text repeats itself, and useless otherwise. Both are asked again and again,
    so that a change of the text is noticed.
    """

    MEMORY = 0.8  # weight of what was accepted before, against the newest round
    ASK_ANYWAY = 12  # rounds after which the one that has been paying less is asked again

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._drafters = (first, second)
        self.name = f"{name_of(first)} and {name_of(second)}"
        self._accepted = [2.0, 1.0]  # tokens a draft of each has had accepted, recently
        self._last: int | None = None  # which one proposed the round that is being verified
        self._since_first = 0

    def begin(self, tokens: Sequence[int]) -> None:
        self._last = None
        for drafter in self._drafters:
            drafter.begin(tokens)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        pays = self._accepted[0] >= self._accepted[1] or self._since_first >= self.ASK_ANYWAY
        self._last = None
        for i, drafter in enumerate(self._drafters):
            if i == 0 and not pays:
                continue
            if proposed := drafter.draft(id_last, n_max):
                self._last = i
                break
        else:
            proposed = []
        self._since_first = 0 if self._last == 0 else self._since_first + 1
        return proposed

    def accept(self, tokens: Sequence[int]) -> None:
        if self._last is not None:
            before = self._accepted[self._last]
            self._accepted[self._last] = self.MEMORY * before + (1 - self.MEMORY) * (len(tokens) - 1)
            self._last = None
        for drafter in self._drafters:
            drafter.accept(tokens)
