"""How many drafted tokens are accepted."""

from __future__ import annotations

from itertools import accumulate
from operator import mul


class Acceptance:
    """Share of draft tokens accepted at each position, given that all earlier ones were; old rounds fade.

    Positions with few observations lean on the mean of all: that is also the guess for those never tried. When the
    last few rounds contradict what older ones say, the older ones are mostly forgotten.
    """

    MEMORY = 0.975  # weight of a round after the next: about 40 rounds count
    IDLE_MEMORY = 0.985  # the same for a round without a draft
    RECENT = 0.8  # the same for the rounds that may contradict: about 5 count
    SURPRISE = 2.7  # standard deviations
    FORGET = 0.2  # what older rounds count for after a surprise
    LEAN = 12.0  # observations that the mean of all positions counts for
    LONG_MEMORY = 0.997  # the same for what is expected where little was tried recently
    PRIOR, PRIOR_WEIGHT = 0.65, 12.0

    def __init__(self, n_max: int) -> None:
        self.tried = [0.0] * n_max
        self.accepted = [0.0] * n_max
        self._long_tried = 1.0
        self._long_accepted = self.PRIOR
        self._recent_tried = 0.0
        self._recent_accepted = 0.0

    def observe(self, n_draft: int, n_accepted: int) -> None:
        n_tried = min(n_draft, n_accepted + 1)
        self._recent_tried = self._recent_tried * self.RECENT + n_tried
        self._recent_accepted = self._recent_accepted * self.RECENT + n_accepted
        surprised = n_draft > 0 and self._surprised()
        self._fade(self.FORGET if surprised else self.MEMORY if n_draft else self.IDLE_MEMORY)
        weight = self.FORGET if surprised else self.LONG_MEMORY
        self._long_tried = self._long_tried * weight + n_tried
        self._long_accepted = self._long_accepted * weight + n_accepted
        for i in range(n_tried):
            self.tried[i] += 1
            self.accepted[i] += i < n_accepted

    def _fade(self, weight: float) -> None:
        self.tried = [count * weight for count in self.tried]
        self.accepted = [count * weight for count in self.accepted]

    def _surprised(self) -> bool:
        mean, n = self.mean, self._recent_tried
        deviation = (n * mean * (1 - mean) + 0.5) ** 0.5
        return abs(self._recent_accepted - n * mean) > self.SURPRISE * deviation

    @property
    def mean(self) -> float:
        prior = self._long_accepted / self._long_tried
        return (sum(self.accepted) + prior * self.PRIOR_WEIGHT) / (sum(self.tried) + self.PRIOR_WEIGHT)

    def expected_emitted(self, n_draft: int) -> float:
        """Tokens a round with `n_draft` drafts yields: one, and each draft whose predecessors were all accepted."""
        return self.emitted()[n_draft]

    def emitted(self) -> list[float]:
        """`expected_emitted` of 0, 1, ... drafts."""
        mean = self.mean
        counts = zip(self.accepted, self.tried, strict=True)
        shares = ((accepted + self.LEAN * mean) / (tried + self.LEAN) for accepted, tried in counts)
        return list(accumulate(accumulate(shares, mul), initial=1.0))
