"""Drafter with several sources: each round uses the one with the highest expected tokens per second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from llama_eagle.drafting.auto import MODEL, OFFER, UNKNOWN, Expected, Policy
from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.drafting.drafter import NONE, OWN, OwnDrafter


class AdaptiveDrafter(OwnDrafter):
    """Drafter and policy in one: picks `first`, `model` or no draft, and the length, for each round.

    `first` proposes before the choice: it should be as cheap as a look-up; one that takes time is called rarely unless
    it is fastest. n_draft: the only length of drafts, 0: any.
    """

    def __init__(
        self,
        first: OwnDrafter | None,
        model: OwnDrafter | None,
        n_max: int,
        n_draft: int = 0,
        expected: Expected = UNKNOWN,
    ) -> None:
        self._drafters = [drafter for drafter in (first, model) if drafter is not None]
        self.name = " and ".join(drafter.name for drafter in self._drafters)
        self.n_max = n_max
        self.source: OwnDrafter | None = None  # the drafter of the round that is being verified
        self._first, self._model = first, model
        self._listeners = [drafter for drafter in self._drafters if drafter.lookup is None]
        self._policy = Policy(n_max, has_model=model is not None, n_draft=n_draft, expected=expected)
        self._source = 0
        self._came: list[int] = []  # tokens that were accepted since the last draft
        self._offer_ms = 0.0

    @property
    def source_name(self) -> str:
        """Name of `source`; a `first` with the same name as `model` gets the name of an own drafter."""
        if self.source is None:
            return NONE
        is_same = self.source is self._first and self._model is not None and self.source.name == self._model.name
        return OWN if is_same else self.source.name

    def begin(self, tokens: Sequence[int]) -> None:
        self._came = []
        self._policy.begin()
        for drafter in self._drafters:
            drafter.begin(tokens)

    def choose(self, n_max: int) -> int:
        """Return the largest draft length that fits; `draft` decides the actual one."""
        return min(n_max, self.n_max)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        came, self._came = [*self._came, id_last], []
        start = time.perf_counter()
        if self._first is not None and self._first.lookup is not None:
            self._source, length, offered = self._policy.look_up(self._first.lookup, came, n_max)
            self._offer_ms = (time.perf_counter() - start) * 1e3
        else:
            self._policy.text(came[1:])
            offered = self._offered(id_last, n_max)
            self._source, length = self._policy.choose(n_max)
        self.source = {OFFER: self._first, MODEL: self._model}.get(self._source)
        if self._source == MODEL and self._model is not None:
            return self._model.draft(id_last, length)
        return offered[:length]

    def accept(self, tokens: Sequence[int]) -> None:
        self._came += tokens
        for drafter in self._listeners:
            drafter.accept(tokens)

    def finish(self) -> None:
        """End the generation: add the last tokens to the look-up, because no further round will."""
        if self._first is not None and self._first.lookup is not None:
            self._first.accept(self._came)
            self._came = []

    def observe(self, round_cost: RoundCost) -> None:
        n, n_accepted, draft_ms, verify_ms = (
            round_cost.n_draft,
            round_cost.n_accepted,
            round_cost.draft_ms - self._offer_ms,
            round_cost.verify_ms,
        )
        self._policy.observe(RoundCost(n, n_accepted, draft_ms, verify_ms), self._source)

    def _offered(self, id_last: int, n_max: int) -> list[int]:
        self._offer_ms = 0.0
        if self._first is None or not self._policy.wants_offer:
            return []
        start = time.perf_counter()
        offered = self._first.draft(id_last, n_max)
        self._offer_ms = (time.perf_counter() - start) * 1e3
        self._policy.offer(offered, self._offer_ms)
        return offered
