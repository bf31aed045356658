"""What a round takes, by the number of its rows: estimated from all rounds so far.

A machine that other programs use as well is slower at times, by the same factor for every length. So each round tells
two things: how slow the machine is just now, and how its length compares with the others. Times are in ms, estimates
of them are kept as logarithms, each with its variance, as a Kalman filter has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log

LEAST_MS = 1e-3


@dataclass
class Point:
    """The mean logarithm of a time, how many measurements it is worth, and when it was measured at which slowness."""

    mean: float
    weight: float
    count: int
    round: int = 0
    slowness: float = 0.0


class Curve:
    """Time by size: a line through what was measured, and how far each measured size lies beside it.

    How much a size's own measurements say against the line is decided when it is asked for: what the first rounds
    measured counts less once it turns out how noisy the machine is. `shape`: the times that are expected of the sizes,
    up to a factor, before anything is known.
    """

    SPREAD = 0.15**2  # variance of a size around the line
    MEMORY = 40  # measurements that count
    DRIFT = 0.1**2 / 400  # by which the variance of a size grows in each round without a measurement
    NEW = 3  # measurements of a size
    UNSHARED = 0.7  # of a lasting change of slowness: what may not be the same for every size
    EXPECTED = (1, 5, 17)  # sizes at which the expected shape counts as one uncertain measurement

    def __init__(self, shape: Callable[[int], float]) -> None:
        self.points: dict[int, Point] = {}
        self._shape = shape
        self._noise = 0.1**2  # variance of one measurement's logarithm
        self._line = (0.0, 0.0)
        self._estimates: dict[int, float] = {}

    def estimate(self, size: int) -> float:
        """ms; 1 where nothing was measured yet. What slows a machine only adds time: a larger size bounds a smaller."""
        if size not in self._estimates:
            above = (self._own_estimate(other) for other in self.points if other > size)
            self._estimates[size] = min([self._own_estimate(size), *above])
        return self._estimates[size]

    def variance(self, size: int, now: int, slowness: float) -> float:
        """Of the logarithm. A slowness beyond the noise that a size was not measured at may not be its."""
        point = self.points.get(size)
        if point is None:
            return self.SPREAD if self.points else 1.0
        changed = (self.UNSHARED * (slowness - point.slowness)) ** 2
        return self._own_variance(point) + self.DRIFT * (now - point.round) + max(changed - self._noise, 0.0)

    def observe(self, size: int, value: float, noise: float, more_noise: float) -> None:
        """`value`: the logarithm of a time. Its variance is `noise`, as that of all others, and `more_noise`.

        The first rounds of a size may include what is done once: a time of less than half of theirs counts alone.
        """
        self._noise = noise
        weight = noise / (noise + more_noise)
        point = self.points.setdefault(size, Point(value, 0.0, 0))
        if 0 < point.count < self.NEW and value < point.mean - log(2):
            point.mean, point.weight = value, 0.0
        point.weight = min(point.weight, self.MEMORY) + weight
        point.mean += weight / point.weight * (value - point.mean)
        point.count += 1
        self._fit()

    @property
    def is_settled(self) -> bool:
        """Whether some size is no longer new."""
        return any(point.count >= self.NEW for point in self.points.values())

    def _own_estimate(self, size: int) -> float:
        point = self.points.get(size)
        if point is None:
            return self._from_line(size) * exp(self._beside(size))
        line = log(self._from_line(size))
        return exp(line + self._own_variance(point) * point.weight / self._noise * (point.mean - line))

    def _own_variance(self, point: Point) -> float:
        return 1 / (point.weight / self._noise + 1 / self.SPREAD)

    def _from_line(self, size: int) -> float:
        at_0, slope = self._line
        return max(at_0 + slope * size, LEAST_MS) if self.points else 1.0

    def _beside(self, size: int) -> float:
        """The line's error between the two measured sizes around this one; beyond them, that of the outermost."""
        below = max((s for s in self.points if s < size), default=None)
        above = min((s for s in self.points if s > size), default=None)
        errors = {s: self.points[s].mean - log(self._from_line(s)) for s in (below, above) if s is not None}
        if below is None or above is None:
            return next(iter(errors.values()), 0.0)
        return errors[below] + (errors[above] - errors[below]) * (size - below) / (above - below)

    def _fit(self) -> None:
        """Weighted least squares of relative errors."""
        rows = [(size, exp(p.mean), 1 / (self._noise / p.weight + 0.05**2)) for size, p in self.points.items()]
        total = sum(weight for *_, weight in rows)
        scale = exp(sum(weight * log(ms / self._shape(size)) for size, ms, weight in rows) / total)
        rows += [(size, scale * self._shape(size), 1 / 0.4**2) for size in self.EXPECTED]
        weights = [weight / ms**2 for _, ms, weight in rows]
        total = sum(weights)
        mean_x = sum(w * size for w, (size, *_) in zip(weights, rows, strict=True)) / total
        mean_y = sum(w * ms for w, (_, ms, _) in zip(weights, rows, strict=True)) / total
        xx = sum(w * (size - mean_x) ** 2 for w, (size, *_) in zip(weights, rows, strict=True))
        xy = sum(w * (size - mean_x) * (ms - mean_y) for w, (size, ms, _) in zip(weights, rows, strict=True))
        slope = max(xy / xx, 0.0)
        self._line = (mean_y - slope * mean_x, slope)
        self._estimates = {}


