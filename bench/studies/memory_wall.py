"""Both engines with less memory bandwidth per core than this machine has, as desktops and laptops have it.

    python bench/studies/memory_wall.py FOLDER [--limits 12.5 25 none 6] [--type q8_0 q4_k_m] [--drafter eagle3 mtp]
        [--shape 0.8b [--small 0.8b] | --model TARGET.gguf [--draft DRAFT.gguf]] [--lengths 2 4 8] [--isa avx2|native]
        [--seconds 230] [--json]

Decoding reads all weights once per pass, so a pass takes the longer of two times: bytes over bandwidth, operations over
cores. Two cores of a server have the bandwidth of a whole desktop. Two cores with 12.5 GB/s have the ratio of eight
cores with 50 GB/s, two with 20 that of four with 40: paced.py builds both engines so that each node of a graph waits
for its bytes. The ratios of speeds are then those of the larger computer if loads overlap all arithmetic, barriers of
more threads cost nothing, and no cache keeps weights between passes.

Drafters of a shape: eagle3, mtp, dflash (--accept: of the first place of a block), small (another shape, --small).
assistant needs --shape e2b, Gemma 4's E2B with random weights. There, the times of rounds are measured, and the speeds
are computed from them, for an acceptance rate of --accept at each position.

A cell is one bandwidth, model, drafter and side. FOLDER keeps the builds, synthetic models and each measurement;
a call measures what is missing and prints what is there. With --again it measures everything and keeps the faster
results. --seconds N starts no measurement that would end later, so that short calls, each on an idle machine, add up.

The machine must read faster than the limit, also next to its other programs: a call says where it does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assistant_pair import assistant_pair
from llama_eagle.bench.costs import step_costs
from llama_eagle.bench.measurement import Measurement
from llama_eagle.bench.ours import Job, Ours, loaded
from llama_eagle.bench.peer import LOOKUPS, Peer, PeerFailure, PeerJob
from llama_eagle.bench.prompts import read_prompts
from llama_eagle.diagnosis import memory_bandwidth
from llama_eagle.drafting.options import DRAFT_VOCAB, LOOKUP, NONE
from llama_eagle.files import cache_dir
from llama_eagle.sessions.options import MTP
from llama_eagle.synthetic.blocks import BLOCK_SIZE
from llama_eagle.synthetic.cycle import word
from llama_eagle.synthetic.ggufs import PairFolder
from paced import ISA, build_ours, build_upstream
from small_pair import small_pair

EAGLE3, DFLASH, SMALL, ASSISTANT = "eagle3", "dflash", "small", "assistant"  # draft models
E2B = "e2b"  # shape of the assistant's target
PEER_NAMES = {ASSISTANT: "gemma4-assistant"}  # architectures, where they have other names
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
PEER_LENGTHS = (1, 2, 3, 4, 6, 8)
N_PLAIN = 64  # tokens: the speed of plain decoding does not depend on the text
PLAIN, STEPS, AUTO = "plain", "steps", "auto"
WARM_UP = 16


@dataclasses.dataclass(frozen=True)
class Cell:
    """Measurements that one process makes. limit: GB/s, 0: none. draft: file, or a small model's shape."""

    limit: float
    model: str  # shape, or path of a GGUF
    outtype: str  # of a shape; "": a file
    drafter: str
    draft: str = ""
    draft_type: str = ""
    accept: float = 0.7
    rows: int = DRAFT_VOCAB  # of an MTP head
    n: int = 256
    threads: int = 2
    is_upstream: bool = False

    def keys(self, args: argparse.Namespace) -> list[str]:
        """Return the names of the measurements. `auto` is not the first, in which products choose their variants."""
        if self.drafter == NONE:
            return [PLAIN]
        if self.drafter == LOOKUP:
            return [*LOOKUPS] if self.is_upstream else [AUTO]
        if self.is_upstream:
            return [*map(str, args.peer_lengths)]
        automatic = [AUTO] if self.drafter != ASSISTANT else []  # which would stop to draft
        return [*map(str, args.lengths), *automatic, *([STEPS] if args.steps else [])]

    @property
    def title(self) -> str:
        return self.model if self.outtype else Path(self.model).stem

    @property
    def name(self) -> str:
        side = "llama.cpp" if self.is_upstream else "ours"
        small = self.draft if self.outtype else ""
        parts = (self.limit or "none", self.title, self.outtype, self.drafter, small, self.draft_type, side)
        return "-".join(str(part) for part in parts if part != "")


