"""Look-up in the text so far."""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """Proposes what followed the last occurrence of the newest `n_gram` tokens (then fewer, down to `n_min`).

    Good for texts that repeat their input: edits, summaries, code. Costs microseconds.
    """

    name = "look-up"

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
