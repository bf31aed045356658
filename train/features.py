"""Sources of batches: the target run in the loop, or its features on disk (store.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.targets.checkpoint import Images, Target
from llama_eagle.vision.rows import text_positions
from torch import Tensor


class Batch(NamedTuple):
    """Some samples, padded at the end: rows as llama_eagle/vision/rows.py defines them. tokens: [B, S]; mask: [B, S],
    false where padded; features: [B, S, A * T]; final: [B, S, T]; embedded: [B, S, T], the rows' inputs, and positions:
    [B, S, 3], None where all rows are tokens; best: [B, S], the target's choices, None where they are not stored."""

    tokens: Tensor
    mask: Tensor
    features: Tensor
    final: Tensor
    embedded: Tensor | None = None
    positions: Tensor | None = None
    best: Tensor | None = None


class FeatureSource(Protocol):
    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return a batch of the samples with these numbers."""


class OnlineFeatures:
    """Runs the target on every batch."""

    def __init__(self, target: Target, images: Images | None, samples: Sequence[Sample]) -> None:
        self.target = target
        self.images = images
        self.samples = samples

    def batch(self, numbers: Sequence[int]) -> Batch:
        samples = [self.samples[n] for n in numbers]
        tokens = pad([torch.from_numpy(sample.tokens) for sample in samples]).long().to(self.target.device)
        mask = pad([torch.from_numpy(sample.mask) for sample in samples]).to(self.target.device)
        vision = self._vision(samples, tokens)
        features, final, embedded = self.target.run(tokens, **vision)
        if self.images is None or not vision:
            return Batch(tokens, mask, features, final)
        return Batch(tokens, mask, features, final, embedded, positions(samples, self.images.token).to(tokens.device))

    def _vision(self, samples: Sequence[Sample], tokens: Tensor) -> dict[str, Tensor]:
        if self.images is None or not any(sample.images for sample in samples):
            return {}
        each = [self.images.pixels(sample.images, sample.source) for sample in samples if sample.images]
        joined = {name: torch.cat([pixels[name] for pixels in each]).to(tokens.device) for name in each[0]}
        return {**joined, "mm_token_type_ids": (tokens == self.images.token).int()}


def positions(samples: Sequence[Sample], image_token: int) -> Tensor:
    """Return the positions of the rows, [B, S, 3]; padded rows have none."""
    places = [text_positions(sample.tokens == image_token, sample.grids) for sample in samples]
    return pad([torch.from_numpy(each).long() for each in places])


def pad(rows: Sequence[Tensor]) -> Tensor:
    """Pad to [B, longest, ...] with zeros at the end."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
