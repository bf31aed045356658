"""What a round takes, by the number of its rows: estimated from all rounds so far.

A machine that other programs use as well is slower at times, for every length. Such rounds, two to eight times as long
as others, tell little of their length: what counts is what a round takes while nothing slows the machine for a moment.
Times are in ms, estimates of them are kept as logarithms, each with its variance, as a Kalman filter has them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from llama_eagle.drafting.expected import UNKNOWN, Expected

LEAST_MS = 1e-3


@dataclass
class Machine:
    """What lengths have in common: rounds so far, the logarithm of its slowness, the variance of one round's."""

    now: int = 0
    slowness: float = 0.0
    noise: float = 0.1**2


@dataclass
class Point:
    """The mean logarithm of a time, how many measurements it is worth, and when it was measured at which slowness."""

    mean: float
    weight: float
    count: int
    round: int
    slowness: float


class Round(NamedTuple):
    """Of the lately measured: whether its draft is in its time, and the logarithm of that."""

    n_draft: int
    is_drafted: bool
    value: float


@dataclass
class Fit:
    """A line through `sizes`, the errors of its logarithm there, and estimates there, none above that of a larger."""

    at_0: float
    slope: float
    sizes: list[int]
    errors: list[float]
    estimates: list[float]

    def line(self, size: int) -> float:
        return max(self.at_0 + self.slope * size, LEAST_MS)

    def estimate(self, size: int) -> float:
        """Between two of `sizes` the line's error is between theirs; beyond them it is that of the outermost."""
        sizes, errors = self.sizes, self.errors
        i = bisect_left(sizes, size)
        if i == len(sizes):
            return self.line(size) * exp(errors[-1])
        if sizes[i] == size:
            return self.estimates[i]
        error = errors[i]
        if i:
            error = errors[i - 1] + (error - errors[i - 1]) * (size - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return min(self.line(size) * exp(error), self.estimates[i])


class Curve:
    """Time by size: a line through what was measured, and how far each measured size lies beside it.

    How much a size's own measurements say against the line is decided when it is asked for: what the first rounds
    measured counts less once it turns out how noisy the machine is. `expected`: what the sizes take before anything is
    known, up to a factor, which is `like`'s until something was measured here.
    """

    SPREAD = 0.15**2  # variance of a size around the line
    MEMORY = 40  # measurements that count
    DRIFT = 0.1**2 / 400  # by which the variance of a size grows in each round without a measurement
    NEW = 3  # measurements of a size
    UNSHARED = 0.7  # of a lasting change of slowness: what may not be the same for every size
    EXPECTED = (1, 5, 17)  # sizes at which the expected shape counts as one uncertain measurement

    def __init__(self, expected: Callable[[int], float], machine: Machine, like: Curve | None = None) -> None:
        self.points: dict[int, Point] = {}
        self._expected = expected
        self._machine = machine
        self._like = like
        self._fit: Fit | None = None  # of the points as they are

    def estimate(self, size: int) -> float:
        """ms; as expected where nothing was measured. What slows a machine only adds time: a larger size bounds a
        smaller one."""
        if not self.points:
            return self._expected(size) * self._factor
        self._fit = self._fit or self._fitted()
        return self._fit.estimate(size)

    def variance(self, size: int) -> float:
        """Of the logarithm. A slowness beyond the noise that a size was not measured at may not be its."""
        point = self.points.get(size)
        if point is None:
            return self.SPREAD if self.points else 1.0
        changed = (self.UNSHARED * (self._machine.slowness - point.slowness)) ** 2
        return (
            self._own_variance(point) + self.DRIFT * (self._machine.now - point.round) + max(changed - self.SPREAD, 0.0)
        )

    def observe(self, size: int, value: float, more_noise: float) -> None:
        """`value`: the logarithm of a time, `more_noise`: its variance beyond that of every round."""
        machine = self._machine
        weight = machine.noise / (machine.noise + more_noise)
        point = self.points.setdefault(size, Point(value, 0.0, 0, machine.now, machine.slowness))
        known = min(point.weight, self.MEMORY, machine.noise / self.variance(size))
        point.weight = known + weight
        point.mean += weight / point.weight * (value - point.mean)
        point.count += 1
        point.round, point.slowness = machine.now, machine.slowness
        self._fit = None

    @property
    def is_settled(self) -> bool:
        """Whether some size is no longer new."""
        return any(point.count >= self.NEW for point in self.points.values())

    @property
    def _factor(self) -> float:
        """Of the expected times."""
        if not self.points:
            return self._like._factor if self._like else 1.0
        weights = {size: self._weight(point) for size, point in self.points.items()}
        logs = (weight * (self.points[size].mean - log(self._expected(size))) for size, weight in weights.items())
        return exp(sum(logs) / sum(weights.values()))

    def _weight(self, point: Point) -> float:
        """In a fit."""
        return 1 / (self._machine.noise / point.weight + 0.05**2)

    def _own_variance(self, point: Point) -> float:
        return 1 / (point.weight / self._machine.noise + 1 / self.SPREAD)

    def _fitted(self) -> Fit:
        """Weighted least squares of relative errors; estimates lie between the line and what was measured."""
        noise = self._machine.noise
        points = sorted(self.points.items())
        rows = [(size, exp(point.mean), self._weight(point)) for size, point in points]
        factor = self._factor
        rows += [(size, factor * self._expected(size), 1 / 0.4**2) for size in self.EXPECTED]
        rows = [(size, ms, weight / ms**2) for size, ms, weight in rows]
        total = sum(w for *_, w in rows)
        mean_x = sum(w * size for size, _, w in rows) / total
        mean_y = sum(w * ms for _, ms, w in rows) / total
        xx = sum(w * (size - mean_x) ** 2 for size, _, w in rows)
        xy = sum(w * (size - mean_x) * (ms - mean_y) for size, ms, w in rows)
        slope = max(xy / xx, 0.0)
        fit = Fit(mean_y - slope * mean_x, slope, [size for size, _ in points], [], [])
        for size, point in points:
            line = log(fit.line(size))
            fit.errors.append(point.mean - line)
            fit.estimates.append(exp(line + self._own_variance(point) * point.weight / noise * (point.mean - line)))
        for i in range(len(points) - 1, 0, -1):
            fit.estimates[i - 1] = min(fit.estimates[i - 1], fit.estimates[i])
        return fit


class RoundTimes:
    """Verification by rows, and drafting by tokens."""

    RECENT = 40  # rounds that tell how slow the machine is
    CLEAR = 0.25  # of them, at least, are taken to be slowed by nothing that passes
    USUAL = 2.0  # standard deviations: what lies beyond tells of other programs, more than of its length
    HALF = 0.67  # standard deviations within which half of all rounds lie
    LEAST_NOISE = 0.03**2
    CHANGED = 0.1**2  # more noise of a round whose length is not that of the round before: its graphs are made anew
    FIRST = 0.5**2  # and of the first round of a length

    def __init__(self, expected: Expected = UNKNOWN) -> None:
        self._machine = Machine()
        self.verify = Curve(expected.verify, self._machine)
        self.draft = Curve(expected.draft, self._machine, like=self.verify)
        self._recent: deque[Round] = deque(maxlen=self.RECENT)

    def estimate(self, n_draft: int) -> float:
        """ms of a round that drafts so many tokens, on the machine as it is when nothing slows it."""
        return self.verify.estimate(n_draft + 1) + (self.draft.estimate(n_draft) if n_draft else 0.0)

    def deviation(self, n_draft: int) -> float:
        """Standard deviation of that estimate's logarithm."""
        squared = self.verify.estimate(n_draft + 1) ** 2 * self.verify.variance(n_draft + 1)
        if n_draft:
            squared += self.draft.estimate(n_draft) ** 2 * self.draft.variance(n_draft)
        return float(squared**0.5 / self.estimate(n_draft))

    def __contains__(self, n_draft: int) -> bool:
        """Whether this length was measured."""
        return n_draft + 1 in self.verify.points

    def age(self, n_draft: int) -> int:
        """Rounds since this length was measured."""
        point = self.verify.points.get(n_draft + 1)
        return self._machine.now - (point.round if point else 0)

    def observe(self, n_draft: int, verify_ms: float, draft_ms: float | None = None) -> None:
        """`draft_ms` None: nothing was drafted, or by something else."""
        self._machine.now += 1
        changed = bool(self._recent) and self._recent[-1].n_draft != n_draft
        parts = [(self.verify, n_draft + 1, verify_ms)]
        if draft_ms is not None:
            parts.append((self.draft, n_draft, draft_ms))
        self._recent.append(Round(n_draft, draft_ms is not None, _log(sum(ms for *_, ms in parts))))
        if all(curve.points for curve, *_ in parts):
            self._follow(changed)
        for curve, size, ms in parts:
            self._measure(curve, size, _log(ms) - self._machine.slowness, self.CHANGED * changed)

    def pass_by(self) -> None:
        """A round that is not looked at."""
        self._machine.now += 1

    def _follow(self, changed: bool) -> None:
        """The machine's slowness, and half of the rounds' deviations from it as the noise."""
        machine = self._machine
        expected = {kind: self._expected(*kind) for kind in {(n, is_drafted) for n, is_drafted, _ in self._recent}}
        surprises = [value - expected[n, is_drafted] for n, is_drafted, value in self._recent]
        machine.slowness = self._clear_level(sorted(surprises))
        if not changed:
            off = abs(surprises[-1] - machine.slowness)
            machine.noise = max(
                machine.noise * exp(0.1 if off > self.HALF * machine.noise**0.5 else -0.1), self.LEAST_NOISE
            )

    def _expected(self, n_draft: int, is_drafted: bool) -> float:
        return _log(self.estimate(n_draft) if is_drafted else self.verify.estimate(n_draft + 1))

    def _clear_level(self, surprises: list[float]) -> float:
        """The mean of those that nothing slowed for a moment, which are around the lower quartile."""
        level = surprises[int(self.CLEAR * len(surprises))]
        usual = self.USUAL * self._machine.noise**0.5
        for _ in range(3):
            near = surprises[bisect_left(surprises, level - usual) : bisect_right(surprises, level + usual)]
            level = fmean(near) if near else level
        return level

    def _measure(self, curve: Curve, size: int, value: float, more_noise: float) -> None:
        more_noise += 0.0 if size in curve.points else self.FIRST
        if curve.points:
            off = abs(value - _log(curve.estimate(size)))
            usual = self.USUAL * (self._machine.noise + more_noise + curve.variance(size)) ** 0.5
            more_noise += max(off - usual, 0.0) ** 2
        curve.observe(size, value, more_noise)


def _log(ms: float) -> float:
    return log(max(ms, LEAST_MS))
