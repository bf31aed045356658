"""Estimate of a context's memory before it is created.

Linux grants memory that it does not have and kills the process on first use, which llama.cpp cannot report.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llama_eagle.errors import EnvironmentFailure
from llama_eagle.gguf.header import Header, quant_sizes
from llama_eagle.native.processor import linux

F16 = 1
OVERHEAD = 1 << 30  # bytes of address space for graphs, threads and their heaps, most of them never used
# Every n-th layer has no sliding window, if the file has no pattern (load_swa_pattern in llama.cpp's src/models).
WINDOWED = {
    "cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "olmo2": 4, "smallthinker": 4,
}  # fmt: skip
INTERVALS = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}  # as WINDOWED, of layers with attention


@dataclass(frozen=True)
class DraftContext:
    """A draft's header, its context size (0: the target's), and the number of sequences that share it."""

    header: Header
    n_ctx: int = 0
    n_seq: int = 1


@dataclass(frozen=True)
class Slots:
    """Slots of llama-server. In a layer with a sliding window, each keeps the window and one batch."""

    n: int
    n_ubatch: int


def require_memory(
    header: Header,
    n_ctx: int,
    type_k: int,
    type_v: int,
    draft: DraftContext | None = None,
    slots: Slots | None = None,
) -> None:
    """Raise `EnvironmentFailure` if the K and V caches of `n_ctx` tokens and of the draft exceed the free memory.

    Caches take memory when they are written, so those of this process's other contexts are not free. What other
    processes have not written yet is not known. slots: as in `kv_bytes`.
    """
    if (available := available_bytes()) is None:
        return
    available = max(available - linux.unwritten_memory(), 0)
    of_draft = draft_bytes(header, draft, n_ctx) if draft is not None else 0
    needed = kv_bytes(header, n_ctx, type_k, type_v, slots) + of_draft
    if needed > available:
        share = f" with {of_draft / 2**30:.1f} GiB for the draft" if of_draft else ""
        remedy = "a smaller n_ctx, draft_n_ctx or cache type" if of_draft else "a smaller n_ctx or cache type"
        raise EnvironmentFailure(
            f"{header.path}: no context of {n_ctx} tokens: its K and V cache takes {needed / 2**30:.1f} GiB{share}, "
            f"{available / 2**30:.1f} GiB are free. Use {remedy}, or free memory."
        )


def draft_bytes(target: Header, draft: DraftContext, n_ctx: int) -> int:
    """Return the bytes of a draft's K and V caches next to a target's context; 0 for an MTP head or an assistant."""
    header = draft.header
    if _is_head(target, header):
        return 0
    n_trained = int(header.arch_key("context_length", 0)) or n_ctx
    n_own = min(draft.n_ctx or n_ctx // draft.n_seq, n_trained, n_ctx // draft.n_seq)
    return draft.n_seq * kv_bytes(header, n_own, F16, F16)


def require_addresses(files: Iterable[Header]) -> None:
    """Raise `EnvironmentFailure` if the limit of address space (ulimit -v) is too low to load and run these files.

    ggml ends the process if a small allocation fails.
    """
    free = free_addresses()
    needed = OVERHEAD + sum(2 * file.file_size for file in files)  # mapped, and copied into the repacked layout
    if free is not None and needed > free:
        raise EnvironmentFailure(
            f"the limit of address space leaves {free / 2**30:.1f} GiB, but up to {needed / 2**30:.1f} GiB are needed. "
            "Raise the limit (ulimit -v)."
        )


def free_addresses() -> int | None:
    """Return the bytes of address space that this process may still use; None without a limit."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else limit - used


def kv_bytes(header: Header, n_ctx: int, type_k: int, type_v: int, slots: Slots | None = None) -> int:
    """Return the bytes of the K and V caches. Recurrent layers and those that read another layer's have none.

    slots: None if layers with a sliding window keep all tokens, as in sessions.
    """
    heads = header.arch_key("attention.head_count", 1)
    n_heads = max(heads) if isinstance(heads, list) else int(heads)
    head_size = int(header.arch_key("embedding_length", 0)) // max(n_heads, 1)
    n_windowed = n_ctx
    if slots is not None:
        n_windowed = slots.n * min(n_ctx // slots.n, header.number("attention.sliding_window") + slots.n_ubatch)
    sizes = quant_sizes()
    total = 0
    for n_heads_kv, is_windowed in _kv_layers(header):
        for key, kind in (("attention.key_length", type_k), ("attention.value_length", type_v)):
            block, block_bytes = sizes[kind]
            size = header.arch_key(key, head_size)
            size = header.arch_key(f"{key}_swa", size) if is_windowed else size
            total += (n_windowed if is_windowed else n_ctx) * n_heads_kv * int(size) * block_bytes // block
    return total


def _is_head(target: Header, draft: Header) -> bool:
    """Return True if the draft has at most one layer with a memory of its own: the target's next, or an assistant."""
    n_heads, sizes = draft.arch_key("nextn_predict_layers", 0), ("embedding_length", "block_count")
    fits = all(draft.arch_key(name) == target.arch_key(name) for name in sizes)
    return bool(n_heads) and (fits or n_heads == draft.arch_key("block_count"))


def total_bytes() -> int | None:
    """Return the memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """Return the memory that this process may still use; None if it is unknown.

    The limits are those of the machine, the control groups and the address space. Page cache counts as available.
    """
    addresses = free_addresses()
    limits = (_meminfo(), linux.free_memory(), None if addresses is None else max(addresses - OVERHEAD, 0))
    return min((limit for limit in limits if limit is not None), default=None)


def _kv_layers(header: Header) -> list[tuple[int, bool]]:
    """Return the number of heads and whether there is a sliding window, for each layer with keys and values."""
    n_layers = int(header.arch_key("block_count", 0)) - header.number("attention.shared_kv_layers")
    name = (
        "attention.head_count_kv" if header.arch_key("attention.head_count_kv") is not None else "attention.head_count"
    )
    per_layer = [(header.number(name, 1, layer), _is_windowed(header, layer)) for layer in range(n_layers)]
    recurrent = header.arch_key("attention.recurrent_layers")
    interval = header.arch_key("full_attention_interval", INTERVALS.get(header.architecture, 1))
    if isinstance(recurrent, list):
        return [layer for layer, is_recurrent in zip(per_layer, recurrent, strict=False) if not is_recurrent]
    return [layer for i, layer in enumerate(per_layer) if (i + 1) % interval == 0]


def _is_windowed(header: Header, layer: int) -> bool:
    if not header.number("attention.sliding_window"):
        return False
    pattern = header.arch_key("attention.sliding_window_pattern", WINDOWED.get(header.architecture))
    if isinstance(pattern, list):
        return layer < len(pattern) and bool(pattern[layer])
    return type(pattern) is int and (pattern < 1 or (layer + 1) % pattern != 0)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    kib = sum(int(fields.get(name, "0 kB").split()[0]) for name in ("MemAvailable", "SwapFree"))
    return kib * 1024