class Store:
    """Measurements of cells in a folder: one JSON file for each cell, by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, cell: Cell) -> dict[str, Any]:
        path = self.folder / f"{cell.name}.json"
        found = json.loads(path.read_text()) if path.is_file() else {}
        return found.get("measured", {}) if found.get("cell") == dataclasses.asdict(cell) else {}

    def add(self, cell: Cell, key: str, value: dict[str, Any]) -> None:
        """Keep the faster one of two measurements: other programs only make them slower."""
        found = self.read(cell)
        if key in found and (found[key].get("tps") or 0) > (value.get("tps") or 0):
            return
        measured = {**found, key: value}
        content = {"cell": dataclasses.asdict(cell), "measured": measured}
        (self.folder / f"{cell.name}.json").write_text(json.dumps(content, indent=1))


# --- one cell, in a process of its own ---------------------------------------------------------------------------


def job_of(cell: Cell, folder: Path) -> Job:
    """Return the job; synthetic files are made if they are missing."""
    drafting: dict[str, Any] = {"n_draft_max": max(LENGTHS), "looks_up": cell.drafter == LOOKUP}
    if not cell.outtype:
        text = next(p for p in read_prompts([LOOKUP]) if "edit" in p.category).turns[0]
        draft = Path(cell.draft) if cell.draft else None
        return Job(Path(cell.model), draft, text, cell.n, cell.threads, is_chat=True, **drafting)
    target, draft = files_of(cell, folder)
    if cell.drafter == MTP:
        drafting["draft_vocab"] = cell.rows
    n_words = 2 * BLOCK_SIZE if cell.drafter == DFLASH else 3  # its draft copies a word that is a block away
    text = "".join(f" {word(rank)}" for rank in range(n_words))
    return Job(target, draft, text, cell.n, cell.threads, **drafting)


def files_of(cell: Cell, folder: Path) -> tuple[Path, Path | None]:
    """Return target and draft of a shape. Plain decoding takes the target that another drafter has made."""
    if cell.model == E2B:
        return assistant_pair(folder / E2B, cell.outtype)
    if cell.draft:
        return small_pair(folder / SMALL, cell.model, cell.draft, cell.accept, cell.outtype, cell.draft_type)
    pairs = PairFolder(folder / cell.model, cell.model, fresh=False)
    if cell.drafter == MTP:
        return pairs.mtp(cell.accept, cell.outtype).target, None
    make = pairs.blocks if cell.drafter == DFLASH else pairs.files
    files = make(cell.accept, cell.outtype, cell.draft_type or "q8_0")
    return files.target, files.draft


def measure_ours(cell: Cell, job: Job, keys: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    pair = dataclasses.replace(job, looks_up=True) if cell.drafter == NONE else job
    with loaded(pair) as ours:
        _measure(ours, WARM_UP, lambda own: own.speculate(4) if cell.drafter != NONE else own.plain())
        for key in keys:
            if key == STEPS:
                yield key, next(iter(step_costs(ours, (64,), 2))).as_dict()
            elif key == PLAIN:
                yield key, dataclasses.asdict(_measure(ours, N_PLAIN, Ours.plain))
            else:
                length = key if key == AUTO else int(key)
                yield key, result(cell, key, ours.speculate(length))


def result(cell: Cell, key: str, measured: Measurement) -> dict[str, Any]:
    """Return the measurement; an assistant's speed is that of its round times at the acceptance rate of the cell."""
    found = dataclasses.asdict(measured)
    if cell.drafter == ASSISTANT:
        found["tps"] = sum(cell.accept**i for i in range(int(key) + 1)) / measured.round_ms * 1e3
    return found


def _measure(ours: Ours, n: int, run: Callable[[Ours], Measurement]) -> Measurement:
    """Run with another number of tokens."""
    job = ours.job
    try:
        ours.job = dataclasses.replace(job, n=n)
        return run(ours)
    finally:
        ours.job = job


def measure_upstream(cell: Cell, job: Job, keys: list[str], peer: Peer) -> Iterator[tuple[str, dict[str, Any]]]:
    with loaded(dataclasses.replace(job, looks_up=True)) as ours:
        text = ours.text
    work = PeerJob(job.target, cell.n, cell.threads)
    for key in keys:
        try:
            if key == PLAIN:
                yield key, {"tps": peer.decode(dataclasses.replace(work, n=N_PLAIN))}
            elif cell.drafter == LOOKUP:
                yield key, dataclasses.asdict(peer.look_up(work, text, key))
            else:
                drafted = peer.speculate(work, job.draft, text, int(key), PEER_NAMES.get(cell.drafter, cell.drafter))
                yield key, result(cell, key, drafted)
        except PeerFailure as failure:
            yield key, {"tps": None, "failure": str(failure)}


