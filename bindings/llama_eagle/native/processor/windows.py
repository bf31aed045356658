"""Cores and affinity on Windows, from GetLogicalProcessorInformationEx."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

from llama_eagle.native.processor.cores import Cores

RELATION_CORE = 0
GROUP = 64  # maximum number of logical processors in a group
HEAD, MASKS = "<II", 32  # relationship and size of a record; offset of a core's group masks in it


def read_cores() -> Cores | None:
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 (there is none for mypy elsewhere)
    return from_records(_records(kernel), _mask(kernel))


def from_records(data: bytes, mask: int = 0) -> Cores | None:
    """Parse SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX records. `mask`: affinity in the first group; 0: all."""
    found = list(_parse(data))
    if not found:
        return None
    every: frozenset[int] = frozenset().union(*(core for _, core in found))
    best = max(efficiency for efficiency, _ in found)  # a higher class is faster
    fast: frozenset[int] = frozenset().union(*(core for efficiency, core in found if efficiency == best))
    allowed = frozenset(_bits(mask)) & every or every
    return Cores(tuple(core for _, core in found), fast, allowed)


def _parse(data: bytes) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield (efficiency class, logical processors) of each core."""
    at = 0
    while at + MASKS <= len(data):
        relation, size = struct.unpack_from(HEAD, data, at)
        record = data[at : at + size]
        if size < MASKS or len(record) < size:
            return
        if relation == RELATION_CORE:
            yield record[9], frozenset(_logical(record))
        at += size


def _logical(record: bytes) -> Iterator[int]:
    (n_groups,) = struct.unpack_from("<H", record, 30)
    for i in range(min(n_groups, (len(record) - MASKS) // 16)):
        mask, group = struct.unpack_from("<QH", record, MASKS + 16 * i)
        yield from (GROUP * group + bit for bit in _bits(mask))


def _bits(mask: int) -> Iterator[int]:
    return (bit for bit in range(GROUP) if mask >> bit & 1)


def _records(kernel: Any) -> bytes:
    size = ctypes.c_uint32()
    kernel.GetLogicalProcessorInformationEx(RELATION_CORE, None, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    ok = kernel.GetLogicalProcessorInformationEx(RELATION_CORE, buffer, ctypes.byref(size))
    return buffer.raw[: size.value] if ok else b""


def _mask(kernel: Any) -> int:
    """Return the affinity mask; 0 if the process runs in several groups."""
    process, system = ctypes.c_size_t(), ctypes.c_size_t()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel.GetCurrentProcess())
    ok = kernel.GetProcessAffinityMask(handle, ctypes.byref(process), ctypes.byref(system))
    return process.value if ok and process.value != system.value else 0
