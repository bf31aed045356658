"""The floor of a decode: the bytes that it must read, and how fast this machine reads."""

from __future__ import annotations

import dataclasses
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llama_eagle.gguf.header import Header, Source, read_model

ARRAY_BYTES = 1 << 29  # far beyond every cache
N_TIMES = 6
BLOCK = re.compile(r"blk\.(\d+)\.")


def read_rate(n_threads: int) -> float:
    """Bytes a second that `n_threads` read together, the best of N_TIMES passes over memory."""
    parts = np.array_split(np.ones(ARRAY_BYTES // 8, np.int64), n_threads)
    with ThreadPoolExecutor(n_threads) as pool:
        return ARRAY_BYTES / min(_seconds(pool, parts) for _ in range(N_TIMES))


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """What a decode reads, in bytes, and what the machine reads, in bytes a second."""

    decode_bytes: int
    read_rate: float

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def memory_use(target: Source, n_threads: int) -> MemoryUse:
    return MemoryUse(decode_bytes(read_model(target)[1]), read_rate(n_threads))


def decode_bytes(files: list[Header]) -> int:
    """Bytes of the weights that one token's decode reads: of a mixture, as many experts as it uses.

    Not counted: the embeddings, of which it reads a row, unless they are the head too; and the MTP head, which drafts.
    """
    first = files[0]
    n_blocks = int(first.arch_key("block_count", 0)) - int(first.arch_key("nextn_predict_layers", 0))
    n_experts = int(first.arch_key("expert_count", 0))
    share = int(first.arch_key("expert_used_count", 0)) / n_experts if n_experts else 1.0
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    total = 0.0
    for name, tensor in tensors.items():
        block = BLOCK.match(name)
        if (block and int(block[1]) >= n_blocks) or (name == "token_embd.weight" and "output.weight" in tensors):
            continue
        total += (tensor.n_bytes or 0) * (share if "_exps." in name else 1.0)
    return int(total)


def _seconds(pool: ThreadPoolExecutor, parts: list[np.ndarray]) -> float:
    start = time.perf_counter()
    list(pool.map(np.max, parts))
    return time.perf_counter() - start
