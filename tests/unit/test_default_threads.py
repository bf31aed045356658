"""The default number of threads, on file systems made for it: hybrids, SMT, containers, masks and damage."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import Mock

import pytest
from llama_eagle.errors import UsageError
from llama_eagle.gguf.size import available_bytes
from llama_eagle.native.processor import detect, linux, threads
from llama_eagle.native.processor.cores import Cores, alike
from llama_eagle.native.processor.detect import read_cores
from llama_eagle.native.processor.linux import free_memory, parse_list, quota
from llama_eagle.native.processor.linux import read_cores as read_linux
from llama_eagle.native.processor.macos import read_cores as read_macos
from llama_eagle.native.processor.windows import from_records


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def topology(cores: list[str], name: str = "core_cpus_list") -> dict[str, str]:
    """Files for cores that are given as lists of their logical processors."""
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/cpu{i}/topology/{name}": core for core in cores for i in parse_list(core)}
    return files | {f"{cpu}/online": ",".join(cores)}


def machine(root: Path, cores: list[str], more: dict[str, str] | None = None, affinity: str | None = None) -> Cores:
    files = topology(cores) | (more or {})
    allowed = parse_list(affinity or ",".join(cores))
    found = read_linux(write(root, files), allowed)
    assert found is not None
    return found


SMT = [f"{i},{i + 8}" for i in range(8)]
HYBRID = ["0-1", "2-3", *map(str, range(4, 8))]
HYBRID_FILES = {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-7"}
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"


class TestCores:
    def test_hyperthreads_share_a_core(self, tmp_path: Path) -> None:
        found = machine(tmp_path, SMT)
        assert (found.n_physical, found.n_logical, found.n_default) == (8, 16, 8)

    def test_older_kernels_name_siblings_otherwise(self, tmp_path: Path) -> None:
        found = read_linux(write(tmp_path, topology(SMT, "thread_siblings_list")), frozenset(range(16)))
        assert found is not None
        assert found.n_default == 8

    @pytest.mark.parametrize(
        ("affinity", "n"), [("0", 1), ("0,8", 1), ("0-3", 4), ("3,4,12", 2), ("8-15", 8), ("1-2,9-10", 2)]
    )
    def test_affinity(self, tmp_path: Path, affinity: str, n: int) -> None:
        assert machine(tmp_path, SMT, affinity=affinity).n_default == n

    @pytest.mark.parametrize(("affinity", "n"), [("0-7", 2), ("1-5", 2), ("2-4", 1), ("4-7", 4), ("6", 1)])
    def test_intel_hybrid_leaves_efficiency_cores_out(self, tmp_path: Path, affinity: str, n: int) -> None:
        """A mask of efficiency cores alone is what the user wants."""
        assert machine(tmp_path, HYBRID, HYBRID_FILES, affinity).n_default == n

    @pytest.mark.parametrize(
        ("capacities", "n"),
        [
            ([446] * 4 + [1024] * 4, 4),
            ([530] * 4 + [1024] * 4, 4),
            ([250] * 4 + [870] * 3 + [1024], 4),
            ([1024] * 8, 8),
            ([900] * 4 + [1024] * 4, 8),
            ([1009] * 6 + [1024] * 2, 8),
            ([0] * 8, 8),
        ],
    )
    def test_arm_capacities(self, tmp_path: Path, capacities: list[int], n: int) -> None:
        files = {f"sys/devices/system/cpu/cpu{i}/cpu_capacity": str(value) for i, value in enumerate(capacities)}
        assert machine(tmp_path, [str(i) for i in range(8)], files).n_default == n

    def test_without_topology_each_processor_is_a_core(self, tmp_path: Path) -> None:
        found = read_linux(tmp_path, frozenset({0, 1, 5}))
        assert found is not None
        assert (found.n_physical, found.n_default) == (3, 3)

    @pytest.mark.parametrize("text", ["", "x", "1-", "-1", "0,,1", "2\n\n9", "0x1", "7-3", "\0", "1-99999999"])
    def test_damaged_topology(self, tmp_path: Path, text: str) -> None:
        files = topology(["0", "1"]) | {"sys/devices/system/cpu/cpu0/topology/core_cpus_list": text}
        found = read_linux(write(tmp_path, files), frozenset({0, 1}))
        assert found is not None
        assert found.n_default == 2

    def test_folders_in_place_of_files(self, tmp_path: Path) -> None:
        for name in ("sys/devices/system/cpu/online", "proc/self/cgroup", "sys/devices/cpu_core/cpus"):
            (tmp_path / name).mkdir(parents=True)
        found = read_linux(tmp_path, frozenset({3}))
        assert found is not None
        assert found.n_default == 1


class TestQuota:
    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            ({}, None),
            ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "max 100000"}, None),
            ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "150000 100000"}, 1.5),
            ({"proc/self/cgroup": "0::/a/b", f"{V2}/a/cpu.max": "200000 100000", f"{V2}/a/b/cpu.max": "max 100000"}, 2),
            ({"proc/self/cgroup": "0::/a/b", f"{V2}/a/cpu.max": "400000 100000", f"{V2}/cpu.max": "100000 50000"}, 2),
            ({"proc/self/cgroup": "0::/../x", f"{V2}/x/cpu.max": "50000 100000"}, 0.5),
            ({"proc/self/cgroup": "1:name=systemd:/\n0::/", f"{V2}/unified/cpu.max": "300000 100000"}, 3),
            ({"proc/self/cgroup": "0::/", f"{V2}/other/cpu.max": "100000 100000"}, None),
            ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "0 100000"}, None),
            ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "100000"}, None),
            ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "many 100000"}, None),
            ({"proc/self/cgroup": "garbage\n::\n\n", f"{V2}/cpu.max": "100000 100000"}, None),
            (
                {
                    "proc/self/cgroup": "4:cpu,cpuacct:/docker/1",
                    f"{V1}/cpu.cfs_quota_us": "250000",
                    f"{V1}/cpu.cfs_period_us": "100000",
                },
                2.5,
            ),
            (
                {
                    "proc/self/cgroup": "2:cpu:/docker/1",
                    "sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": "-1",
                    "sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000",
                },
                None,
            ),
        ],
    )
    def test_levels(self, tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
        assert quota(write(tmp_path, files)) == expected

    @pytest.mark.parametrize(("limit", "n"), [("150000", 1), ("50000", 1), ("400000", 4), ("6400000", 8)])
    def test_threads_stay_within_it(self, tmp_path: Path, limit: str, n: int) -> None:
        files = {"proc/self/cgroup": "0::/c", f"{V2}/c/cpu.max": f"{limit} 100000"}
        assert machine(tmp_path, SMT, files).n_default == n


def v2_memory(folder: str, limit: object, used: int, stat: str = "") -> dict[str, str]:
    return {f"{V2}/{folder}memory.max": f"{limit}", f"{V2}/{folder}memory.current": f"{used}"} | (
        {f"{V2}/{folder}memory.stat": stat} if stat else {}
    )


V1_MEMORY = {
    "proc/self/cgroup": "9:memory:/docker/1\n4:cpu,cpuacct:/docker/1",
    f"{V2}/memory/docker/1/memory.limit_in_bytes": "9223372036854771712",
    f"{V2}/memory/docker/1/memory.usage_in_bytes": "700",
    f"{V2}/memory/memory.limit_in_bytes": "1000",
    f"{V2}/memory/memory.usage_in_bytes": "900",
    f"{V2}/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 100\ntotal_rss 300",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/", **v2_memory("", "max", 5)}, None),
        ({"proc/self/cgroup": "0::/", **v2_memory("", 1000, 900)}, 100),
        ({"proc/self/cgroup": "0::/", **v2_memory("", 1000, 1200)}, 0),
        (
            {
                "proc/self/cgroup": "0::/",
                **v2_memory("", 1000, 990, "anon 90\nfile 910\ninactive_file 700\nactive_file 100\nslab_reclaimable 5"),
            },
            815,
        ),
        ({"proc/self/cgroup": "0::/a/b", **v2_memory("a/", 500, 200), **v2_memory("a/b/", "max", 100)}, 300),
        ({"proc/self/cgroup": "0::/a/b", **v2_memory("a/", 500, 200), **v2_memory("a/b/", 150, 100)}, 50),
        (V1_MEMORY, 700),
    ],
    ids=range(8),
)
def test_memory_of_control_groups(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    assert free_memory(write(tmp_path, files)) == expected


SMAPS = """7f00-7f01 {access} 00000000 00:00 {inode} {name}
Size:              {size} kB
KernelPageSize:        4 kB
Rss:                1024 kB
Pss:                1024 kB
Anonymous:          1024 kB
SwapPss:               0 kB
Swap:                512 kB
VmFlags: rd wr mr mw me ac
"""


def test_memory_that_is_not_written_yet(tmp_path: Path) -> None:
    """Neither that of files, stacks and the heap, nor what cannot be written."""
    cache = {"access": "rw-p", "inode": 0, "name": "", "size": 65536}
    others = ({"access": "r--p"}, {"inode": 7, "name": "/model.gguf"}, {"name": "[heap]"}, {"size": 8192})
    text = "".join(SMAPS.format(**cache | other) for other in ({}, *others, {}))
    assert linux.unwritten_memory(write(tmp_path, {"proc/self/smaps": text})) == 2 * (65536 - 1024 - 512) << 10
    assert linux.unwritten_memory(tmp_path / "elsewhere") == 0


def test_available_memory_is_within_the_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "free_memory", lambda: 1000)
    assert available_bytes() == 1000


class TestOtherSystems:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ({"hw.physicalcpu": 8, "hw.logicalcpu": 8, "hw.perflevel0.physicalcpu": 4}, (8, 8, 4)),
            ({"hw.physicalcpu": 4, "hw.logicalcpu": 8}, (4, 8, 4)),
            ({"hw.physicalcpu": 2}, (2, 2, 2)),
        ],
    )
    def test_macos(self, values: dict[str, int], expected: tuple[int, int, int]) -> None:
        found = read_macos(values.get)
        assert found is not None
        assert (found.n_physical, found.n_logical, found.n_default) == expected

    def test_macos_without_numbers(self) -> None:
        assert read_macos({}.get) is None

    @staticmethod
    def record(efficiency: int, *masks: tuple[int, int]) -> bytes:
        """SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX of a core, with (group, mask) pairs."""
        groups = b"".join(struct.pack("<QH6x", mask, group) for group, mask in masks)
        return struct.pack("<IIBB20xH", 0, 32 + len(groups), 0, efficiency, len(masks)) + groups

    def test_windows_hybrid(self) -> None:
        data = self.record(1, (0, 0b11)) + self.record(1, (0, 0b1100)) + self.record(0, (0, 0b10000))
        found = from_records(data)
        assert found is not None
        assert (found.n_physical, found.n_logical, found.n_default) == (3, 5, 2)
        assert (masked := from_records(data, 0b10001)) is not None
        assert masked.n_default == 1

    def test_windows_groups(self) -> None:
        found = from_records(self.record(0, (0, 1)) + self.record(0, (1, 1)))
        assert found is not None
        assert (found.n_logical, found.n_default) == (2, 2)

    @pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\0" * 40, b"\xff" * 64])
    def test_windows_damage(self, data: bytes) -> None:
        assert from_records(data) is None
        core = self.record(0, (0, 1))
        for part in (data, core[:-1]):
            found = from_records(core + part)
            assert found is not None and found.n_physical == 1


def test_a_machine_whose_cores_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Cores((frozenset({0, 1}),), frozenset({0, 1}), frozenset({0}))
    monkeypatch.setattr(detect.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(detect, "_of_system", lambda: found)
    assert read_cores() is found
    for failing in (Mock(side_effect=OSError), Mock(return_value=None)):
        monkeypatch.setattr(detect, "_of_system", failing)
        assert read_cores() == alike(3)


def test_this_machine() -> None:
    found = read_cores()
    assert 1 <= found.n_default <= found.n_physical <= found.n_logical
    assert threads.default_threads() == found.n_default == threads.n_threads(0)
    assert threads.n_threads(7) == 7


@pytest.mark.parametrize("value", [None, 0, "0", "auto", "AUTO", " auto "])
def test_automatic(value: object) -> None:
    assert threads.read_threads(value) == threads.AUTO


@pytest.mark.parametrize(("value", "n"), [(1, 1), ("12", 12), (" 3 ", 3), (512, 512)])
def test_numbers(value: object, n: int) -> None:
    assert threads.read_threads(value) == n


@pytest.mark.parametrize(
    "value", [-1, "-1", "four", "", "1.5", 1.5, 2.0, True, [1], {}, 513, "99999999999", "1e3", "²", "٣", "+2", b"2"]
)
def test_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"^a\.toml: threads .*1 to 512, or auto"):
        threads.read_threads(value, "a.toml: threads")


def test_more_than_the_process_may_use_is_a_warning() -> None:
    limited = Cores(alike(4).cores, alike(4).fast, frozenset({0, 1, 2, 3}), 1.5)
    assert threads.excess(1, limited) is None
    assert "grants 1.5 processors. The default is 1." in str(threads.excess(2, limited))
    pinned = Cores(alike(4).cores, alike(4).fast, frozenset({2}))
    assert "1 of 4 processors" in str(threads.excess(2, pinned))
    assert threads.excess(4, alike(4)) is None


def test_the_warning_is_given_once() -> None:
    told: list[str] = []
    for _ in range(2):
        threads.warn_excess(511, told.append)
    assert len(told) == 1
    threads.warn_excess(0, told.append)
    assert len(told) == 1
