"""What to expect of a target spread over machines by RPC, on paper: bytes and time of a round, speed by acceptance.

    python bench/studies/cluster/on_paper.py [--bandwidth 256] [--memory 128] [--network 1.25] [--rtt 0.2]

Nothing is measured here but GRAPH_BYTES. Decoding is taken to be bound by reading weights, each machine computes while
the others wait, and everything that crosses goes through the client, as in ggml's RPC.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

GRAPH_BYTES = (
    7700  # to the server, per recurrent layer and round: the graph that replays its state (tests/e2e/test_rpc.py)
)
N_AUX, ROW = 3, 4  # features of an EAGLE-3 draft; bytes of a value
DRAFT_VOCAB = 32_000
MACHINES = (2, 4, 8, 16)
ACCEPTANCES = (0.5, 0.7, 0.85)
LENGTHS = range(1, 9)


@dataclass(frozen=True)
class Shape:
    """GB in Q4_K_M: weights, of all; active, of one token's; experts, what of that its n_used of n_experts are."""

    name: str
    n_layer: int
    n_recurrent: int
    width: int
    weights: float
    active: float
    experts: float = 0.0
    n_used: int = 0
    n_experts: int = 1

    def read(self, rows: int) -> float:
        """GB for a batch: rows choose their experts independently, which is the worst case."""
        if not self.n_used:
            return self.active
        met = self.n_experts * (1 - (1 - self.n_used / self.n_experts) ** rows)
        return self.active - self.experts + self.experts * met / self.n_used

    @property
    def draft(self) -> float:
        """GB of a drafted token: one layer with an FFN of three widths, and the trimmed head, in Q4_K_M."""
        return (17 * self.width**2 + DRAFT_VOCAB * self.width) * 0.6 / 1e9


SHAPES = (
    Shape("27B", 64, 48, 5120, 16.5, 16.5),
    Shape("35B-A3B", 40, 30, 2048, 21.0, 2.0, 1.4, 8, 256),
    Shape("397B-A17B", 60, 45, 4096, 240.0, 10.5, 7.0, 10, 512),
)


@dataclass(frozen=True)
class Machines:
    """bandwidth: GB/s of memory; memory: GB; network: GB/s; rtt: ms."""

    n: int
    bandwidth: float
    memory: float
    network: float
    rtt: float

    def crossing(self, shape: Shape, rows: int, drafts: bool) -> float:
        """Bytes of a decode: hidden states from each machine to the next, twice as they pass the client; features."""
        row = shape.width * ROW * rows
        features = N_AUX * row * 2 if drafts else 0
        return 2 * (self.n - 1) * row + features + (GRAPH_BYTES * shape.n_recurrent if drafts else 0)

    def decode_ms(self, shape: Shape, rows: int, drafts: bool) -> float:
        wire = self.crossing(shape, rows, drafts) / self.network / 1e6
        return shape.read(rows) / self.bandwidth * 1e3 + self.n * self.rtt + wire

    def draft_ms(self, shape: Shape, n_draft: int) -> float:
        """One message there, one back, whatever the length."""
        return n_draft * shape.draft / self.bandwidth * 1e3 + self.rtt


def emitted(accept: float, n_draft: int) -> float:
    return (1 - accept ** (n_draft + 1)) / (1 - accept)


def best(shape: Shape, machines: Machines, accept: float) -> tuple[float, int]:
    """Speed over plain decoding, and the draft length that gives it."""
    plain = machines.decode_ms(shape, 1, drafts=False)

    def gain(n: int) -> float:
        return (
            emitted(accept, n) * plain / (machines.decode_ms(shape, n + 1, drafts=True) + machines.draft_ms(shape, n))
        )

    return max((gain(n), n) for n in LENGTHS)


def row(shape: Shape, machines: Machines) -> str:
    if shape.weights * 1.1 > machines.memory * machines.n:
        return f"| {shape.name} | {machines.n} | needs {shape.weights * 1.1:.0f} GB | | | | | |"
    plain = machines.decode_ms(shape, 1, drafts=False)
    gains = ["{:.2f} ({})".format(*best(shape, machines, accept)) for accept in ACCEPTANCES]
    sizes = [f"{machines.crossing(shape, n, d) / 1e3:.0f}" for n, d in ((1, False), (5, True))]
    cells = (shape.name, machines.n, *sizes, f"{1e3 / plain:.1f}", *gains)
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bandwidth", type=float, default=256, help="of a machine's memory, GB/s")
    parser.add_argument("--memory", type=float, default=128, help="of a machine for weights, GB")
    parser.add_argument("--network", type=float, default=1.25, help="GB/s: 1.25 is 10 Gbit/s")
    parser.add_argument("--rtt", type=float, default=0.2, help="ms there and back")
    given = parser.parse_args()
    accepts = " | ".join(f"x plain at {a}" for a in ACCEPTANCES)
    print(f"| target | machines | KB a token | KB a round of 5 | plain tokens/s | {accepts} |")
    print("|---|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        for n in MACHINES:
            print(row(shape, Machines(n, given.bandwidth, given.memory, given.network, given.rtt)))


if __name__ == "__main__":
    main()
