"""One sequence of a target, with a draft or without: the steps of a round as methods.

draft(id_last) -> verify(ids) -> a token from each row while it equals the drafted one -> commit(n_kept).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_eagle.errors import InputError, UsageError
from llama_eagle.native import calls
from llama_eagle.native.calls import check, library
from llama_eagle.native.closing import Closing
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.vision.rows import EmbeddedRows


@dataclass(frozen=True)
class Timings:
    """Time spent in native code, ms, since the session began."""

    eval_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    commit_ms: float = 0.0
    n_graphs: int = 0


class ContextLike(Protocol):
    """A target's context, whoever made it."""

    @property
    def handle(self) -> Any:
        """The llama_context pointer."""

    @property
    def model_path(self) -> Path:
        """The target's file, the first one of splits."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_batch(self) -> int: ...


class HasHandle(Protocol):
    @property
    def handle(self) -> Any:
        """The llama_model pointer."""


class DraftLike(HasHandle, Protocol):
    """A loaded draft."""

    @property
    def path(self) -> Path:
        """Its file, the target's for a head of the target's own."""


class EagleSession(Closing):
    """A target's context, and the draft that follows it: EAGLE-3, or an MTP head, the target's own included.

    Without a draft it verifies what others propose, up to `options.n_draft_max` tokens; 0: plain decoding. A context
    manager; owns neither context nor model. Counts in tokens, of which a row of an image is one. Raises
    `IncompatibleModels` when the draft does not fit, `NativeError` when the context does not.
    """

    ctx: Any  # llama_context pointer
    n_piece: int  # tokens that `eval` computes at once: calls of multiples of it have the bits of one call

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
        params = _params(context, draft, options)
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
        """ "EAGLE-3" or "MTP"; "" without a draft."""
        return str(self._lib.eagle_draft_kind(self._handle).decode())

    @property
    def draft_device(self) -> str | None:
        """The device that the draft runs on, by ggml's name; None without a draft."""
        return str(self._lib.eagle_draft_device(self._handle).decode()) or None

    @property
    def draft_notice(self) -> str:
        """Why that is not the device that the draft was loaded to; "": it is."""
        return str(self._lib.eagle_draft_notice(self._handle).decode())

    @property
    def vocab(self) -> Any:
        """The target's llama_vocab pointer."""
        import llama_cpp

        return llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(self.ctx))

    @property
    def n_past(self) -> int:
        """Tokens committed."""
        return int(self._lib.eagle_n_past(self._handle))

    @property
    def n_room(self) -> int:
        """Tokens that still fit into the context."""
        return self.n_ctx - self.n_past

    @property
    def n_draft_room(self) -> int:
        """Longest draft that fits now."""
        return int(self._lib.eagle_n_draft_room(self._handle))

    @property
    def timings(self) -> Timings:
        native = self._lib.eagle_get_timings(self._handle)
        return Timings(
            native.eval_ms, native.draft_ms, native.verify_ms, native.sample_ms, native.commit_ms, native.n_graphs
        )

    def bytes_read(self, n_rows: int) -> float:
        """Bytes of the target's weights that a decode of `n_rows` rows reads; of experts, the expected number."""
        import llama_cpp

        return float(self._lib.eagle_bytes_read(llama_cpp.llama_get_model(self.ctx), n_rows))

    @property
    def draft_bytes_read(self) -> float:
        """Bytes of the draft's weights that each drafted token reads; 0 without a draft."""
        return float(self._lib.eagle_draft_bytes_read(self._handle))

    @property
    def draft_ids(self) -> NDArray[np.int32]:
        """The target's id of each token of the draft's vocabulary, which may follow the text."""
        ids = np.empty(self._lib.eagle_n_vocab_draft(self._handle), np.int32)
        check(self._lib.eagle_draft_ids(self._handle, ids.ctypes.data_as(calls.TOKENS)), "eagle_draft_ids")
        return ids

    def draft_logits(self, step: int) -> NDArray[np.float32]:
        """What the draft computed at `step` of the last `draft`, over its own vocabulary: [len(draft_ids)]."""
        logits = np.empty(self._lib.eagle_n_vocab_draft(self._handle), np.float32)
        pointer = logits.ctypes.data_as(calls.FLOATS)
        check(self._lib.eagle_draft_step(self._handle, step, pointer, None), "eagle_draft_step")
        return logits

    def note_tokens(self, ids: Sequence[int]) -> None:
        """The text uses these tokens: a vocabulary that follows it gets them. `eval` and `commit` note theirs."""
        array = (ctypes.c_int32 * len(ids))(*ids)
        check(self._lib.eagle_note_used_tokens(self._handle, array, len(ids)), "eagle_note_used_tokens")

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens to both memories; the logits of the last one are then the context's last row.

        Raises `InputError` when they do not fit.
        """
        self._require_room(len(tokens))
        self._commit_at_once(False)
        calls.enable_sigint()
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        check(self._lib.eagle_eval(self._handle, array, len(tokens)), "eagle_eval")

    def eval_rows(self, rows: EmbeddedRows) -> None:
        """Append the rows of an image to both memories. Raises `InputError` when they do not fit."""
        self._require_room(rows.n)
        self._commit_at_once(False)
        calls.enable_sigint()
        status = self._lib.eagle_eval_embeddings(
            self._handle, rows.values, rows.n, rows.positions_pointer, rows.n_positions
        )
        check(status, "eagle_eval_embeddings")

    def draft(self, id_last: int, n_max: int, p_min: float = 0.0) -> list[int]:
        """Up to `n_max` tokens that may follow `id_last`, the token sampled last and not yet in memory."""
        if n_max > self.n_draft_max:
            raise UsageError(f"a draft of {n_max} tokens was asked for; this session was made for {self.n_draft_max}.")
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
        """Keep the first `n_kept` rows of the round, forget the others; 0 undoes it whole."""
        check(self._lib.eagle_commit(self._handle, n_kept), "eagle_commit")

    def settle(self) -> bool:
        """Undo what an interrupted or failed call has left behind; False when only `reset` helps."""
        if self._lib.eagle_commit(self._handle, 0) == calls.OK:  # a round was pending
            return True
        return self.trim(self.n_past)

    def trim(self, n_past: int) -> bool:
        """Keep the first `n_past` tokens. False: a recurrent state or a sliding window cannot go back that far.

        Then reset and evaluate again. Raises `NativeError` when they end within an image.
        """
        status = self._lib.eagle_trim(self._handle, n_past)
        if status == calls.ERR_STATE:
            return False
        check(status, "eagle_trim")
        return True

    def reset(self) -> None:
        """Forget everything, in both memories."""
        check(self._lib.eagle_reset(self._handle), "eagle_reset")

    def save_state(self) -> bytes:
        """Return what the session and its draft keep; llama_state_* saves the target's memory."""
        data = ctypes.create_string_buffer(self._lib.eagle_state_size(self._handle))
        check(self._lib.eagle_state_save(self._handle, data, len(data)), "eagle_state_save")
        return data.raw

    def load_state(self, data: bytes | None, n_past: int) -> None:
        """Go on after the `n_past` tokens that llama_state_* has put into the target's memory.

        `data` None: the draft knows nothing of them, and none is the row of an image. `note_tokens` tells it their ids.
        Raises `IncompatibleModels` for another session's data.
        """
        status = self._lib.eagle_state_load(self._handle, data, len(data) if data else 0, n_past)
        check(status, "eagle_state_load")

    def _require_room(self, n_tokens: int) -> None:
        if n_tokens > self.n_room:
            raise InputError(
                f"{n_tokens} tokens do not fit into the {self.n_room} left of the context. "
                "Shorten the prompt or use a larger n_ctx."
            )

    def close(self) -> None:
        if self._handle:
            self._lib.eagle_session_free(self._handle)
            self._handle = ctypes.c_void_p()


def _params(context: ContextLike, draft: DraftLike | None, options: SessionOptions) -> Any:
    params = library().eagle_session_default_params()
    params.struct_size = ctypes.sizeof(calls.SessionParams)
    params.n_ctx = context.n_ctx
    params.n_draft_max = options.n_draft_max
    params.n_ctx_draft = min(options.n_ctx_draft, context.n_ctx)  # more would never be used
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
    import llama_cpp

    model = llama_cpp.llama_get_model(ctx)
    return bool(llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))


def piece_of(context: ContextLike) -> int:
    """n_ubatch, where n_batch is a multiple of it; n_batch otherwise."""
    import llama_cpp

    n_ubatch = int(llama_cpp.llama_n_ubatch(context.handle))
    return n_ubatch if context.n_batch % n_ubatch == 0 else context.n_batch
