"""The draft vocabulary: the target tokens that a draft can propose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from llama_eagle.errors import InputError, UsageError
from llama_eagle.train.data.samples import Sample
from numpy.typing import NDArray

COVERAGE = 0.99  # of the tokens to learn: rarer ones are rarely drafted correctly, and each costs time in every round
MULTIPLE, MOST = 1024, 32000  # of the automatic size; published drafts have 32000


def require_embeddings(samples: Iterable[Sample], n_vocab: int) -> None:
    """Raise InputError for a text with a token that the target has no embedding for."""
    for sample in samples:
        if (token := int(sample.tokens.max())) >= n_vocab:
            raise InputError(
                f"{sample.source}: contains token {token}, but the target has {n_vocab} embeddings. Remove its text."
            )


def count_tokens(samples: Iterable[Sample], n_vocab: int) -> NDArray[np.int64]:
    """Count the occurrences of each token in the positions to learn, [V]."""
    counts = np.zeros(n_vocab, np.int64)
    for sample in samples:
        counts += np.bincount(sample.tokens[sample.mask], minlength=n_vocab)
    return counts


def choose_vocabulary(
    counts: NDArray[np.int64], n_vocab_draft: int | None, control: Sequence[int]
) -> NDArray[np.int64]:
    """Target ids [D], ascending: the control tokens, then those with the highest counts [V], ties by id.

    D is n_vocab_draft, or V if that is less; None: as many as cover COVERAGE of the data, at most MOST. Raises
    UsageError if the control tokens alone are more.
    """
    forced = np.unique(np.asarray(control, np.int64))
    if n_vocab_draft is None:
        n_vocab_draft = _size(np.delete(counts, forced), len(forced))
    if n_vocab_draft >= len(counts):
        return np.arange(len(counts), dtype=np.int64)
    if len(forced) > n_vocab_draft:
        raise UsageError(f"--draft-vocab {n_vocab_draft} is less than the target's {len(forced)} control tokens.")
    ranked = counts.copy()
    ranked[forced] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-ranked, kind="stable")[:n_vocab_draft]).astype(np.int64)


def _size(counts: NDArray[np.int64], n_forced: int) -> int:
    """Return the automatic size. counts: of the tokens that are not forced."""
    covered = np.cumsum(np.sort(counts)[::-1])
    n = n_forced + 1 + int(np.searchsorted(covered, COVERAGE * covered[-1]))
    return min(-(-n // MULTIPLE) * MULTIPLE, max(MOST, n_forced))
