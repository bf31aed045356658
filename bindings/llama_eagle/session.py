"""One sequence of one target, with or without a draft: the steps of a round as methods.

Both sessions speak the same language, so that the round loop is written once:
draft(id_last) -> verify(ids) -> accept(sampler) -> commit(n_kept).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from llama_eagle import _native
from llama_eagle._native import check
from llama_eagle.errors import InputError, NativeError, UsageError
from llama_eagle.models import Context, Model
from llama_eagle.sampling import Sampler

GGML_TYPE_F16, GGML_TYPE_F32 = 1, 0


@dataclass(frozen=True)
class Timings:
    """Time spent in native code, ms, and what was done in it, since the session began."""

    eval_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    commit_ms: float = 0.0
    n_graphs: int = 0


class Session(Protocol):
    """What the round loop needs. Positions and counts in tokens."""

    ctx: Any  # llama_context pointer
    n_batch: int
    n_draft_max: int  # 0: this session cannot draft

    @property
    def n_past(self) -> int: ...
    @property
    def n_room(self) -> int: ...
    @property
    def n_draft_room(self) -> int: ...
    @property
    def timings(self) -> Timings: ...
    def eval(self, tokens: Sequence[int]) -> None: ...
    def draft(self, id_last: int, n_max: int, p_min: float = 0.0) -> list[int]: ...
    def verify(self, ids: Sequence[int]) -> None: ...
    def accept(self, sampler: Sampler) -> list[int]: ...
    def commit(self, n_kept: int) -> None: ...
    def reset(self) -> None: ...


@dataclass(frozen=True)
class SessionOptions:
    """How a draft is bound to a target. `n_ctx_draft` and `n_threads` 0: as the target's context."""

    n_draft_max: int = 16
    n_ctx_draft: int = 0
    n_threads: int = 0
    kv_f32: bool = False


