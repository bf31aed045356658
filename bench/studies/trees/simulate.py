"""Simulation of rounds as chains and as trees, on the trace of record.py.

    python bench/studies/trees/simulate.py TRACE.npz --costs COSTS.json

COSTS.json holds a list of computers: {"name": "12.5 GB/s", "rows": [1, 1.02, ...], "step": 0.04}. rows: time of a
verification of 1, 2, ... rows over a plain one; step: time of one step of the draft over a plain decode.

A tree has the nodes with the largest products of calibrated probabilities. Each level of the draft evaluates its best
`width` candidates as rows of one pass. Children of wrong nodes have the probabilities of the right node's children. A
calibrated probability is the share of right tokens among those of the same depth, rank and drafted probability in the
other half of the answers. Output: tokens per round, and speed over plain decoding, of the best chain and the best tree.
"""

from __future__ import annotations

import argparse
import heapq
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIZES = (4, 6, 8, 10, 12, 15, 18, 24)  # nodes of trees
WIDE = 12  # larger trees evaluate 8 candidates in each level, others 4
LOOKUPS = (4, 8, 16)  # longest look-up
N_BINS = 12  # of drafted probabilities, by their logarithm
PER_BIN = 16.0  # weight of the drafted probability itself in a bin


@dataclass(frozen=True)
class Trace:
    rank: NDArray[np.uint8]  # [P, K]; the number of ranks: none of them
    top: NDArray[np.float32]  # [P, K, R]
    lookup: NDArray[np.uint8]  # [P, 2]: proposed, right
    category: NDArray[np.str_]
    answer: NDArray[np.int64]

    @staticmethod
    def read(path: Path) -> Trace:
        with np.load(path) as stored:
            return Trace(*(stored[name] for name in ("rank", "top", "lookup", "category", "answer")))

    def of(self, chosen: NDArray[np.bool_]) -> Trace:
        return Trace(
            self.rank[chosen], self.top[chosen], self.lookup[chosen], self.category[chosen], self.answer[chosen]
        )


@dataclass(frozen=True)
class Costs:
    """Times in plain decodes. A pass of the draft with several rows costs as much more as one of the target."""

    name: str
    rows: list[float]
    step: float

    def verify(self, n_rows: int) -> float:
        return float(np.interp(n_rows, range(1, len(self.rows) + 1), self.rows))

    def round(self, n_rows: int, depth: int, width: int = 1) -> float:
        wide = max(depth - 1, 0) * self.verify(width) + min(depth, 1)
        return self.verify(n_rows) + self.step * wide


def calibrated(trace: Trace) -> NDArray[np.float32]:
    """Return the probabilities [P, K, R], each from the answers of the other parity."""
    out = np.empty_like(trace.top)
    bins = np.clip(-np.log2(np.maximum(trace.top, 1e-9)), 0, N_BINS - 1).astype(int)
    for half in (0, 1):
        here, other = trace.answer % 2 == half, trace.answer % 2 != half
        for k in range(trace.rank.shape[1]):
            reached = other & (trace.rank[:, :k] < trace.top.shape[2]).all(axis=1)
            for r in range(trace.top.shape[2]):
                right = trace.rank[reached, k] == r
                found = bins[reached, k, r]
                n = np.bincount(found, minlength=N_BINS)
                hits = np.bincount(found, right, N_BINS)
                drafted = np.bincount(found, trace.top[reached, k, r], N_BINS)
                share = (hits + PER_BIN * drafted / np.maximum(n, 1)) / (n + PER_BIN)
                out[here, k, r] = share[bins[here, k, r]] if n.sum() else trace.top[here, k, r]
    return out


def chain_lengths(trace: Trace) -> NDArray[np.int64]:
    """Return how many first choices in a row are right, [P]."""
    found: NDArray[np.int64] = np.cumprod(trace.rank == 0, axis=1).sum(axis=1)
    return found


