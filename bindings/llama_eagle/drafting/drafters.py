"""What proposes tokens: the EAGLE-3 draft, look-up in the text so far, or llama-cpp-python's own draft models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from llama_eagle.sessions.session import EagleSession


class Drafter(Protocol):
    """Proposes tokens that may come next. Verification decides; a bad proposal costs time, never correctness."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A generation starts; `tokens` are in the target's memory."""

    def draft(self, id_last: int, n_max: int) -> list[int]:
        """Up to `n_max` tokens to follow `id_last`, which follows everything begun with and accepted."""

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens are in the target's memory now, after the earlier ones."""


class EagleDrafter:
    """The session's EAGLE-3 draft; it follows the target's memory by itself."""

    def __init__(self, session: EagleSession, p_min: float) -> None:
        self._session = session
        self._p_min = p_min

    def begin(self, tokens: Sequence[int]) -> None:
        pass

    def draft(self, id_last: int, n_max: int) -> list[int]:
        return self._session.draft(id_last, n_max, self._p_min)

    def accept(self, tokens: Sequence[int]) -> None:
        pass


class PromptLookup:
    """Proposes what followed the last occurrence of the newest `n_gram` tokens (then fewer, down to `n_min`).

    Good for texts that repeat their input: edits, summaries, code. Costs microseconds.
    """

    def __init__(self, n_gram: int = 3, n_min: int = 2) -> None:
        self._sizes = range(n_gram, n_min - 1, -1)
        self._tokens: list[int] = []
        self._seen: dict[tuple[int, ...], int] = {}  # n-gram -> index after its last occurrence

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens = []
        self._seen = {}
        self.accept(tokens)

    def draft(self, id_last: int, n_max: int) -> list[int]:
        tail = (*self._tokens[-max(self._sizes) :], id_last)
        for size in self._sizes:
            start = self._seen.get(tail[-size:]) if len(tail) >= size else None
            if start is not None:
                return [*self._tokens[start : start + n_max], id_last][:n_max]
        return []

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # What ends here is recorded by the token that follows it, so that a tail never finds itself.
            for size in self._sizes:
                if len(self._tokens) >= size:
                    self._seen[tuple(self._tokens[-size:])] = len(self._tokens)
            self._tokens.append(int(token))


class ModelDrafter:
    """llama-cpp-python's `draft_model=` objects: called with all tokens, they return an array of proposals."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tokens: list[int] = []

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens = [int(token) for token in tokens]

    def draft(self, id_last: int, n_max: int) -> list[int]:
        proposed = self._model(np.array([*self._tokens, id_last], dtype=np.intc))
        return [int(token) for token in proposed[:n_max]]

    def accept(self, tokens: Sequence[int]) -> None:
        self._tokens += [int(token) for token in tokens]


class FirstOf:
    """Asks `first`; asks `second` where that has nothing to propose, or while `second` has more accepted.

    A look-up is nearly free and long when a text repeats itself, and useless otherwise. Both are asked again and again,
    so that a change of the text is noticed.
    """

    MEMORY = 0.8  # weight of what was accepted before, against the newest round
    ASK_ANYWAY = 12  # rounds after which the one that has been paying less is asked again

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._drafters = (first, second)
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
