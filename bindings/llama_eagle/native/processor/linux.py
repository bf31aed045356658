"""Cores, affinity and the limits of control groups on Linux, from /sys and /proc.

Sources: Documentation/ABI/stable/sysfs-devices-system-cpu and Documentation/admin-guide/{cgroup-v1,cgroup-v2} of Linux.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from llama_eagle.native.processor.cores import Cores

ROOT = Path("/")
SIBLINGS = ("core_cpus_list", "thread_siblings_list")  # the second is the older name
V2_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
V2_MEMORY = ("memory.max", "memory.current")
V1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes")
V2_CACHES = ("inactive_file", "active_file", "slab_reclaimable")  # memory that the kernel frees when a group is full
V1_CACHES = ("total_inactive_file", "total_active_file")
LARGE = 32 << 20  # bytes of a mapping
# Size, Rss and Swap in KiB of a writable private mapping without a file, in /proc/self/smaps.
GRANTED = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ rw-p \S+ \S+ 0 *\nSize: +(\d+) kB\n"
    r"(?:\w+: .*\n)*?Rss: +(\d+) kB\n(?:\w+: .*\n)*?Swap: +(\d+) kB",
    re.MULTILINE,
)
SLOWER = 0.8  # cores below this share of the highest capacity are efficiency cores
ALIKE = 1.1  # capacities whose ratio is lower belong to one kind of core


def read_cores(root: Path = ROOT, affinity: frozenset[int] | None = None) -> Cores | None:
    """Return the cores, or None if the system lists no processors.

    `root`: of the file system. `affinity`: replaces the process's affinity mask.
    """
    known = frozenset(_processors(root))
    allowed = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    known |= allowed
    if not known:
        return None
    return Cores(_cores(root, known), _fast(root, known), allowed or known, quota(root))


def parse_list(text: str) -> frozenset[int]:
    """Parse the kernel's notation of a set, such as 0-3,8. Raises `ValueError` for anything else."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if not (match := re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)):
            raise ValueError(f"{text!r} is not a list of processors")
        first, last = int(match[1]), int(match[2] or match[1])
        found.update(range(first, last + 1))
    return frozenset(found)


def quota(root: Path = ROOT) -> float | None:
    """Return the number of processors that the process's control groups grant; None: no limit."""
    return min(_quotas(root), default=None)


def free_memory(root: Path = ROOT) -> int | None:
    """Return the bytes that the process's control groups still grant, page cache included; None: no limit."""
    return min(_free_memory(root), default=None)


def unwritten_memory(root: Path = ROOT) -> int:
    """Return the bytes that this process was granted but has not written, such as caches of its contexts.

    Only writable mappings of 32 MiB or more without a file count: stacks are never filled, and freed parts of the heap
    are for later use. 0 if the system has no list.
    """
    sizes = (tuple(int(kib) << 10 for kib in found) for found in GRANTED.findall(_text(root / "proc/self/smaps")))
    return sum(max(size - rss - swap, 0) for size, rss, swap in sizes if size >= LARGE)


def _processors(root: Path) -> frozenset[int]:
    return _list(root / "sys/devices/system/cpu/online")


def _cores(root: Path, known: frozenset[int]) -> tuple[frozenset[int], ...]:
    """Group the known processors by core. One without a readable topology counts as a core."""
    left, cores = set(known), []
    while left:
        number = min(left)
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        siblings = next((found for name in SIBLINGS if number in (found := _list(folder / name))), frozenset({number}))
        cores.append(siblings & left)
        left -= siblings
    return tuple(cores)


def _fast(root: Path, known: frozenset[int]) -> frozenset[int]:
    """Return performance cores. Intel's hybrids list them, others (ARM) list each processor's capacity."""
    named = _list(root / "sys/devices/cpu_core/cpus") & known
    if named and _list(root / "sys/devices/cpu_atom/cpus"):
        return named
    capacities = {i: _number(root / f"sys/devices/system/cpu/cpu{i}/cpu_capacity") for i in known}
    measured = [capacity for capacity in capacities.values() if capacity is not None and capacity > 0]
    if len(measured) < len(known) or min(measured) > SLOWER * max(measured):
        return known
    return frozenset(i for i, capacity in capacities.items() if capacity and capacity > ALIKE * min(measured))


def _quotas(root: Path) -> Iterator[float]:
    for number, controllers, path in _groups(root):
        if number == "0" and not controllers:
            for folder in _levels(root, V2_MOUNTS, path):
                yield from _share(*_fields(folder / "cpu.max")[:2])
        elif "cpu" in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{name}" for name in dict.fromkeys((controllers, "cpu", "cpu,cpuacct"))]
            for folder in _levels(root, mounts, path):
                yield from _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _free_memory(root: Path) -> Iterator[int]:
    for number, controllers, path in _groups(root):
        if number == "0" and not controllers:
            for folder in _levels(root, V2_MOUNTS, path):
                yield from _unused(folder, V2_MEMORY, V2_CACHES)
        elif "memory" in controllers.split(","):
            for folder in _levels(root, [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/memory"], path):
                yield from _unused(folder, V1_MEMORY, V1_CACHES)


def _unused(folder: Path, names: tuple[str, str], caches: tuple[str, ...]) -> Iterator[int]:
    """Yield limit - usage + page cache of a group; nothing for "max", which means no limit."""
    limit, used = (_number(folder / name) for name in names)
    if limit is not None and used is not None:
        lines = [line.split() for line in _text(folder / "memory.stat").splitlines()]
        yield max(limit - used + sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in caches), 0)


def _groups(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (hierarchy, controllers, path) of the process."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        if len(parts := line.split(":", 2)) == 3:
            yield parts[0], parts[1], parts[2]


def _levels(root: Path, mounts: list[str] | tuple[str, ...], path: str) -> Iterator[Path]:
    """Yield the folders of a control group and its parents. A container may see its own group at the mount."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for mount in mounts:
        for n in range(len(parts), -1, -1):
            yield root.joinpath(mount, *parts[:n])


def _share(limit: str = "", period: str = "") -> Iterator[float]:
    """Yield limit / period, both in microseconds; nothing for "max" and -1, which mean no limit."""
    if limit.isascii() and limit.isdecimal() and period.isascii() and period.isdecimal() and int(limit) * int(period):
        yield int(limit) / int(period)


def _list(path: Path) -> frozenset[int]:
    try:
        return parse_list(_text(path))
    except ValueError:
        return frozenset()


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdecimal() else None


def _fields(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """Return the content of a file; "" if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
