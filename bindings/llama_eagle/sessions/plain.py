"""A target alone: the session without a draft of its own. The reference that speculation is compared with."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llama_eagle.errors import NativeError
from llama_eagle.native import calls
from llama_eagle.native.calls import ERR_COMPUTE, ERR_CONTEXT_FULL, ERR_STATE
from llama_eagle.native.closing import Closing
from llama_eagle.sessions.session import (
    ContextLike,
    DraftLike,
    EagleSession,
    SessionOptions,
    Timings,
    require_room,
)

NO_ROOM = 1  # llama_decode: no place for the batch in the memory, which is as it was


class PlainSession(Closing):
    """Nothing is drafted here; with `n_draft_max`, tokens that something else drafted can be verified."""

    def __init__(self, context: ContextLike, n_draft_max: int = 0) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._keep = context
        self.ctx = context.handle
        self.n_ctx = context.n_ctx
        self.n_batch = context.n_batch
        self.n_draft_max = n_draft_max
        self.n_past = 0
        self._round: list[int] = []  # rows of the pending round
        self._batch = _Batch(llama_cpp, self.n_batch)
        self._ms = {"eval": 0.0, "verify": 0.0, "sample": 0.0, "commit": 0.0}

    @property
    def n_room(self) -> int:
        """Tokens that still fit into the context."""
        return self.n_ctx - self.n_past

    @property
    def n_draft_room(self) -> int:
        """Longest draft that can be verified now."""
        return max(min(self.n_room - 1, self.n_draft_max), 0)

    @property
    def timings(self) -> Timings:
        ms = self._ms
        return Timings(eval_ms=ms["eval"], verify_ms=ms["verify"], sample_ms=ms["sample"], commit_ms=ms["commit"])

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens, in pieces of at most n_batch. Raises `InputError` when they do not fit."""
        require_room(self, len(tokens))
        with self._timed("eval"):
            for start in range(0, len(tokens), self.n_batch):
                piece = tokens[start : start + self.n_batch]
                self._decode(piece, all_rows=False)
                self.n_past += len(piece)

    def draft(self, id_last: int, n_max: int, p_min: float = 0.0) -> list[int]:
        return []

    def verify(self, ids: Sequence[int]) -> None:
        """Decode the rows of a round, with logits for each; the round stays pending until `commit`."""
        with self._timed("verify"):
            self._decode(ids, all_rows=True)
        self._round = list(ids)

    def accept(self, sampler: Any) -> list[int]:
        """Sample row by row while the sample equals the next row's token; `sampler`: a llama_sampler pointer."""
        sampled: list[int] = []
        with self._timed("sample"):
            for row in range(len(self._round)):
                sampled.append(calls.sample(self.ctx, sampler, row))
                if sampled[row:] != self._round[row + 1 : row + 2]:
                    break
        return sampled

    def commit(self, n_kept: int) -> None:
        """Keep the first `n_kept` rows of the round."""
        if not self._round:
            raise NativeError("no round is pending: verify first", code=ERR_STATE, call="commit")
        n_past = self.n_past + n_kept
        if n_kept < len(self._round):
            with self._timed("commit"):
                if not self._remove_from(n_past):
                    raise NativeError(
                        "the recurrent state cannot undo the round", code=ERR_STATE, call="llama_memory_seq_rm"
                    )
        self.n_past = n_past
        self._round = []

    def trim(self, n_past: int) -> bool:
        """Keep the first `n_past` tokens. False when the recurrent state cannot go back that far."""
        if n_past == 0:
            self.reset()
        elif n_past < self.n_past and not self._remove_from(n_past):
            return False
        self.n_past = min(n_past, self.n_past)
        return True

    def reset(self) -> None:
        """Forget everything."""
        memory = self._api.llama_get_memory(self.ctx)
        if memory:  # an encoder has none
            self._api.llama_memory_clear(memory, True)
        self.n_past = 0
        self._round = []

    def save_state(self) -> bytes:
        return b""

    def load_state(self, data: bytes | None, n_past: int) -> None:
        """Go on after the `n_past` tokens that llama_state_* has put into the memory."""
        self.n_past = n_past
        self._round = []

    def close(self) -> None:
        """Nothing to free: context and model belong to the caller."""

    def _remove_from(self, n_past: int) -> bool:
        return bool(self._api.llama_memory_seq_rm(self._api.llama_get_memory(self.ctx), 0, n_past, -1))

    def _decode(self, tokens: Sequence[int], *, all_rows: bool) -> None:
        status = self._api.llama_decode(self.ctx, self._batch.fill(tokens, self.n_past, all_rows=all_rows))
        if status:
            code = ERR_CONTEXT_FULL if status == NO_ROOM else ERR_COMPUTE
            raise NativeError(f"llama_decode of {len(tokens)} rows failed: {status}", code=code, call="llama_decode")
        self._api.llama_synchronize(self.ctx)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._ms[phase] += (time.perf_counter() - start) * 1e3


def open_session(context: ContextLike, draft: DraftLike | None, options: SessionOptions) -> EagleSession | PlainSession:
    """The session for a target with or without a draft."""
    return PlainSession(context) if draft is None else EagleSession(context, draft, options)


class _Batch:
    """A llama_batch of one sequence, over arrays that live as long as this object."""

    def __init__(self, api: Any, size: int) -> None:
        self._tokens = (ctypes.c_int32 * size)()
        self._positions = (ctypes.c_int32 * size)()
        self._n_seq = (ctypes.c_int32 * size)(*[1] * size)
        self._sequence = ctypes.pointer(ctypes.c_int32(0))
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * size)(*[self._sequence] * size)
        self._rows = (ctypes.c_int8 * size)()
        self.batch = api.llama_batch(
            token=self._tokens,
            pos=self._positions,
            n_seq_id=self._n_seq,
            seq_id=self._sequences,
            logits=self._rows,
        )

    def fill(self, tokens: Sequence[int], n_past: int, *, all_rows: bool) -> Any:
        n = len(tokens)
        self._tokens[:n] = list(tokens)
        self._positions[:n] = list(range(n_past, n_past + n))
        for row in range(n):
            self._rows[row] = int(all_rows or row == n - 1)
        self.batch.n_tokens = n
        return self.batch
