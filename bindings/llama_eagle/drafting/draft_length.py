"""How many tokens to draft in the next round.

Pure decisions: measured times are passed in, no clock is read here. Lengths and positions are in tokens, times in ms.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from statistics import median
from typing import Protocol

from llama_eagle.errors import UsageError
from llama_eagle.native.limits import LONGEST


@dataclass(frozen=True)
class RoundCost:
    """What one round did and took: `draft_ms` for drafting, `verify_ms` for everything that follows it."""

    n_draft: int
    n_accepted: int
    draft_ms: float
    verify_ms: float


class DraftLength(Protocol):
    """A policy. `choose` is asked before each round, `observe` is told after it."""

    def choose(self, n_max: int) -> int:
        """Tokens to draft now, at most `n_max`."""

    def observe(self, round_cost: RoundCost) -> None: ...


class Fixed:
    """Always the same length, where it fits."""

    def __init__(self, n_draft: int) -> None:
        if n_draft < 0:
            raise UsageError(f"a draft of {n_draft} tokens: give 0 or more.")
        self.n_draft = n_draft

    def choose(self, n_max: int) -> int:
        return min(self.n_draft, n_max)

    def observe(self, round_cost: RoundCost) -> None:
        pass


class Acceptance:
    """Share of draft tokens accepted at each position, given that all earlier ones were; old rounds fade.

    Positions with few observations lean on the mean of all: that is also the guess for those never tried. When the
    last few rounds contradict what older ones say, the older ones are mostly forgotten.
    """

    MEMORY = 0.95  # weight of a round after the next: about 20 rounds count
    IDLE_MEMORY = 0.99  # the same for a round without a draft
    RECENT = 0.8  # the same for the rounds that may contradict: about 5 count
    SURPRISE = 2.5  # standard deviations
    FORGET = 0.2  # what older rounds count for after a surprise
    LEAN = 6.0  # observations that the mean of all positions counts for
    PRIOR, PRIOR_WEIGHT = 0.6, 1.0

    def __init__(self, n_max: int) -> None:
        self.tried = [0.0] * n_max
        self.accepted = [0.0] * n_max
        self._recent_tried = 0.0
        self._recent_accepted = 0.0

    def observe(self, n_draft: int, n_accepted: int) -> None:
        n_tried = min(n_draft, n_accepted + 1)
        self._recent_tried = self._recent_tried * self.RECENT + n_tried
        self._recent_accepted = self._recent_accepted * self.RECENT + n_accepted
        if n_draft:
            self._fade(self.FORGET if self._surprised() else self.MEMORY)
        else:
            self._fade(self.IDLE_MEMORY)
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
        return (sum(self.accepted) + self.PRIOR * self.PRIOR_WEIGHT) / (sum(self.tried) + self.PRIOR_WEIGHT)

    def expected_emitted(self, n_draft: int) -> float:
        """Tokens a round with `n_draft` drafts yields: one, and each draft whose predecessors were all accepted."""
        mean = self.mean
        shares = ((self.accepted[i] + self.LEAN * mean) / (self.tried[i] + self.LEAN) for i in range(n_draft))
        return 1 + sum(accumulate(shares, mul))


class Costs:
    """Time of something for each size, from the medians of the last few measurements.

    The first measurement of a size is dropped when another follows: it includes building a graph.
    """

    KEPT = 5

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}
        self._warm: set[int] = set()

    def observe(self, size: int, ms: float) -> None:
        times = self._seen.setdefault(size, deque(maxlen=self.KEPT))
        if size not in self._warm and times:
            times.clear()
            self._warm.add(size)
        times.append(ms)
        self._typical[size] = median(times)

    def known(self, size: int) -> bool:
        return size in self._warm

    def estimate(self, size: int) -> float | None:
        """Interpolated between measured sizes, extrapolated at the slope of the outermost two; None if unknown."""
        if size in self._typical:
            return self._typical[size]
        points = sorted(self._typical.items())
        if not points:
            return None
        if len(points) == 1:
            return points[0][1]
        for (n0, t0), (n1, t1) in pairwise(points):
            if size <= n1 or n1 == points[-1][0]:
                slope = max((t1 - t0) / (n1 - n0), 0.0) if size > n1 or size < n0 else (t1 - t0) / (n1 - n0)
                return max(t0 + slope * (size - n0), 0.0)
        return None


class Auto:
    """Takes the length with the most tokens per second by measured acceptance and measured costs.

    Few lengths are candidates, and one is left only for a clear gain, because each length has graphs of its own. When
    plain decoding is fastest nothing is drafted, and one token now and then shows whether that has changed: the
    further drafting is from paying, the rarer, so that probing costs at most `PROBE_SHARE` of the time.

    Costs change, with the power state or the context. So while drafting pays, another length is taken now and then for
    a few rounds: each in turn that would be the best at half its cost, so all within 8 (LOOK_EVERY + STAY) rounds.
    """

    LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
    GAIN = 1.04  # how much faster a length must promise to be
    STAY = 3  # rounds before a length is left
    PROBE_SHARE = 0.017
    SECOND_LOOK = 3  # tokens drafted in the round after a probe whose token was accepted
    PROBE_EVERY = (12, 400)  # rounds, least and most
    LOOK_EVERY = 120  # rounds at one length before the cost of another is measured again

    def __init__(self, n_max: int = LONGEST) -> None:
        if n_max < 1:
            raise UsageError(f"a longest draft of {n_max} tokens: give 1 or more.")
        self.n_max = n_max
        self.acceptance = Acceptance(n_max)
        self.draft_costs = Costs()
        self.verify_costs = Costs()
        self.current = min(3, n_max)
        self._looks = [0, *(n for n in self.LENGTHS if n <= n_max)]  # all candidates, the one looked at last is last
        self._look: int | None = None  # the length taken to measure its cost again
        self._rounds_here = 0
        self._since_draft = 0
        self._probing = False  # the last probe was promising

    def choose(self, n_max: int) -> int:
        if n_max < 1:
            return 0
        if self._calibrating():
            return min(self._calibration_length(), n_max)
        if self.current == 0:
            return min(self._probe_length(), n_max)
        return min(self.current if self._look is None else self._look, n_max)

    def observe(self, round_cost: RoundCost) -> None:
        n = round_cost.n_draft
        self.verify_costs.observe(n + 1, round_cost.verify_ms)
        if n:
            self.draft_costs.observe(n, round_cost.draft_ms)
        self.acceptance.observe(n, round_cost.n_accepted)
        self._since_draft = 0 if n else self._since_draft + 1
        self._rounds_here += 1
        if self.current == 0 and n:
            self._probing = 2 * round_cost.n_accepted >= n
        if not self._calibrating() and self._rounds_here >= self.STAY:
            self._reconsider()

    def speed(self, n_draft: int) -> float:
        """Tokens per ms that a length promises."""
        verify = self.verify_costs.estimate(n_draft + 1) or 0.0
        draft = (self.draft_costs.estimate(n_draft) or 0.0) if n_draft else 0.0
        return self.acceptance.expected_emitted(n_draft) / max(verify + draft, 1e-9)

    def _calibrating(self) -> bool:
        """Until plain decoding and one length have been measured past their first round."""
        return not (self.verify_costs.known(1) and self.draft_costs.known(self.current or min(3, self.n_max)))

    def _calibration_length(self) -> int:
        return 0 if self.draft_costs.known(self.current) else self.current

    def _reconsider(self) -> None:
        looked, self._look = self._look, None
        best = max(self._looks, key=self.speed)
        if best != self.current and self.speed(best) > self.GAIN * self.speed(self.current):
            self.current = best
            self._rounds_here = 0
            self._probing = False
        elif looked is not None:
            self._rounds_here = 0
        elif self.current and self._rounds_here >= self.LOOK_EVERY:
            self._look_again()

    def _look_again(self) -> None:
        here = self.speed(self.current)
        for n in self._looks:
            if n != self.current and 2 * self.speed(n) > here:
                self._look = n
                self._looks.remove(n)
                self._looks.append(n)
                break
        self._rounds_here = 0

    def _probe_length(self) -> int:
        """One token when a look at drafting is due, a few when the last look was promising, else 0."""
        if self._probing:
            return min(self.SECOND_LOOK, self.n_max)
        return int(self._since_draft >= self._probe_interval())

    def _probe_interval(self) -> int:
        plain = self.verify_costs.estimate(1) or 1.0
        extra = (self.verify_costs.estimate(2) or plain) + (self.draft_costs.estimate(1) or 0.0) - plain
        least, most = self.PROBE_EVERY
        return int(min(max(extra / plain / self.PROBE_SHARE, least), most))
