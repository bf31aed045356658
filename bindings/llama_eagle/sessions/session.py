"""One sequence of a target, with or without a draft: the steps of a round as methods.

draft(id_last) -> verify(ids) -> sample each row while it equals the drafted token -> commit(n_kept).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llama_eagle.errors import InputError, UsageError
from llama_eagle.gguf.rotation import longer_text
from llama_eagle.native import callbacks, calls
from llama_eagle.native.calls import check, library
from llama_eagle.native.closing import Closing
from llama_eagle.sessions.options import SessionOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama_eagle.vision.rows import EmbeddedRows

BLOCK_KINDS = ("DFlash", "DFlash2", "DSpark", "P-EAGLE")  # draft models that propose all tokens of a round in one pass


@dataclass(frozen=True)
class Timings:
    """Time spent in native code since the session was created, in ms."""

    eval_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    commit_ms: float = 0.0
    n_graphs: int = 0


class ContextLike(Protocol):
    """A target's context, created by this package or by llama-cpp-python."""

    @property
    def handle(self) -> Any:
        """The llama_context pointer."""

    @property
    def model_path(self) -> Path:
        """The target's file, or its first part."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_trained(self) -> int:
        """Longest context that the target was trained with, in tokens; 0 if unknown."""


class HasHandle(Protocol):
    @property
    def handle(self) -> Any:
        """The llama_model pointer."""


class DraftLike(HasHandle, Protocol):
    """A loaded draft."""

    @property
    def path(self) -> Path:
        """Its file; for the target's own MTP head, the target's file."""


class Listener:
    """Receiver of the progress of `eval`. It has no reference to the session, which must be freed when unused."""

    def __init__(self) -> None:
        self.on_share: Callable[[float], None] | None = None  # called with the share that is computed, 0..1

    def report(self, share: float, _data: Any) -> None:
        if self.on_share is not None:
            self.on_share(share)


class EagleSession(Closing):
    """A target's context and its draft: EAGLE-3, DFlash or an MTP head, including the target's own.

    Without a draft it verifies proposals of other drafters, up to `options.n_draft_max` tokens (0: plain decoding). It
    is a context manager, and owns neither context nor model. Counts are in tokens; a row of an image counts as one.
    Raises `IncompatibleModels` if the draft does not fit, `NativeError` if the context does not.
    """

    ctx: Any  # llama_context pointer
    n_piece: int  # tokens that `eval` computes at once; calls with multiples of it give the same bits as one call

    def __init__(
        self,
        context: ContextLike,
        draft: DraftLike | None,
        options: SessionOptions = SessionOptions(),
    ) -> None:
        self._lib = library()
        self._context, self._draft = context, draft  # both must outlive the session
        self.ctx = context.handle
        self.n_ctx = context.n_ctx
        self.n_batch = context.n_batch
        goes_back = options.n_draft_max > 0 and _is_recurrent(self.ctx)
        keeps_rows = draft is not None or goes_back
        self._may_commit_at_once = goes_back and draft is None
        self._commits_at_once = False
        self.n_piece = piece_of(context) if keeps_rows else self.n_batch
        self.n_draft_max = options.n_draft_max
        self._handle = ctypes.c_void_p()
        self.listener = Listener()
        self._report = calls.PROGRESS(callbacks.guarded(self.listener.report))
        params = _params(context, draft, options)
        params.on_progress = self._report
        handle = None if draft is None else draft.handle
        out = ctypes.byref(self._handle)
        check(self._lib.eagle_session_new(self.ctx, handle, ctypes.byref(params), out), "eagle_session_new")
        self._ids = (ctypes.c_int32 * (options.n_draft_max + 1))()
        self._n = ctypes.c_int32()

    @property
    def has_draft(self) -> bool:
        """True if the session has a draft model."""
        return self._draft is not None

    @property
    def draft_kind(self) -> str:
        """ "EAGLE-3", "MTP", "DFlash" or "small model"; "" without a draft."""
        return str(self._lib.eagle_draft_kind(self._handle).decode())

    @property
    def draft_device(self) -> str | None:
        """ggml's name of the device that runs the draft; None without a draft."""
        return str(self._lib.eagle_draft_device(self._handle).decode()) or None

    @property
    def draft_notice(self) -> str:
        """Reason why the draft runs on another device than it was loaded to; "" if it does not."""
        return str(self._lib.eagle_draft_notice(self._handle).decode())

    @property
    def vocab(self) -> Any:
        """The target's llama_vocab pointer."""
        from llama_eagle.native import llama_cpp

        return llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(self.ctx))

    @property
    def n_past(self) -> int:
        """Number of committed tokens."""
        return int(self._lib.eagle_n_past(self._handle))

    @property
    def longer_text(self) -> str:
        """Remedy for a text that is longer than the context."""
        return longer_text(self._context.n_trained, self.n_ctx)

    @property
    def n_room(self) -> int:
        """Number of tokens that still fit into the context."""
        return self.n_ctx - self.n_past

    @property
    def n_draft_room(self) -> int:
        """Maximum draft length that fits now."""
        return int(self._lib.eagle_n_draft_room(self._handle))

    @property
    def timings(self) -> Timings:
        native = self._lib.eagle_get_timings(self._handle)
        return Timings(native.eval_ms, native.draft_ms, native.verify_ms, native.commit_ms, native.n_graphs)

    def bytes_read(self, n_rows: int) -> float:
        """Return the bytes of the target's weights that a decode of `n_rows` rows reads; expected value for experts."""
        from llama_eagle.native import llama_cpp

        return float(self._lib.eagle_bytes_read(llama_cpp.llama_get_model(self.ctx), n_rows))

    @property
    def drafts_blocks(self) -> bool:
        """True if the draft model proposes all tokens of a round in one pass."""
        return self.draft_kind in BLOCK_KINDS

    @property
    def draft_bytes_read(self) -> float:
        """Bytes of the draft's weights read per drafted token, or per block; 0 without a draft."""
        return float(self._lib.eagle_draft_bytes_read(self._handle))

    @property
    def draft_ids(self) -> NDArray[np.int32]:
        """The target's ids [n] of the tokens in the draft's vocabulary, which may change with the text."""
        import numpy as np

        ids = np.empty(self._lib.eagle_n_vocab_draft(self._handle), np.int32)
        check(self._lib.eagle_draft_ids(self._handle, ids.ctypes.data_as(calls.TOKENS)), "eagle_draft_ids")
        return ids

    def draft_logits(self, step: int) -> NDArray[np.float32]:
        """Return the draft's logits at `step` of the last `draft`, over its own vocabulary: [len(draft_ids)]."""
        import numpy as np

        logits = np.empty(self._lib.eagle_n_vocab_draft(self._handle), np.float32)
        pointer = logits.ctypes.data_as(calls.FLOATS)
        check(self._lib.eagle_draft_step(self._handle, step, pointer, None), "eagle_draft_step")
        return logits

    def note_tokens(self, ids: Sequence[int]) -> None:
        """Add the text's tokens to a draft vocabulary that follows the text. `eval` and `commit` do so for theirs."""
        array = (ctypes.c_int32 * len(ids))(*ids)
        check(self._lib.eagle_note_used_tokens(self._handle, array, len(ids)), "eagle_note_used_tokens")

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens to both memories. The logits of the last one are then in the context's last row.

        Raises `InputError` if they do not fit.
        """
        self._require_room(len(tokens))
        self._commit_at_once(False)
        calls.enable_sigint()
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        status = self._lib.eagle_eval(self._handle, array, len(tokens))
        callbacks.raise_noted()
        check(status, "eagle_eval")

    def eval_rows(self, rows: EmbeddedRows) -> None:
        """Append the rows of an image to both memories. Raises `InputError` if they do not fit."""
        self._require_room(rows.n)
        self._commit_at_once(False)
        calls.enable_sigint()
        status = self._lib.eagle_eval_embeddings(
            self._handle, rows.values, rows.n, rows.positions_pointer, rows.n_positions
        )
        callbacks.raise_noted()
        check(status, "eagle_eval_embeddings")

    def draft(self, id_last: int, n_max: int, p_min: float = 0.0) -> list[int]:
        """Return up to `n_max` tokens that may follow `id_last`, the last sampled token, which is not in memory yet."""
        if n_max > self.n_draft_max:
            raise UsageError(
                f"a draft of {n_max} tokens exceeds this session's maximum, {self.n_draft_max}. Raise n_draft_max."
            )
        n_out = ctypes.byref(self._n)
        check(self._lib.eagle_draft(self._handle, id_last, n_max, p_min, self._ids, None, n_out), "eagle_draft")
        return list(self._ids[: self._n.value])

    def verify(self, ids: Sequence[int], *, is_final: bool = False) -> None:
        """Decode `id_last` and the drafted tokens as one batch; the round stays pending until `commit`.

        is_final: all rows will be kept. Then a recurrent state records nothing to undo them, as in plain decoding.
        """
        self._commit_at_once(is_final)
        array = (ctypes.c_int32 * len(ids))(*ids)
        check(self._lib.eagle_verify(self._handle, array, len(ids)), "eagle_verify")

    def _commit_at_once(self, wanted: bool) -> None:
        if self._may_commit_at_once and wanted != self._commits_at_once:
            self._lib.eagle_round_commit_at_once(self.ctx, wanted)
            self._commits_at_once = wanted

    def commit(self, n_kept: int) -> None:
        """Keep the first `n_kept` rows of the pending round and discard the others; 0 discards all."""
        check(self._lib.eagle_commit(self._handle, n_kept), "eagle_commit")

    def settle(self) -> bool:
        """Undo an interrupted or failed call. Returns False if only `reset` can."""
        if self._lib.eagle_commit(self._handle, 0) == calls.OK:  # a round was pending
            return True
        return self.trim(self.n_past)

    def trim(self, n_past: int) -> bool:
        """Keep the first `n_past` tokens. Returns False if a recurrent state or sliding window cannot go back that far.

        In that case, reset and evaluate again. Raises `NativeError` if the kept tokens end within an image.
        """
        status = self._lib.eagle_trim(self._handle, n_past)
        if status == calls.ERR_STATE:
            return False
        check(status, "eagle_trim")
        return True

    def reset(self) -> None:
        """Clear both memories."""
        check(self._lib.eagle_reset(self._handle), "eagle_reset")

    def save_state(self) -> bytes:
        """Return the state of the session and its draft; llama_state_* saves the target's memory."""
        data = ctypes.create_string_buffer(self._lib.eagle_state_size(self._handle))
        check(self._lib.eagle_state_save(self._handle, data, len(data)), "eagle_state_save")
        return data.raw

    def load_state(self, data: bytes | None, n_past: int) -> None:
        """Continue after the `n_past` tokens that llama_state_* has restored in the target's memory.

        `data` None: the draft has no state for them, and none is a row of an image; pass their ids to `note_tokens`.
        Raises `IncompatibleModels` for data of another session.
        """
        status = self._lib.eagle_state_load(self._handle, data, len(data) if data else 0, n_past)
        check(status, "eagle_state_load")

    def _require_room(self, n_tokens: int) -> None:
        if n_tokens > self.n_room:
            raise InputError(
                f"{n_tokens} tokens do not fit into the context, which has room for {self.n_room}. {self.longer_text}"
            )

    def close(self) -> None:
        if self._handle:
            self._lib.eagle_session_free(self._handle)
            self._handle = ctypes.c_void_p()


