"""Checkpoints of a hybrid model's recurrent state: an edited or continued chat is not read again from its start.

Keys and values of attention layers can be cut anywhere; a recurrent state cannot. A checkpoint holds the recurrent part
alone (18 MiB for Qwen3.5-0.8B) and is valid while the tokens before it stay what they were.
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
    """Checkpoints of the current text, within a budget of bytes; the one that is missed least goes first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: list[Checkpoint] = []  # by n_past

    @property
    def n_bytes(self) -> int:
        return sum(len(kept.data) for kept in self._kept)

    @property
    def positions(self) -> list[int]:
        return [kept.n_past for kept in self._kept]

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep it, and make room. One that exceeds the budget alone is not kept."""
        if len(checkpoint.data) > self.budget:
            return
        kept = [other for other in self._kept if other.n_past != checkpoint.n_past]
        self._kept = sorted([*kept, checkpoint], key=lambda other: other.n_past)
        while self.n_bytes > self.budget:
            del self._kept[self._least_missed(checkpoint)]

    def best(self, n_past: int) -> Checkpoint | None:
        """The last one at or before `n_past`."""
        return next((kept for kept in reversed(self._kept) if kept.n_past <= n_past), None)

    def forget_after(self, n_past: int) -> None:
        """The tokens from `n_past` on are not what they were."""
        self._kept = [kept for kept in self._kept if kept.n_past <= n_past]

    def _least_missed(self, newest: Checkpoint) -> int:
        """Index of the one without which the fewest tokens must be read again: the closest to its predecessor."""
        gaps = {
            i: kept.n_past - (self._kept[i - 1].n_past if i else 0)
            for i, kept in enumerate(self._kept)
            if kept is not newest
        }
        return min(gaps, key=lambda i: gaps[i])


def capture(ctx: Any, n_past: int) -> Checkpoint | None:
    """The recurrent state of sequence 0 as it is now; None when llama.cpp gives none."""
    import llama_cpp

    flags = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    size = int(llama_cpp.llama_state_seq_get_size_ext(ctx, 0, flags))
    buffer = (ctypes.c_uint8 * size)()
    written = int(llama_cpp.llama_state_seq_get_data_ext(ctx, buffer, size, 0, flags))
    return Checkpoint(n_past, bytes(memoryview(buffer)[:written])) if written else None


def restore(ctx: Any, checkpoint: Checkpoint) -> bool:
    """Put the recurrent state back. The session must be trimmed to `checkpoint.n_past` afterwards."""
    import llama_cpp

    flags = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    size = len(checkpoint.data)
    buffer = (ctypes.c_uint8 * size).from_buffer_copy(checkpoint.data)
    return int(llama_cpp.llama_state_seq_set_data_ext(ctx, buffer, size, 0, flags)) == size
