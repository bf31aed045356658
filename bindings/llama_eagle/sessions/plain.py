"""A target alone: the session without a draft of its own. The reference that speculation is compared with."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from llama_eagle.errors import IncompatibleModels, NativeError
from llama_eagle.native import calls
from llama_eagle.native.calls import ERR_ARGUMENT, ERR_CONTEXT_FULL, ERR_STATE, library
from llama_eagle.native.closing import Closing
from llama_eagle.sessions.session import ContextLike, Timings, bytes_read, piece_of, require_room
from llama_eagle.vision.rows import EmbeddedRows, RowPositions

MAGIC = b"llama-eagle plain "  # what a saved state begins with
N_PARTS = 4  # of a position in llama.cpp's batches of image rows; the fourth is 0


class PlainSession(Closing):
    """Nothing is drafted here; with `n_draft_max`, tokens that something else drafted can be verified."""

    # A decode may have run whose tokens are not counted: Ctrl-C came before `n_past` or `_round` were set.
    _unsettled = False
    _half_an_image = False  # likewise: and llama.cpp cannot take the rows that were read out of a recurrent state

    def __init__(self, context: ContextLike, n_draft_max: int = 0) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._lib = library()
        self._keep = context
        self.ctx = context.handle
        self.n_ctx = context.n_ctx
        self.n_batch = context.n_batch
        self.n_draft_max = n_draft_max
        self.n_past = 0
        self._n_done = ctypes.c_int32()  # rows of the last decode, if it came to its end
        self._round: list[int] = []  # rows of the pending round
        self._positions = RowPositions()
        model = llama_cpp.llama_get_model(self.ctx)
        self._recurrent = bool(llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))
        self._n_window = int(llama_cpp.llama_model_n_swa(model))  # 0: none
        self._piece = min(self.n_batch, int(llama_cpp.llama_n_ubatch(self.ctx))) if n_draft_max else self.n_batch
        self.n_piece = piece_of(context) if n_draft_max else self.n_batch
        self._batch = _Batch(llama_cpp, self.n_batch)
        self._ms: dict[str, Any] = {"eval_ms": 0.0, "verify_ms": 0.0, "commit_ms": 0.0}

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
        return Timings(**self._ms)

    def bytes_read(self, n_rows: int) -> float:
        """Of the target's weights, by a decode of so many rows."""
        return bytes_read(self.ctx, n_rows)

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens. Raises `InputError` when they do not fit.

        Where drafts are verified, in pieces of n_ubatch: with a recurrent state that can be taken back, llama.cpp keeps
        the last tokens of a longer batch together, and a prompt would not have the bits of plain decoding.
        """
        require_room(self, len(tokens))
        self._require_settled()
        with self._timed("eval"):
            for start, end in self._pieces(len(tokens)):
                self._decode(tokens[start:end], all_rows=False)
                self.n_past += end - start
                self._unsettled = False

    def eval_rows(self, rows: EmbeddedRows) -> None:
        """Append the rows of an image, in pieces like tokens. Raises `InputError` when they do not fit."""
        require_room(self, rows.n)
        self._require_settled()
        first = self._positions.at(self.n_past)
        with self._timed("eval"):
            self._half_an_image = self._recurrent
            for start, end in self._pieces(rows.n):
                self._run(self._batch.embedded(rows, start, end, first), may_stop=True)
            self._positions.add(self.n_past, rows)
            self.n_past += rows.n
            self._unsettled = self._half_an_image = False

    def _pieces(self, n: int) -> Iterator[tuple[int, int]]:
        start = 0
        while start < n:
            end = min(n, start + min(self._piece, self.n_batch - start % self.n_batch))
            yield start, end
            start = end

    def verify(self, ids: Sequence[int]) -> None:
        """Decode the rows of a round, with logits for each; the round stays pending until `commit`."""
        self._require_settled()
        with self._timed("verify"):
            self._decode(ids, all_rows=True)
        self._round = list(ids)
        self._unsettled = False

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

    def settle(self) -> bool:
        """Undo what an interrupted or failed call has left behind; False when only `reset` helps."""
        if self._unsettled or self._round:
            self._round = []
            self._unsettled = self._is_lost or not self._remove_from(self.n_past)
        return not self._unsettled

    def trim(self, n_past: int) -> bool:
        """Keep the first `n_past` tokens. False when a recurrent state or a sliding window cannot go back that far."""
        if n_past == 0:
            self.reset()
        elif not self._positions.is_cut(n_past):
            text = f"{n_past} tokens end within an image: keep all of it or nothing"
            raise NativeError(text, code=ERR_ARGUMENT, call="trim")
        elif not self.settle() or (n_past < self.n_past and not self._can_go_back(n_past)):
            return False
        self.n_past = min(n_past, self.n_past)
        self._positions.truncate(self.n_past)
        return True

    def reset(self) -> None:
        """Forget everything."""
        memory = self._api.llama_get_memory(self.ctx)
        if memory:  # an encoder has none
            self._api.llama_memory_clear(memory, True)
        self.n_past = 0
        self._positions.clear()
        self._round = []
        self._unsettled = self._half_an_image = False

    def save_state(self) -> bytes:
        """Where the rows of images stand; llama_state_* saves the rest."""
        return MAGIC + self._positions.save()

    def load_state(self, data: bytes | None, n_past: int) -> None:
        """Go on after the `n_past` tokens that llama_state_* has put into the memory.

        `data` None: none of them is the row of an image. Raises `IncompatibleModels` for another session's data.
        """
        if data is not None and not data.startswith(MAGIC):
            raise IncompatibleModels("not the state of a session without a draft")
        try:
            self._positions.load(b"" if data is None else data[len(MAGIC) :])
        except ValueError:  # numpy's
            raise IncompatibleModels("the state of the session is damaged: evaluate the text again") from None
        self.n_past = n_past
        self._round = []
        self._unsettled = False

    def note_tokens(self, ids: Sequence[int]) -> None:
        """No vocabulary follows the text here."""

    def close(self) -> None:
        """Nothing to free: context and model belong to the caller."""

    @property
    def _is_lost(self) -> bool:
        """A recurrent state that has taken in the half of something: only `reset` helps."""
        return self._half_an_image or (self._unsettled and self._recurrent and not self._n_done.value)

    def _can_go_back(self, n_past: int) -> bool:
        """Cut the memory to `n_past` tokens, if llama.cpp will have what comes before them.

        Without `swa_full` it frees cells behind the window of the last token, and would go on with what is left. How
        far a recurrent state goes back it counts in positions, of which an image's rows share one.
        """
        memory, position = self._api.llama_get_memory(self.ctx), self._positions.at(n_past)
        if self._n_window and self._api.llama_memory_seq_pos_min(memory, 0) > max(0, position - self._n_window):
            return False
        across_image = self._recurrent and self._positions.has_image_from(n_past)
        if across_image and self._api.llama_memory_seq_pos_max(memory, 0) >= position:
            return False
        return self._remove_from(n_past)

    def _remove_from(self, n_past: int) -> bool:
        position = self._positions.at(n_past)
        return bool(self._api.llama_memory_seq_rm(self._api.llama_get_memory(self.ctx), 0, position, -1))

    def _require_settled(self) -> None:
        if self._round:
            raise NativeError("a round is pending: commit it first", code=ERR_STATE, call="llama_decode")
        if not self.settle():
            text = "an earlier decode was interrupted: reset the session and evaluate again"
            raise NativeError(text, code=ERR_STATE, call="llama_decode")

    def _decode(self, tokens: Sequence[int], *, all_rows: bool) -> None:
        """The caller clears `_unsettled` once it has counted the tokens."""
        self._run(self._batch.fill(tokens, self._positions.at(self.n_past), all_rows=all_rows), may_stop=not all_rows)

    def _run(self, batch: Any, *, may_stop: bool) -> None:
        calls.hear_interrupts()
        was_unsettled, self._n_done.value, self._unsettled = self._unsettled, 0, True
        status = self._lib.eagle_decode(self.ctx, ctypes.byref(batch), may_stop, ctypes.byref(self._n_done))
        if status == ERR_CONTEXT_FULL:
            self._unsettled = was_unsettled
        calls.check(status, "eagle_decode")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._ms[f"{phase}_ms"] += (time.perf_counter() - start) * 1e3


class _Batch:
    """A llama_batch of one sequence, over arrays that live as long as this object."""

    def __init__(self, api: Any, size: int) -> None:
        self._tokens = (ctypes.c_int32 * size)()
        self._positions = (ctypes.c_int32 * size)()
        self._n_seq = (ctypes.c_int32 * size)(*[1] * size)
        self._sequence = ctypes.pointer(ctypes.c_int32(0))
        self._sequences = (ctypes.POINTER(ctypes.c_int32) * size)(*[self._sequence] * size)
        self._rows = (ctypes.c_int8 * size)()
        self._make = api.llama_batch
        self.batch = self._make(
            token=self._tokens,
            pos=self._positions,
            n_seq_id=self._n_seq,
            seq_id=self._sequences,
            logits=self._rows,
        )

    def fill(self, tokens: Sequence[int], first: int, *, all_rows: bool) -> Any:
        """Tokens from position `first` on."""
        n = len(tokens)
        self._tokens[:n] = list(tokens)
        self._positions[:n] = list(range(first, first + n))
        for row in range(n):
            self._rows[row] = int(all_rows or row == n - 1)
        self.batch.n_tokens = n
        return self.batch

    def embedded(self, rows: EmbeddedRows, start: int, end: int, first: int) -> Any:
        """The rows [start, end) of an image that begins at position `first`; logits of its last one."""
        n = end - start
        parts = np.zeros((N_PARTS, n), np.int32)
        parts[: len(rows.positions)] = rows.positions[:, start:end] + first
        for row in range(n):
            self._rows[row] = int(start + row == rows.n - 1)
        values = ctypes.addressof(rows.values.contents) + start * rows.width * ctypes.sizeof(ctypes.c_float)
        self._parts = parts  # lives as long as the batch is read
        return self._make(
            n_tokens=n,
            embd=ctypes.cast(values, ctypes.POINTER(ctypes.c_float)),
            pos=parts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=self._n_seq,
            seq_id=self._sequences,
            logits=self._rows,
        )