def tree_order(trace: Trace, probabilities: NDArray[np.float32], n_max: int) -> NDArray[np.int64]:
    """Return, for each place and depth, the number of nodes that a tree needs to hold the right path so far, [P, K].

    Nodes enter in the order of the products of their probabilities; n_max + 1: more than n_max.
    """
    n_places, depth, n_ranks = probabilities.shape
    out = np.full((n_places, depth), n_max + 1)
    order = np.argsort(-probabilities, axis=2, kind="stable")  # calibration may change the order of ranks
    value = np.take_along_axis(probabilities, order, axis=2)
    is_right = order == trace.rank[..., None]
    right = np.where(is_right.any(axis=2), is_right.argmax(axis=2), n_ranks)
    for p in range(n_places):
        # product, depth, place among siblings, product of the parent, on the right path
        heap = [(-float(value[p, 0, 0]), 0, 0, 1.0, True)]
        for n in range(1, n_max + 1):
            product, k, s, parent, on_path = heapq.heappop(heap)
            on_right = on_path and bool(right[p, k] == s)
            if on_right:
                out[p, k] = n
            if s + 1 < n_ranks:
                heapq.heappush(heap, (-parent * float(value[p, k, s + 1]), k, s + 1, parent, on_path))
            if k + 1 < depth:
                heapq.heappush(heap, (product * float(value[p, k + 1, 0]), k + 1, 0, -product, on_right))
    return out


@dataclass(frozen=True)
class Shape:
    """One way to draft. accepted: [P], right tokens of a round at each place; cost: [P], its time in plain decodes."""

    name: str
    accepted: NDArray[np.int64]
    cost: NDArray[np.float64]

    def walk(self, answer: NDArray[np.int64]) -> tuple[float, float]:
        """Return tokens per round, and speed over plain decoding, of rounds one behind the other. Ranks: [n_tokens]."""
        place = rounds = 0
        time = 0.0
        ends = np.append(np.flatnonzero(np.diff(answer)) + 1, len(answer))  # a round ends with its answer
        while place < len(answer):
            time += self.cost[place]
            rounds += 1
            place = min(place + int(self.accepted[place]) + 1, int(ends[np.searchsorted(ends, place, "right")]))
        return len(answer) / rounds, len(answer) / time


def shapes(trace: Trace, order: NDArray[np.int64], costs: Costs) -> dict[str, list[Shape]]:
    """Return every shape of each kind of round."""
    n, depth_max = trace.rank.shape
    proposed, right = trace.lookup.T.astype(int)
    chain = chain_lengths(trace)
    chains, trees = [], []
    sized: list[tuple[Shape, int, int, int]] = []  # with nodes, depth and width
    for depth in range(1, depth_max + 1):
        one = Shape(f"{depth}", np.minimum(chain, depth), np.full(n, costs.round(depth + 1, depth)))
        chains.append(one)
        sized.append((one, depth, depth, 1))
    for size in SIZES:
        width = 4 if size <= WIDE else 8
        in_tree = np.cumprod(order <= size, axis=1)
        for depth in range(2, depth_max + 1):
            cost = np.full(n, costs.round(size + 1, depth, width))
            one = Shape(f"{size} nodes, depth {depth}", in_tree[:, :depth].sum(axis=1), cost)
            trees.append(one)
            sized.append((one, size, depth, width))
    lookups, first, joined = [], [], []
    for longest in LOOKUPS:
        taken = np.minimum(proposed, longest)
        found = np.minimum(right, taken)
        alone = np.array([costs.verify(1 + m) for m in taken])
        lookups.append(Shape(f"{longest}", found, alone))
        for one, n_nodes, depth, width in sized:
            name = f"look-up {longest}, {one.name}"
            if width == 1:
                either = np.where(taken > 0, found, one.accepted), np.where(taken > 0, alone, one.cost)
                first.append(Shape(name, *either))
            cost = np.array([costs.round(1 + n_nodes + m, depth, width) for m in taken])
            joined.append(Shape(name, np.maximum(one.accepted, found), cost))
    return {"chain": chains, "tree": trees, "look-up": lookups, "look-up, else chain": first, "both": joined}


def compare(trace: Trace, order: NDArray[np.int64], costs: Costs) -> dict[str, object]:
    """Return the fastest shape of each kind."""
    found: dict[str, object] = {"places": len(trace.rank)}
    for kind, candidates in shapes(trace, order, costs).items():
        walked = [(one.name, *one.walk(trace.answer)) for one in candidates]
        name, emitted, speed = max(walked, key=lambda each: each[2])
        found[kind] = {"shape": name, "tokens_per_round": round(emitted, 3), "over_plain": round(speed, 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--costs", type=Path, required=True)
    args = parser.parse_args()
    trace = Trace.read(args.trace)
    order = tree_order(trace, calibrated(trace), max(SIZES))
    computers = [Costs(**each) for each in json.loads(args.costs.read_text())]
    kinds = ["all", *sorted(set(trace.category.tolist()))]
    found = {}
    for costs in computers:
        for kind in kinds:
            chosen = np.ones(len(trace.rank), bool) if kind == "all" else trace.category == kind
            found[f"{costs.name}, {kind}"] = compare(trace.of(chosen), order[chosen], costs)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
