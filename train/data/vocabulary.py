"""The draft vocabulary: the target tokens that a draft can propose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from llama_eagle.errors import UsageError
from llama_eagle.train.data.samples import Sample
from numpy.typing import NDArray


def count_tokens(samples: Iterable[Sample], n_vocab: int) -> NDArray[np.int64]:
    """Count the occurrences of each token in the positions to learn, [V]."""
    counts = np.zeros(n_vocab, np.int64)
    for sample in samples:
        counts += np.bincount(sample.tokens[sample.mask], minlength=n_vocab)
    return counts


def choose_vocabulary(counts: NDArray[np.int64], n_vocab_draft: int, control: Sequence[int]) -> NDArray[np.int64]:
    """Target ids [D], ascending: the control tokens, then those with the highest counts [V], ties by id.

    D is n_vocab_draft, or V if that is less. Raises UsageError if the control tokens alone are more.
    """
    if n_vocab_draft >= len(counts):
        return np.arange(len(counts), dtype=np.int64)
    forced = np.unique(np.asarray(control, np.int64))
    if len(forced) > n_vocab_draft:
        raise UsageError(f"--draft-vocab {n_vocab_draft} is less than the target's {len(forced)} control tokens.")
    ranked = counts.copy()
    ranked[forced] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-ranked, kind="stable")[:n_vocab_draft]).astype(np.int64)
