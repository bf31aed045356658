"""Speed of P-EAGLE drafts next to an EAGLE-3 draft of the same shape, at the same acceptance, by memory bandwidth.

    python bench/studies/parallel_drafts.py [--shape 0.8b] [--layers 1 4] [--type q4_k_m] [--limits 9 12.5]
        [--accept 0.6 0.7 0.8] [--lengths 1 2 3 4 5 6 8] [--rounds 12] [--json]

The target and the EAGLE-3 draft are the constructed pair of this shape. The P-EAGLE drafts have the EAGLE-3 draft's
tensors, further layers with random weights, and random states for mask rows. What is drafted does not matter: each
round verifies the text itself, and keeps a number of tokens drawn for the acceptance rate, the same for every drafter.

Drafters take turns, round by round, on one thread. A part of a round (draft, verification, plain decode) takes the
longer of two times: its bytes over the bandwidth, and its CPU time over --cores. CPU times hardly depend on what else
the machine does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import numpy as np
from assistant_pair import random_blocks
from gguf import GGMLQuantizationType as Type
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drafting.resolve import session_options
from llama_eagle.files import cache_dir
from llama_eagle.native.processor.detect import cpu_name
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions
from llama_eagle.sessions.session import EagleSession
from llama_eagle.synthetic.ggufs import PairFolder

N_DEPTHS, N_CTX, FIRST = 16, 1024, 300


def parallel_draft(source: Path, n_layer: int) -> Path:
    """Return a P-EAGLE draft of n_layer layers made from an EAGLE-3 draft, written now if necessary."""
    path = source.with_name(f"peagle-{n_layer}-{source.name}")
    if path.is_file():
        return path
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path.with_suffix(".part"), "eagle3")
    changed = {"eagle3.block_count": n_layer, "eagle3.block_size": N_DEPTHS, "tokenizer.ggml.mask_token_id": FIRST}
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")) and name not in changed:
            part = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], part)
    for name, value in changed.items():
        writer.add_uint32(name, value)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    width = int(tensors["fc.weight"].shape[0])
    writer.add_tensor("extended", np.ones(1, np.int32))
    writer.add_tensor("fc.mask", np.random.default_rng(0).standard_normal(width).astype(np.float32))
    for layer in range(1, n_layer):
        for name, values, kind in _further_layer(tensors):
            writer.add_tensor(f"blk.{layer}.{name}", values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".part").rename(path)
    return path


def _further_layer(tensors: dict[str, Any]) -> Iterator[tuple[str, Any, Type]]:
    """Yield name, data and type of a layer after the first, whose attention is half as wide."""
    for name, tensor in tensors.items():
        if not name.startswith("blk.0.") or "attn_norm_2" in name:
            continue
        short, kind = name.removeprefix("blk.0."), tensor.tensor_type
        if kind == Type.F32:
            yield short, tensor.data, kind
            continue
        columns, rows = map(int, tensor.shape)
        halved = short.startswith(("attn_q", "attn_k", "attn_v"))
        yield short, random_blocks(rows, columns // 2 if halved else columns, kind), kind


class Side:
    """A drafter with its session, and the CPU times of its rounds by draft length: draft, verification."""

    def __init__(self, stack: ExitStack, target: Model, draft: Path | None, longest: int) -> None:
        options = ContextOptions(n_ctx=N_CTX, n_threads=1, n_rs_seq=longest + 1)
        context = stack.enter_context(Context(target, options))
        model = stack.enter_context(Model(draft)) if draft else None
        settings = session_options(model.header if model else None, DraftingOptions(draft, longest, longest))
        self.session = stack.enter_context(EagleSession(context, model, settings))
        self.cpu: dict[int, list[tuple[float, float]]] = {}

    def round(self, length: int, n_kept: int) -> None:
        session, ids = self.session, [FIRST + i for i in range(length + 1)]
        if session.n_past == 0 or session.n_past + length + 1 > N_CTX - 1:
            session.reset()
            session.eval([FIRST + i for i in range(64)])
        drafting = _cpu(lambda: session.draft(ids[0], length)) if length else 0.0
        verifying = _cpu(lambda: session.verify(ids))
        session.commit(n_kept)
        self.cpu.setdefault(length, []).append((drafting, verifying))

    def seconds(self, length: int, limit: float, cores: int) -> float:
        """Return the time of a round at this bandwidth in bytes/s."""
        session = self.session
        drafting, verifying = (median(times) / cores for times in zip(*self.cpu[length][1:], strict=True))
        passes = min(length, 1) if session.drafts_blocks else length
        read = session.draft_bytes_read * passes if length else 0.0
        return max(drafting, read / limit) + max(verifying, session.bytes_read(length + 1) / limit)


def _cpu(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(args: argparse.Namespace) -> dict[str, Side]:
    pair = PairFolder(args.pairs / args.shape, args.shape, fresh=False).files(0.7, args.type, args.draft_type)
    drafts = {"none": None, "EAGLE-3": pair.draft}
    drafts |= {f"P-EAGLE, {n} layers": parallel_draft(pair.draft, n) for n in args.layers}
    kept = np.random.default_rng(0).geometric(0.3, 4096) - 1  # accepted tokens without a limit, at a rate of 0.7
    stack = args.stack
    target = stack.enter_context(Model(pair.target))
    sides = {name: Side(stack, target, draft, max(args.lengths)) for name, draft in drafts.items()}
    for i in range(args.rounds + 1):  # the first of each length warms up
        for length in args.lengths:
            for name, side in sides.items():
                n = length if name != "none" else 0
                if n or length == args.lengths[0]:
                    side.round(n, 1 + min(n, int(kept[i])))
    return sides


def table(sides: dict[str, Side], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for limit in args.limits:
        plain = sides["none"].seconds(0, limit * 1e9, args.cores)
        for accept in args.accept:
            row: dict[str, Any] = {"limit": limit, "accept": accept}
            for name, side in sides.items():
                if name == "none":
                    continue
                speeds = {
                    n: plain * sum(accept**i for i in range(n + 1)) / side.seconds(n, limit * 1e9, args.cores)
                    for n in args.lengths
                }
                best = max(speeds, key=speeds.__getitem__)
                row[name] = {"best": best, "speed": round(speeds[best], 3), "speeds": speeds}
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.8b")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4], help="of the P-EAGLE drafts")
    parser.add_argument("--type", default="q8_0", help="of the target")
    parser.add_argument("--draft-type", default="q4_k_m")
    parser.add_argument("--limits", type=float, nargs="+", default=[9.0, 12.5], help="GB/s")
    parser.add_argument("--accept", type=float, nargs="+", default=[0.6, 0.7, 0.8])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--pairs", type=Path, default=cache_dir() / "synthetic", help="folder of synthetic models")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with ExitStack() as args.stack:
        sides = measure(args)
        rows = list(table(sides, args))
        whole = sides["none"].session.bytes_read(1)
        reads = {name: side.session.draft_bytes_read / whole for name, side in sides.items()}
    if args.json:
        print(json.dumps({"cpu": cpu_name(), "share of a decode's bytes": reads, "rows": rows}, indent=1))
        return
    names = [name for name in sides if name != "none"]
    print(f"{cpu_name()}; bytes of a pass: " + ", ".join(f"{name} {reads[name]:.3f}" for name in names))
    print("| GB/s | acceptance | " + " | ".join(names) + " |\n|---|---|" + "---|" * len(names))
    for row in rows:
        cells = [f"{row[name]['speed']:.2f} ({row[name]['best']})" for name in names]
        print(f"| {row['limit']:g} | {row['accept']:g} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