class EagleSession:
    """A target's context bound to its EAGLE-3 draft. A context manager; owns neither context nor model."""

    def __init__(self, context: Context, draft: Model, options: SessionOptions = SessionOptions()) -> None:
        self._lib = _native.library()
        self._keep = (context, draft)  # both must outlive the session
        self.ctx = context.handle
        self.n_ctx = context.n_ctx
        self.n_batch = context.n_batch
        self.n_draft_max = options.n_draft_max
        self._handle = ctypes.c_void_p()
        params = self._lib.eagle_session_default_params()
        params.struct_size = ctypes.sizeof(_native.SessionParams)
        params.n_draft_max = options.n_draft_max
        params.n_ctx_draft = options.n_ctx_draft
        params.n_threads = options.n_threads
        params.type_kv = GGML_TYPE_F32 if options.kv_f32 else GGML_TYPE_F16
        status = self._lib.eagle_session_new(self.ctx, draft.handle, ctypes.byref(params), ctypes.byref(self._handle))
        check(status, "eagle_session_new")
        self._ids = (ctypes.c_int32 * (options.n_draft_max + 1))()
        self._probs = (ctypes.c_float * (options.n_draft_max + 1))()
        self._n = ctypes.c_int32()

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
        return min(int(self._lib.eagle_n_draft_room(self._handle)), max(self.n_room - 1, 0))

    @property
    def timings(self) -> Timings:
        native = self._lib.eagle_get_timings(self._handle)
        return Timings(
            native.eval_ms, native.draft_ms, native.verify_ms, native.sample_ms, native.commit_ms, native.n_graphs
        )

    @property
    def draft_probs(self) -> list[float]:
        """The draft's probability of each token that the last `draft` returned."""
        return list(self._probs[: self._n_drafted])

    _n_drafted = 0

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens to both memories; the logits of the last one are then the context's last row.

        Raises `InputError` when they do not fit.
        """
        _require_room(self, len(tokens))
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        check(self._lib.eagle_eval(self._handle, array, len(tokens)), "eagle_eval")

    def draft(self, id_last: int, n_max: int, p_min: float = 0.0) -> list[int]:
        """Up to `n_max` tokens that may follow `id_last`, the token sampled last and not yet in memory."""
        if n_max > self.n_draft_max:
            raise UsageError(f"a draft of {n_max} tokens was asked for; this session was made for {self.n_draft_max}.")
        status = self._lib.eagle_draft(
            self._handle, id_last, n_max, p_min, self._ids, self._probs, ctypes.byref(self._n)
        )
        check(status, "eagle_draft")
        self._n_drafted = self._n.value
        return list(self._ids[: self._n_drafted])

    def verify(self, ids: Sequence[int]) -> None:
        """Decode `id_last` and the drafted tokens as one batch; the round stays pending until `commit`."""
        array = (ctypes.c_int32 * len(ids))(*ids)
        check(self._lib.eagle_verify(self._handle, array, len(ids)), "eagle_verify")

    def accept(self, sampler: Sampler) -> list[int]:
        """Sample row by row while the sample equals the draft: 1 + n_accepted tokens."""
        status = self._lib.eagle_accept(self._handle, sampler.round_handle, self._ids, ctypes.byref(self._n))
        check(status, "eagle_accept")
        return list(self._ids[: self._n.value])

    def commit(self, n_kept: int) -> None:
        """Keep the first `n_kept` rows of the round, forget the others; 0 undoes it whole."""
        check(self._lib.eagle_commit(self._handle, n_kept), "eagle_commit")

    def trim(self, n_past: int) -> bool:
        """Keep the first `n_past` tokens. False when the recurrent state cannot go back that far: reset and eval."""
        status = self._lib.eagle_trim(self._handle, n_past)
        if status == _native.ERR_STATE:
            return False
        check(status, "eagle_trim")
        return True

    def reset(self) -> None:
        """Forget everything, in both memories."""
        check(self._lib.eagle_reset(self._handle), "eagle_reset")

    def close(self) -> None:
        if self._handle:
            self._lib.eagle_session_free(self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self) -> EagleSession:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class PlainSession:
    """A target alone: rounds of one row. The reference that speculation is compared with."""

    n_draft_max = 0
    n_draft_room = 0

    def __init__(self, context: Context) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._keep = context
        self.ctx = context.handle
        self.n_ctx = context.n_ctx
        self.n_batch = context.n_batch
        self.n_past = 0
        self._ms = {"eval": 0.0, "verify": 0.0, "sample": 0.0}

    @property
    def n_room(self) -> int:
        return self.n_ctx - self.n_past

    @property
    def timings(self) -> Timings:
        return Timings(eval_ms=self._ms["eval"], verify_ms=self._ms["verify"], sample_ms=self._ms["sample"])

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens, in pieces of at most n_batch. Raises `InputError` when they do not fit."""
        _require_room(self, len(tokens))
        for start in range(0, len(tokens), self.n_batch):
            self._decode(tokens[start : start + self.n_batch], "eval")

    def draft(self, id_last: int, n_max: int, p_min: float = 0.0) -> list[int]:
        return []

    def verify(self, ids: Sequence[int]) -> None:
        self._decode(ids, "verify")

    def accept(self, sampler: Sampler) -> list[int]:
        start = time.perf_counter()
        token = sampler.sample(self.ctx)
        self._ms["sample"] += (time.perf_counter() - start) * 1e3
        return [token]

    def commit(self, n_kept: int) -> None:
        if n_kept != 1:
            raise UsageError(f"a round without a draft has one row; {n_kept} cannot be kept.")

    def reset(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self.ctx), True)
        self.n_past = 0

    def close(self) -> None:
        """Nothing to free: context and model belong to the caller."""

    def __enter__(self) -> PlainSession:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _decode(self, tokens: Sequence[int], what: str) -> None:
        start = time.perf_counter()
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        status = self._api.llama_decode(self.ctx, self._api.llama_batch_get_one(array, len(tokens)))
        if status:
            raise NativeError(f"llama_decode failed with {status}", code=status, call="llama_decode")
        self._api.llama_synchronize(self.ctx)
        self.n_past += len(tokens)
        self._ms[what] += (time.perf_counter() - start) * 1e3


def open_session(context: Context, draft: Model | None, options: SessionOptions) -> EagleSession | PlainSession:
    """The session for a target with or without a draft."""
    return PlainSession(context) if draft is None else EagleSession(context, draft, options)


def _require_room(session: Session, n_tokens: int) -> None:
    if n_tokens > session.n_room:
        raise InputError(
            f"{n_tokens} tokens do not fit into the {session.n_room} left of the context. "
            "Shorten the prompt or use a larger --ctx-size."
        )
