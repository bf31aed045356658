"""A llama.cpp context as the round-state tests drive it: decode, trim, save, load, copy, with logits of every row."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_eagle  # noqa: F401  redirects llama_cpp to our library
import numpy as np

import llama_cpp

REPLAY, UNFUSED, SNAPSHOTS = "replay", "unfused", "snapshots"

_log: list[str] = []


@llama_cpp.llama_log_callback
def _collect(level: int, text: bytes, user: Any) -> None:
    _log.append(text.decode(errors="replace"))


class DecodeError(RuntimeError):
    def __init__(self, code: int, log: str) -> None:
        super().__init__(f"llama_decode returned {code}: {log}")
        self.code = code


@dataclass(frozen=True)
class Options:
    mode: str = REPLAY
    n_rs_seq: int = 4
    n_seq_max: int = 1
    n_ubatch: int = 512
    n_ctx: int = 1024  # per sequence
    n_threads: int = 1
    offload_kqv: bool = True


class RoundModel:
    def __init__(self, path: Path, n_gpu_layers: int = 0) -> None:
        llama_cpp.llama_log_set(_collect, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise RuntimeError("".join(_log[-20:]))
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.handle))

    def context(self, **options: Any) -> RoundContext:
        return RoundContext(self, Options(**options))


class RoundContext:
    """`n_past[seq]` is the number of tokens in memory. Not for sharing between threads."""

    def __init__(self, model: RoundModel, options: Options) -> None:
        os.environ["LLAMA_EAGLE_RS"] = options.mode  # read when the context is made
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = options.n_ctx * options.n_seq_max
        params.n_batch = params.n_ctx
        params.n_ubatch = options.n_ubatch
        params.n_seq_max = options.n_seq_max
        params.n_rs_seq = options.n_rs_seq
        params.n_threads = params.n_threads_batch = options.n_threads
        params.kv_unified = False
        params.offload_kqv = options.offload_kqv
        params.no_perf = False
        _log.clear()
        self.handle = llama_cpp.llama_init_from_model(model.handle, params)
        os.environ.pop("LLAMA_EAGLE_RS")
        self.log = "".join(_log)
        if not self.handle:
            raise RuntimeError(self.log)
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.n_vocab = model.n_vocab
        self.n_past = dict.fromkeys(range(options.n_seq_max), 0)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            llama_cpp.llama_free(self.handle)
            self.handle = None

    def decode(self, tokens: Mapping[int, Sequence[int]]) -> np.ndarray:
        """One llama_decode; logits [rows, n_vocab] in the order given."""
        n = sum(map(len, tokens.values()))
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        rows = [(seq, self.n_past[seq] + i, token) for seq, ids in tokens.items() for i, token in enumerate(ids)]
        for i, (seq, pos, token) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos, 1, 1
            batch.seq_id[i][0] = seq
        _log.clear()
        code = llama_cpp.llama_decode(self.handle, batch)
        llama_cpp.llama_batch_free(batch)
        if code:
            raise DecodeError(code, "".join(_log))
        for seq, ids in tokens.items():
            self.n_past[seq] += len(ids)
        return np.stack([self._logits(i) for i in range(n)])

    def _logits(self, i: int) -> np.ndarray:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.handle, i), (self.n_vocab,)).copy()

    def trim(self, seq: int, n_past: int) -> bool:
        ok = bool(llama_cpp.llama_memory_seq_rm(self.memory, seq, n_past, -1))
        if ok:
            self.n_past[seq] = min(self.n_past[seq], n_past)
        return ok

    def remove(self, seq: int) -> None:
        assert llama_cpp.llama_memory_seq_rm(self.memory, seq, -1, -1)
        self.n_past[seq] = 0

    def copy(self, source: int, target: int) -> None:
        self.remove(target)
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, -1, -1)
        self.n_past[target] = self.n_past[source]

    def save(self, seq: int) -> bytes:
        size = llama_cpp.llama_state_seq_get_size(self.handle, seq)
        data = (ctypes.c_uint8 * size)()
        assert llama_cpp.llama_state_seq_get_data(self.handle, data, size, seq) == size > 0
        return bytes(data)

    def load(self, seq: int, state: bytes, n_past: int) -> None:
        data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        assert llama_cpp.llama_state_seq_set_data(self.handle, data, len(state), seq) == len(state)
        self.n_past[seq] = n_past

    @property
    def n_reused(self) -> int:
        """Decodes whose graph was the one before."""
        return int(llama_cpp.llama_perf_context(self.handle).n_reused)

    def recurrent_mib(self) -> float:
        """Size of the recurrent memory, records included, as llama.cpp reports it."""
        return sum(float(line.split("=")[1].split()[0]) for line in self.log.splitlines() if "RS buffer size" in line)
