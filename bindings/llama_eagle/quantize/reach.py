"""Matrices of a model that an importance matrix does not reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llama_eagle.gguf.header import Header

# Never a factor of a matrix product: llama.cpp has no statistics for them, and needs none.
_NO_PRODUCT = ("_norm.", "ssm_conv1d", "shortconv.conv", "nextn.embed_tokens")


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
