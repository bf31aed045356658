"""Types that need an importance matrix, and matrices of a model that it does not reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llama_eagle.errors import UsageError
from llama_eagle.gguf.header import Header

# Types of files that contain matrices of the types that llama.cpp refuses without statistics.
NEEDS_MATRIX = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "q2_k_s")

# Never a factor of a matrix product: llama.cpp has no statistics for them, and needs none.
_NO_PRODUCT = ("_norm.", "ssm_conv1d", "shortconv.conv", "nextn.embed_tokens")


def require_matrix(ftype: str, imatrix: Path | None) -> None:
    """Raise `UsageError` for a type that needs an importance matrix if there is none, for every model."""
    if ftype.lower() in NEEDS_MATRIX and imatrix is None:
        raise UsageError(f"type {ftype} needs an importance matrix (--imatrix); q2_k and q3_k_m need none.")


def unreached(files: Sequence[Header], entries: Mapping[str, object]) -> Iterator[str]:
    """Yield the matrices of blocks that have no entry, such as those of an MTP head that was not evaluated."""
    for file in files:
        for name, tensor in file.tensors.items():
            is_matrix = name.startswith("blk.") and name.endswith(".weight") and len(tensor.shape) > 1
            if is_matrix and name not in entries and not any(part in name for part in _NO_PRODUCT):
                yield name


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and the number of further ones."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def about_experts(unused: Mapping[str, tuple[int, int]]) -> str:
    """Return the sentence about experts without statistics."""
    counted = [f"{name} ({some} of {total})" for name, (some, total) in unused.items()]
    return f"some experts were never chosen, and all their columns have the same weight: {listed(counted)}."
