"""The normalizer of a unigram tokenizer: a double array that llama.cpp traverses for every text."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from llama_eagle.gguf.header import ArrayRef, Header

U8, I8 = 0, 1
LEAF, VALUE, LABEL = 1 << 8, (1 << 31) - 1, (1 << 31) | 0xFF  # bits of a node: src/llama-vocab.cpp, xcda_array_view


def check_charsmap(header: Header, key: str) -> Iterator[str]:
    """Check that every node and every replacement that a text can reach is inside the array."""
    array = header.keys[key]
    if not isinstance(array, ArrayRef) or array.type_id not in (U8, I8):
        yield f"the key {key} is not an array of bytes"
        return
    blob = header.raw_array(array)
    size = struct.unpack_from("<I", blob)[0] if len(blob) >= 4 else len(blob)
    if not blob:
        return
    if 4 + size >= len(blob) or blob[-1] or not _stays_inside(blob[4 : 4 + size // 4 * 4], len(blob) - 4 - size):
        yield f"the key {key} is damaged: it points outside itself"


def _stays_inside(table: bytes, n_replacements: int) -> bool:
    import numpy as np

    nodes = np.frombuffer(table, np.uint32)
    if not nodes.size:
        return True
    seen = np.zeros(nodes.size, bool)
    characters = np.arange(1, 256, dtype=np.uint32)
    frontier = _base(nodes[:1])
    while frontier.size:  # positions to combine with the next character
        children = frontier[:, None] ^ characters
        if children.max() >= nodes.size:
            return False
        matching = children[(nodes[children] & LABEL) == characters]
        matching = np.unique(matching[~seen[matching]])
        seen[matching] = True
        frontier = matching ^ _base(nodes[matching])
        leaves = frontier[(nodes[matching] & LEAF) != 0]
        if leaves.size and (leaves.max() >= nodes.size or (nodes[leaves] & VALUE).max() >= n_replacements):
            return False
    return True


def _base(nodes: Any) -> Any:
    return (nodes >> 10) << ((nodes & (1 << 9)) >> 6)