class RoundTimes:
    """Verification by rows, and drafting by tokens."""

    FOLLOW = 0.1  # how fast the machine's slowness is followed
    FOLLOW_SLOWLY = 0.05
    LARGEST = 0.7  # of a surprise that is believed: a factor of two
    CHANGED = 0.1**2  # more noise of a round whose length is not that of the round before: its graphs are made anew
    FIRST = 0.5**2  # and of the first round of a length

    def __init__(self) -> None:
        self.verify = Curve(lambda n_rows: 1 + 0.1 * (n_rows - 1))
        self.draft = Curve(lambda n_tokens: 0.5 + n_tokens)
        self.now = 0
        self.slowness = 0.0
        self._lasting = 0.0  # slowness of the last twenty rounds or so
        self._noise = 0.1**2
        self._last: int | None = None

    def estimate(self, n_draft: int) -> float:
        """ms of a round that drafts so many tokens, on the machine as it is when nothing slows it."""
        return self.verify.estimate(n_draft + 1) + (self.draft.estimate(n_draft) if n_draft else 0.0)

    def deviation(self, n_draft: int) -> float:
        """Standard deviation of that estimate's logarithm."""
        parts = [(self.verify, n_draft + 1), *([(self.draft, n_draft)] if n_draft else [])]
        variance = sum(curve.estimate(size) ** 2 * self._variance(curve, size) for curve, size in parts)
        return float(variance**0.5 / self.estimate(n_draft))

    def age(self, n_draft: int) -> int:
        """Rounds since this length was measured."""
        point = self.verify.points.get(n_draft + 1)
        return self.now - point.round if point else self.now

    def observe(self, n_draft: int, verify_ms: float, draft_ms: float | None = None) -> None:
        """`draft_ms` None: nothing was drafted, or by something else."""
        self.now += 1
        changed = self._last is not None and self._last != n_draft
        self._last = n_draft
        parts = [(self.verify, n_draft + 1, verify_ms)]
        if draft_ms is not None:
            parts.append((self.draft, n_draft, draft_ms))
        is_known = all(curve.points for curve, *_ in parts)
        expected = sum(curve.estimate(size) for curve, size, _ in parts)
        surprise = log(max(sum(ms for *_, ms in parts), LEAST_MS) / expected) if is_known else self.slowness
        for curve, size, ms in parts:
            self._measure(curve, size, ms, self.CHANGED * changed)
        off = min(max(surprise - self.slowness, -self.LARGEST), self.LARGEST)
        if not changed:
            self._noise += self.FOLLOW_SLOWLY * (off**2 - self._noise)
        self.slowness += self.FOLLOW * (0.3 if changed else 1.0) * off
        self._lasting += self.FOLLOW_SLOWLY * (self.slowness - self._lasting)

    def _measure(self, curve: Curve, size: int, ms: float, more_noise: float) -> None:
        value = log(max(ms, LEAST_MS)) - self.slowness
        if curve.points:
            expected = log(max(curve.estimate(size), LEAST_MS))
            lowest = -self.LARGEST if curve.is_settled else -inf
            value = expected + min(max(value - expected, lowest), self.LARGEST)
        more_noise += 0.0 if size in curve.points else self.FIRST
        curve.observe(size, value, self._noise, more_noise)
        curve.points[size].round, curve.points[size].slowness = self.now, self._lasting

    def _variance(self, curve: Curve, size: int) -> float:
        return curve.variance(size, self.now, self._lasting)