def work(given: dict[str, Any]) -> None:
    """Measure a cell, and write each result as a line of JSON."""
    cell = Cell(**given["cell"])
    job = job_of(cell, Path(given["pairs"]))
    peer = Peer(Path(given["peer"]), "")
    run = (
        measure_upstream(cell, job, given["keys"], peer) if cell.is_upstream else measure_ours(cell, job, given["keys"])
    )
    for key, value in run:
        print(json.dumps([key, value]), flush=True)


# --- all cells -----------------------------------------------------------------------------------------------------


def measure(cell: Cell, args: argparse.Namespace, store: Store, end: float) -> None:
    """Measure what the store lacks of a cell, or all of it, as long as there is time for one more like the last."""
    missing = [key for key in cell.keys(args) if args.again or key not in store.read(cell)]
    if not missing or time.monotonic() > end:
        return
    lib = build_ours(args.folder, args.isa)
    peer = build_upstream(args.folder, args.isa).folder if cell.is_upstream else ""
    given = {"cell": dataclasses.asdict(cell), "keys": missing, "pairs": str(args.pairs), "peer": str(peer)}
    environment = {**os.environ, "LLAMA_EAGLE_LIB_PATH": str(lib), "PACE_GBS": str(cell.limit)}
    command = [sys.executable, __file__, "--cell", json.dumps(given)]
    last = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            key, value = json.loads(line)
            store.add(cell, key, value)
            now = time.monotonic()
            print(f"{cell.name} {key}: {value.get('tps') or ''}", file=sys.stderr, flush=True)
            if now + (now - last) > end:
                process.kill()
                return
            last = now
    if process.returncode:
        raise SystemExit(f"measuring {cell.name} failed with exit code {process.returncode}")


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """Return the cells of the command line: per bandwidth and type, plain decoding and each drafter, of both sides."""
    cells = []
    for limit in args.limits:
        for outtype in [""] if args.model else args.type:
            model = str(args.model.resolve()) if args.model else args.shape
            cell = Cell(limit, model, outtype, NONE, n=args.n, threads=args.threads)
            for drafter in (NONE, *args.drafter):
                draft = str(args.draft.resolve()) if args.draft and drafter not in (NONE, MTP, LOOKUP) else ""
                if SMALL in args.drafter and outtype and drafter in (NONE, SMALL):
                    draft = args.small  # of plain decoding, too, because its words have other ids
                draft_type = args.draft_type if outtype and (draft or drafter in (EAGLE3, DFLASH)) else ""
                accept = args.accept if draft or drafter != NONE else cell.accept
                chosen = {"drafter": drafter, "draft": draft, "draft_type": draft_type, "accept": accept}
                mine = dataclasses.replace(cell, **chosen, rows=args.rows)
                cells += [mine, dataclasses.replace(mine, is_upstream=True)]
    return [cell for cell in cells if args.side in ("both", "llama.cpp" if cell.is_upstream else "ours")]


