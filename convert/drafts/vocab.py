"""The draft vocabulary: the target token of each row of the draft's head."""

from __future__ import annotations

import numpy as np
from llama_eagle.errors import ConversionError

LIMIT = 1 << 31  # far above any token id or offset; keeps sums within int64


def map_vocabulary(
    d2t: np.ndarray, t2d: np.ndarray | None, *, n_vocab: int, absolute: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Return absolute target ids [D] (int64) and warnings.

    d2t: [D] offsets (target id = i + d2t[i]), or target ids if `absolute`. t2d: [V] nonzero for the target tokens that
    have a row. Ids must be in the target's vocabulary and differ; nothing else is certain about published files.
    """
    stored = _integers(d2t, "d2t")
    steps = np.arange(len(stored), dtype=np.int64)
    ids, other = (stored, stored + steps) if absolute else (stored + steps, stored)
    mask = None if t2d is None else _integers(t2d, "t2d") != 0
    if fault := _fault(ids, mask, n_vocab):
        hint = "--no-absolute-d2t" if absolute else "--absolute-d2t"
        kind = "offsets" if absolute else "absolute ids"
        advice = "download it again" if _fault(other, mask, n_vocab) else f"it would be valid as {kind}: try {hint}"
        raise ConversionError(f"d2t, read as {'absolute ids' if absolute else 'offsets'}, {fault}; {advice}")
    warnings = []
    if not absolute and mask is None and len(stored) > 1 and not _fault(other, mask, n_vocab):
        warnings.append("d2t is read as offsets; it would also be valid as absolute ids, and there is no t2d to decide")
    return ids, warnings


def is_identity(ids: np.ndarray) -> bool:
    return bool((ids == np.arange(len(ids))).all())


def _integers(values: np.ndarray, name: str) -> np.ndarray:
    """Return int64 [n] of any integer, boolean, or whole-numbered float32/float64 tensor."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind == "f" and flat.dtype.itemsize >= 4:
        with np.errstate(invalid="ignore"):
            if not (np.isfinite(flat) & (np.floor(flat) == flat)).all():
                raise ConversionError(f"{name} contains values that are not integers; download the file again")
    elif flat.dtype.kind not in "iub":
        raise ConversionError(f"{name} is stored as {flat.dtype}, which does not represent token ids exactly")
    if flat.size and not (flat.min() > -LIMIT and flat.max() < LIMIT):
        raise ConversionError(f"{name} contains numbers beyond any vocabulary; download the file again")
    return flat.astype(np.int64)


def _fault(ids: np.ndarray, mask: np.ndarray | None, n_vocab: int) -> str | None:
    """Return the reason why these cannot be the target ids of the rows; None if they can."""
    if not ids.size:
        return "is empty"
    if ids.min() < 0 or ids.max() >= n_vocab:
        return f"gives target ids from {ids.min()} to {ids.max()}, outside the vocabulary of {n_vocab}"
    if len(ids) < n_vocab and is_identity(ids):
        return f"is all zeros for {len(ids)} of {n_vocab} tokens: a buffer that was never filled"
    if len(np.unique(ids)) != len(ids):
        return f"gives {len(ids) - len(np.unique(ids))} target ids twice"
    if mask is not None:
        if mask.size != n_vocab:
            return f"cannot be checked: t2d has {mask.size} entries for a vocabulary of {n_vocab}"
        if np.count_nonzero(mask) != len(ids) or not mask[ids].all():
            return "disagrees with t2d"
    return None
