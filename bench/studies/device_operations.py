"""What a decode of Gated DeltaNet layers costs a device that lacks our two operations, beside one that has them.

    python bench/studies/device_operations.py --json out.json

Operations are counted on the stand-in for a GPU (native/tests/stand_in), on a target with a real one's layers and
everything else tiny; bytes follow from the shapes. Of both, the share that replay in ordinary operations adds to a
decode of 1 row and of 5.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from llama_eagle.synthetic.recurrent import Shape, write_recurrent

ROOT = Path(__file__).resolve().parents[2]
OURS = b"EAGLE_GDN,EAGLE_CONV_WINDOW"
N_RS_SEQ, WARM_UP, ROWS = 8, 3, (1, 5)
BITS = 4.9  # of a weight in Q4_K_M
MIB = 2**20


@dataclass(frozen=True)
class Target:
    """Layers and heads of Qwen3.5; billions: weights that a decode reads, of experts those that a row uses."""

    recurrent: int
    attention: int
    k_heads: int
    v_heads: int
    billions: float

    @property
    def state_mib(self) -> float:
        return self.recurrent * self.v_heads * 128 * 128 * 4 / MIB


TARGETS = {
    "0.8B": Target(18, 6, 16, 16, 0.75),
    "4B": Target(24, 8, 16, 32, 4.2),
    "9B": Target(24, 8, 16, 32, 9),
    "27B": Target(48, 16, 16, 48, 27),
    "35B-A3B": Target(30, 10, 16, 32, 3),
}
# Passes over the state in a decode. Ours: read, written. Ordinary: verification reads it and writes one that is
# thrown away; the commit reads it, writes a copy, and moves that into its place.
EXTRA_PASSES = 6 - 2


def count_nodes(path: Path, library: Path, lacks: bytes, pipe: Any) -> None:
    """In a process of its own: the device stays registered. Sends nodes computed per decode, by rows."""
    stand_in = ctypes.CDLL(str(library))
    stand_in.stand_in_register.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32]
    stand_in.stand_in_count.restype, stand_in.stand_in_count.argtypes = ctypes.c_int64, [ctypes.c_char_p]
    stand_in.stand_in_register(1, lacks, 256)
    from llama_eagle.bench.round_context import RoundModel

    context = RoundModel(path, n_gpu_layers=99).context(n_rs_seq=N_RS_SEQ)
    found = {}
    for rows in ROWS:
        for _ in range(WARM_UP):
            before = stand_in.stand_in_count(b"nodes")
            context.decode({0: [1] * rows})
        found[rows] = stand_in.stand_in_count(b"nodes") - before
    pipe.send(found)


def nodes_of(path: Path, library: Path, lacks: bytes) -> dict[int, int]:
    ours, theirs = get_context("spawn").Pipe(False)
    process = get_context("spawn").Process(target=count_nodes, args=(path, library, lacks, theirs))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit("a decode on the stand-in failed")
    return dict(ours.recv())


def measure(target: Target, library: Path) -> dict[str, Any]:
    n_layer, every = target.recurrent + target.attention, (target.recurrent + target.attention) // target.attention
    shape = Shape(n_layer=n_layer, attention_every=every, n_embd=32, n_ff=32, k_heads=2, v_heads=2)
    with tempfile.TemporaryDirectory() as folder:
        path = write_recurrent(Path(folder) / "model.gguf", "qwen35", shape)
        fused, ordinary = nodes_of(path, library, b""), nodes_of(path, library, OURS)
    extra_mib = EXTRA_PASSES * target.state_mib
    read_mib = target.billions * 1e9 * BITS / 8 / MIB + 2 * target.state_mib
    return {
        "operations": {rows: {"ours": fused[rows], "ordinary": ordinary[rows]} for rows in ROWS},
        "extra_mib": extra_mib,
        "read_mib": read_mib,
        "extra_bytes": extra_mib / read_mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, help="libeagle-stand-in; default: the newest in build/")
    parser.add_argument("--json", type=Path, help="also write the result there")
    args = parser.parse_args()
    built = sorted(ROOT.glob("build/*/bin/libeagle-stand-in.*"), key=lambda path: path.stat().st_mtime)
    library = args.lib or (built[-1] if built else sys.exit("build the native tests first: make install"))
    result = {name: measure(target, library) for name, target in TARGETS.items()}
    for name, row in result.items():
        counts = [
            f"{rows} rows: {n['ours']} operations, {n['ordinary']} without ours (+{n['ordinary'] / n['ours'] - 1:.0%})"
            for rows, n in row["operations"].items()
        ]
        print(f"{name}: {'; '.join(counts)}; {row['extra_mib']:.0f} of {row['read_mib']:.0f} MiB more", end=" ")
        print(f"(+{row['extra_bytes']:.0%})")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
