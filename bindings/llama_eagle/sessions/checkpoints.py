"""Checkpoints of a hybrid model's recurrent state, so that an edited or continued chat is not evaluated from its start.

The keys and values of attention layers can be truncated anywhere, a recurrent state cannot. A checkpoint contains only
the recurrent part, and is valid while the tokens before it are unchanged.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Checkpoint:
    """The recurrent state after the first `n_past` tokens."""

    n_past: int
    data: bytes


class CheckpointStore:
    """Checkpoints of the current text within a budget of bytes. The one whose loss costs least is dropped first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: list[Checkpoint] = []  # sorted by n_past

    @property
    def n_bytes(self) -> int:
        return sum(len(kept.data) for kept in self._kept)

    @property
    def positions(self) -> list[int]:
        return [kept.n_past for kept in self._kept]

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint and drop others to make room. One that exceeds the budget by itself is not kept."""
        if len(checkpoint.data) > self.budget:
            return
        kept = [other for other in self._kept if other.n_past != checkpoint.n_past]
        self._kept = sorted([*kept, checkpoint], key=lambda other: other.n_past)
        while self.n_bytes > self.budget:
            del self._kept[self._least_missed(checkpoint)]

    def best(self, n_past: int) -> Checkpoint | None:
        """Return the last checkpoint at or before `n_past`."""
        return next((kept for kept in reversed(self._kept) if kept.n_past <= n_past), None)

    def forget_after(self, n_past: int) -> None:
        """Drop the checkpoints after `n_past`, because later tokens have changed."""
        self._kept = [kept for kept in self._kept if kept.n_past <= n_past]

    def _least_missed(self, newest: Checkpoint) -> int:
        """Return the index of the checkpoint closest to its predecessor: its loss costs the fewest tokens."""
        gaps = {
            i: kept.n_past - (self._kept[i - 1].n_past if i else 0)
            for i, kept in enumerate(self._kept)
            if kept is not newest
        }
        return min(gaps, key=lambda i: gaps[i])


def capture(ctx: Any, n_past: int) -> Checkpoint | None:
    """Return the current recurrent state of sequence 0; None if llama.cpp has none."""
    from llama_eagle.native import llama_cpp

    flags = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    size = int(llama_cpp.llama_state_seq_get_size_ext(ctx, 0, flags))
    buffer = (ctypes.c_uint8 * size)()
    written = int(llama_cpp.llama_state_seq_get_data_ext(ctx, buffer, size, 0, flags))
    return Checkpoint(n_past, bytes(memoryview(buffer)[:written])) if written else None


def restore(ctx: Any, checkpoint: Checkpoint) -> bool:
    """Restore the recurrent state. The caller must then trim the session to `checkpoint.n_past`."""
    from llama_eagle.native import llama_cpp

    flags = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    size = len(checkpoint.data)
    buffer = (ctypes.c_uint8 * size).from_buffer_copy(checkpoint.data)
    return int(llama_cpp.llama_state_seq_set_data_ext(ctx, buffer, size, 0, flags)) == size