def _params(context: ContextLike, draft: DraftLike | None, options: SessionOptions) -> Any:
    params = library().eagle_session_default_params()
    params.struct_size = min(params.struct_size, ctypes.sizeof(calls.SessionParams))  # of an older library
    params.n_ctx = context.n_ctx
    params.n_draft_max = options.n_draft_max
    params.n_ctx_draft = min(options.n_ctx_draft, context.n_ctx)  # more would not be used
    params.n_threads = options.n_threads
    params.path_tgt = os.fsencode(context.model_path)
    if draft is not None and draft.path != context.model_path:
        params.path_dft = os.fsencode(draft.path)
    params.n_vocab_draft = options.n_vocab_draft
    params.n_base_ids = len(options.base_ids)
    params.base_ids = (ctypes.c_int32 * len(options.base_ids))(*options.base_ids)
    return params


def _is_recurrent(ctx: Any) -> bool:
    """Return true if the target keeps a recurrent state, whose batches are computed in pieces of n_ubatch."""
    from llama_eagle.native import llama_cpp

    model = llama_cpp.llama_get_model(ctx)
    return bool(llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))


def piece_of(context: ContextLike) -> int:
    """Return n_ubatch if n_batch is a multiple of it, n_batch otherwise."""
    from llama_eagle.native import llama_cpp

    n_ubatch = int(llama_cpp.llama_n_ubatch(context.handle))
    return n_ubatch if context.n_batch % n_ubatch == 0 else context.n_batch
