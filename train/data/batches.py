"""Assignment of samples to batches: a function of seed and step, so that a resumed run repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

POOL = 64  # batches whose samples are sorted by length together, so that little is padded
MAX_HELD_OUT = 256  # samples: more would make the figures hardly surer, and evaluations slow


class BatchPlan:
    """Batches of sample numbers. An optimizer step takes `per_step` of them, all of one epoch."""

    def __init__(self, lengths: Sequence[int], batch_size: int, per_step: int, seed: int) -> None:
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.per_step = per_step
        self.seed = seed
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    @property
    def steps_per_epoch(self) -> int:
        n_batches = -(-len(self.lengths) // self.batch_size)
        return -(-n_batches // self.per_step)

    def batches(self, step: int) -> list[list[int]]:
        """Return the `per_step` batches of an optimizer step."""
        epoch, i = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch))
        found = self._epoch[1]
        return [found[j % len(found)] for j in range(i * self.per_step, (i + 1) * self.per_step)]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(len(self.lengths))
        found: list[list[int]] = []
        for start in range(0, len(order), POOL * self.batch_size):
            pool = order[start : start + POOL * self.batch_size]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            found += [pool[i : i + self.batch_size].tolist() for i in range(0, len(pool), self.batch_size)]
        return [found[i] for i in random.permutation(len(found))]


@dataclass(frozen=True)
class Split:
    """Numbers of the samples to train on, and of those held out."""

    train: list[int]
    held_out: list[int]


def split_held_out(n_samples: int, share: float, seed: int) -> Split:
    """Split samples into training and held-out ones.

    Each part gets at least one sample unless `share` is 0; at most MAX_HELD_OUT are held out.
    """
    if share <= 0 or n_samples < 2:
        return Split(list(range(n_samples)), [])
    n_held_out = min(max(1, round(share * n_samples)), n_samples - 1, MAX_HELD_OUT)
    order = np.random.default_rng([seed, n_samples]).permutation(n_samples)
    return Split(sorted(order[n_held_out:].tolist()), sorted(order[:n_held_out].tolist()))