def summary(cells: list[Cell], store: Store) -> list[dict[str, Any]]:
    """Return a row for each drafter at each bandwidth, with both sides; speeds in tokens/s."""
    plain: dict[tuple[Any, ...], float] = {}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in cells:
        at = (cell.limit, cell.model, cell.outtype)
        speeds = {key: value["tps"] for key, value in store.read(cell).items() if value.get("tps")}
        if cell.drafter == NONE:
            plain[(*at, cell.is_upstream)] = speeds.get(PLAIN, 0.0)
            continue
        row = rows.setdefault((*at, cell.drafter, cell.draft_type), {
            "limit": cell.limit, "model": cell.title, "type": cell.outtype, "drafter": cell.drafter,
            "draft_type": cell.draft_type, "plain": plain.get((*at, False)), "upstream_plain": plain.get((*at, True)),
        })  # fmt: skip
        fixed = {key: tps for key, tps in speeds.items() if key != AUTO}
        side = "upstream" if cell.is_upstream else "ours"
        row[side] = {"auto": speeds.get(AUTO), "best": max(fixed, key=fixed.__getitem__, default=None), "tps": speeds}
        row[f"{side}_steps"] = store.read(cell).get(STEPS)
    return list(rows.values())


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield Markdown: speeds in tokens/s, lengths in brackets."""
    gains = "auto over plain, over llama.cpp's best, over best fixed"
    yield f"| GB/s | model | drafter | plain: llama.cpp, ours | auto | best fixed | llama.cpp's best | {gains} |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        auto, own = row.get("ours", {}).get("auto"), _best(row.get("ours"))
        theirs = max([_best(row.get("upstream")), (row["upstream_plain"] or 0.0, PLAIN)])
        ratios = [auto / base if auto and base else None for base in (row["plain"], theirs[0], own[0])]
        yield "| " + " | ".join([
            str(row["limit"] or "none"), f"{row['model']} {row['type']}", f"{row['drafter']} {row['draft_type']}",
            f"{_number(row['upstream_plain'])}, {_number(row['plain'])}", _number(auto),
            f"{_number(own[0])} ({own[1]})", f"{_number(theirs[0])} ({theirs[1]})",
            ", ".join("" if gain is None else f"{gain:.2f}" for gain in ratios),
        ]) + " |"  # fmt: skip


def _best(side: dict[str, Any] | None) -> tuple[float, str]:
    best = side and side["best"]
    return (side["tps"][best], best) if side and best else (0.0, "")


def _number(value: float | None) -> str:
    return f"{value:.1f}" if value else ""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    limit = lambda text: 0.0 if text == NONE else float(text)  # noqa: E731
    parser.add_argument("folder", type=Path, help="folder of the builds, synthetic models and results")
    parser.add_argument("--limits", type=limit, nargs="+", default=[12.5, 25.0, 0.0, 6.0], help="GB/s, or none")
    parser.add_argument("--isa", choices=ISA, default="avx2")
    parser.add_argument("--shape", default="0.8b", help="synthetic shape: 0.8b, 2b, 4b, 9b, e2b (default: 0.8b)")
    parser.add_argument("--small", default="0.8b", help="shape of the small model (default: 0.8b)")
    parser.add_argument("--type", nargs="+", default=["q8_0", "q4_k_m"], help="types of the synthetic target")
    parser.add_argument("--draft-type", default="q4_k_m", help="type of the synthetic draft (default: q4_k_m)")
    parser.add_argument("--accept", type=float, default=0.7, help="acceptance rate of synthetic drafts (default: 0.7)")
    parser.add_argument("--rows", type=int, default=DRAFT_VOCAB, help="rows of the MTP head, 0: all")
    parser.add_argument("--model", type=Path, help="a real target instead of --shape")
    parser.add_argument("--draft", type=Path, help="draft of --model, of the kind that --drafter names")
    parser.add_argument(
        "--drafter", nargs="*", choices=(EAGLE3, DFLASH, SMALL, MTP, ASSISTANT, LOOKUP), default=[EAGLE3, MTP]
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="our fixed draft lengths")
    parser.add_argument("--peer-lengths", type=int, nargs="+", default=PEER_LENGTHS, help="llama.cpp's draft lengths")
    parser.add_argument("--steps", action="store_true", help="also measure the cost of rows and of the draft's steps")
    parser.add_argument("--side", choices=("both", "ours", "llama.cpp"), default="both")
    parser.add_argument("-n", type=int, default=256, help="tokens per generation with drafts (default: 256)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time of this call (default: no limit)")
    parser.add_argument("--pairs", type=Path, default=cache_dir() / "synthetic", help="folder of synthetic models")
    parser.add_argument("--again", action="store_true", help="measure everything again; the faster result stays")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all measurements")
    return parser.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["--cell"]:
        return work(json.loads(sys.argv[2]))
    args = arguments()
    end = time.monotonic() + args.seconds
    store, cells = Store(args.folder / "cells"), cells_of(args)
    if not args.report:
        rate = memory_bandwidth()["read_rate"] / 1e9
        if rate < max(args.limits):
            print(f"warning: this machine reads {rate:.1f} GB/s now, so higher limits change nothing", file=sys.stderr)
        for cell in cells:
            measure(cell, args, store, end)
    rows = summary(cells, store)
    if args.json:
        measured = [{**dataclasses.asdict(cell), "measured": store.read(cell)} for cell in cells]
        print(json.dumps({"isa": args.isa, "rows": rows, "cells": measured}, indent=1))
    else:
        print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
