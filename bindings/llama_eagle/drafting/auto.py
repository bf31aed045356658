"""The draft length that promises the most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from llama_eagle.drafting.acceptance import Acceptance
from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.drafting.round_times import RoundTimes
from llama_eagle.errors import UsageError
from llama_eagle.native.limits import LONGEST


class Auto:
    """Takes the length with the most tokens per second by measured acceptance and measured times.

    Few lengths are candidates, and one is left only for a gain, because each has graphs of its own. Another one is
    tried where it may be faster by what is not known of it, if the gain over the rounds to come outweighs what the
    trial costs. When plain decoding is fastest, a short draft shows now and then whether that has changed: the dearer
    it is and the less a good one would bring, the rarer. `looks`: such a draft is not verified but compared with the
    text that follows; `take_look` tells when, and `looked` is told how it went.
    """

    LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
    GAIN = 1.03  # how much faster a length must promise to be
    TRIAL = 2  # rounds of a length that was measured before: one alone may be slow by chance
    OPTIMISM = 1.0  # standard deviations
    HOPELESS = 0.5  # of the current length's speed: what promises no more is not tried
    LIKELY = 0.25  # the chance that it is so
    HORIZON = (30, 300)  # rounds to come, least and most: as many as there were
    SWITCH = 0.15  # of a round: what going there and back costs
    NEW_TEXT = 1 / 400  # the chance in a round that drafts are accepted differently from now on
    GOOD = 0.75  # the acceptance to hope for then
    NEW_COSTS = 1 / 50_000  # the chance in a round that a length takes half the time from now on
    CONVINCING = 2  # looks in a row that were right
    SECOND_LOOK = 3  # tokens drafted after a probe that was accepted
    PROBE_SHARE = 0.015  # of the time, at most, goes into probes
    PROBE_EVERY = 8  # rounds, at least
    PLAIN_STEP = 4  # of plain rounds in a row, every so many is looked at: they are alike, and looking takes time

    def __init__(
        self,
        n_max: int = LONGEST,
        times: RoundTimes | None = None,
        lengths: Sequence[int] = LENGTHS,
        *,
        looks: bool = False,
    ) -> None:
        if n_max < 1:
            raise UsageError(f"a longest draft of {n_max} tokens: give 1 or more.")
        self.n_max = n_max
        self.acceptance = Acceptance(n_max)
        self.times = times or RoundTimes()
        self._candidates = [n for n in lengths if n <= n_max] or [n_max]
        speeds = self._speeds(self._estimates())
        self.current = max(speeds, key=speeds.__getitem__)
        self._trial = 0  # rounds left of it
        self._tried = 0  # its length
        self._rounds = 0
        self._idle = 0  # rounds since something was drafted here
        self._looks = looks
        self._wants_look = False
        self._look_ms = 0.0  # of the last one
        self._n_seen_right = 0  # looks in a row

    def choose(self, n_max: int) -> int:
        return min(self._tried if self._trial else self.current, n_max)

    def observe(self, round_cost: RoundCost) -> None:
        n = round_cost.n_draft
        self.acceptance.observe(n, round_cost.n_accepted)
        self._rounds += 1
        self._idle = 0 if n else self._idle + 1
        self._trial = max(self._trial - 1, 0)
        if self.current == n == 0 and self._idle % self.PLAIN_STEP:
            self.times.pass_by()
            return
        self.times.observe(n, round_cost.verify_ms, round_cost.draft_ms if n else None)
        if not self._trial:
            self._reconsider(promising=0 < n <= 2 * round_cost.n_accepted)

    def rest(self) -> None:
        """A round went to another drafter."""
        self._idle += 1

    def take_look(self) -> bool:
        """Whether a token is to be drafted in this round without verifying it."""
        wanted, self._wants_look = self._wants_look, False
        self._idle = 0 if wanted else self._idle
        return wanted

    def looked(self, n_compared: int, n_right: int, ms: float) -> None:
        """Of the tokens of a look, so many could be compared with the text, and the first so many were right."""
        self._idle = 0
        self._look_ms = ms
        self.acceptance.observe(n_compared, n_right)
        self._n_seen_right = self._n_seen_right + 1 if n_right else 0
        if self.current == 0 and 0 < self._n_seen_right < self.CONVINCING:
            self._wants_look = True
        elif self.current == 0 and n_right:
            self._try(min(self.SECOND_LOOK, self.n_max), 1)

    def best_speed(self) -> float:
        """Tokens per ms that the best length promises."""
        return max(self._speeds(self._estimates()).values())

    def is_worth_a_look(self, speed: float, ms: float) -> bool:
        """Whether it is time to see what drafts are worth now, while rounds of `ms` reach a `speed` without them."""
        return self._is_due((self._look_ms or self.times.draft.estimate(1)) / ms, speed)

    def _is_worth_a_probe(self, speeds: dict[int, float], times: dict[int, float]) -> bool:
        n = self._n_probe
        return n > 0 and self._is_due(times[n] / times[0] * max(1 - speeds[n] / speeds[0], 0.0), speeds[0])

    def _is_due(self, loss: float, speed: float) -> bool:
        good = max(_emitted(n, self.GOOD) / self.times.estimate(n) for n in self._candidates)
        due = max(_interval(loss, self.NEW_TEXT, good / speed - 1), loss / self.PROBE_SHARE, self.PROBE_EVERY)
        return self._idle >= due

    def _reconsider(self, *, promising: bool) -> None:
        times = self._estimates()
        speeds = self._speeds(times)
        best = max(speeds, key=speeds.__getitem__)
        if speeds[best] > self.GAIN * speeds[self.current]:
            self.current = best
        if self.current == 0 and promising:
            self._try(min(self.SECOND_LOOK, self.n_max), 1)
        elif self.current == 0 and self._looks and self.is_worth_a_look(speeds[0], times[0]):
            self._wants_look = True
        elif self.current == 0 and not self._looks and self._is_worth_a_probe(speeds, times):
            self._try(self._n_probe, 1)
        else:
            least = self.HOPELESS * speeds[self.current]
            others = (n for n in self._candidates if n != self.current and speeds[n] > least)
            worth = {n: self._worth(n, speeds, times) for n in others}
            if worth and max(worth.values()) > 0:
                n = max(worth, key=worth.__getitem__)
                self._try(n, self.TRIAL if self.current and n in self.times else 1)

    def _estimates(self) -> dict[int, float]:
        """ms of a round, by its length."""
        return {n: self.times.estimate(n) for n in self._candidates}

    def _speeds(self, times: dict[int, float]) -> dict[int, float]:
        """Tokens per ms that each length promises."""
        emitted = self.acceptance.emitted()
        return {n: emitted[n] / ms for n, ms in times.items()}

    @property
    def _n_probe(self) -> int:
        """The shortest draft, 0 where there is none."""
        return min((n for n in self._candidates if n), default=0)

    def _try(self, n_draft: int, n_rounds: int) -> None:
        self._trial, self._tried = n_rounds, n_draft

    def _worth(self, n: int, speeds: dict[int, float], times: dict[int, float]) -> float:
        """Of a trial's first round, in rounds at the current length."""
        share = speeds[n] / speeds[self.current]
        loss = times[n] / times[self.current] * max(1 - share, 0.0) + self.SWITCH
        least, most = self.HORIZON
        to_come = min(max(self._rounds, least), most)
        gain = share * (1 + self.OPTIMISM * self.times.deviation(n)) / self.GAIN - 1
        if self.times.age(n) >= _interval(loss, self.NEW_COSTS, 2 * share - 1):
            gain = max(gain, 2 * share - 1)
        return self.LIKELY * gain * to_come - loss


def _emitted(n_draft: int, acceptance: float) -> float:
    return sum(acceptance**i for i in range(n_draft + 1))


def _interval(loss: float, rate: float, gain: float) -> float:
    """Rounds between trials of something that costs `loss`, and from some round on brings `gain` in each, which happens
    at a `rate`: where the trials cost as much as the rounds that pass until it is noticed."""
    return (2 * loss / (rate * gain)) ** 0.5 if gain > 0 else inf
