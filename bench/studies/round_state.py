"""Replay against snapshots: time of a decode that is almost only recurrent state, and memory used for rollback.

    python bench/studies/round_state.py --threads 2 --json > out.json
    python bench/studies/round_state.py --n-gpu-layers -1 --rows 17      # on a GPU, rounds of 1 to 17 rows

The models have the recurrent layers and heads of a real one, and everything else is tiny (n_embd 32, at most one
attention layer): the recurrence, its convolution and the state traffic remain. Measurements alternate between the two
contexts: ratios are valid on a noisy machine, absolute times may not be. With one thread, times are CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llama_eagle.bench.round_context import REPLAY, SNAPSHOTS, RoundContext, RoundModel
from llama_eagle.synthetic.recurrent import Shape, write_recurrent

SMALL = Shape(n_embd=32, n_ff=32, quantized=True)


def gated_delta_net(n_layer: int, v_heads: int) -> tuple[str, Shape]:
    return "qwen35", replace(SMALL, n_layer=n_layer + 1, attention_every=n_layer + 1, k_heads=16, v_heads=v_heads)


def mamba2(n_layer: int, groups: int, heads: int, channels: int, state: int = 128) -> tuple[str, Shape]:
    shape = replace(SMALL, n_layer=n_layer, k_heads=groups, v_heads=heads, channels=channels, state=state)
    return "mamba2", shape


# Recurrent layers and heads of models with conv kernel 4; head size 128 in Gated DeltaNet.
MODELS = {
    "0.8B": gated_delta_net(18, 16),
    "4B, 9B": gated_delta_net(24, 32),
    "27B": gated_delta_net(48, 48),
    "35B-A3B": gated_delta_net(30, 32),
    "Granite 4.0-H-Micro": mamba2(36, 1, 64, 64),
    "Falcon-H1-7B": mamba2(44, 1, 24, 128, 256),
    "Nemotron-H-8B": mamba2(24, 8, 128, 64),
    "LFM2-1.2B": ("lfm2", replace(SMALL, n_layer=11, attention_every=11, n_embd=2048, n_head=64)),
}


def make_model(folder: Path, name: str, n_gpu_layers: int) -> RoundModel:
    arch, shape = MODELS[name]
    return RoundModel(write_recurrent(folder / "model.gguf", arch, shape), n_gpu_layers)


def one_round(context: RoundContext, rows: int, kept: int) -> None:
    """Decode `rows` tokens and keep `kept` of them."""
    if context.n_past[0] > 700:
        context.remove(0)
        context.decode({0: [1] * 16})
    start = context.n_past[0]
    context.decode({0: [2] * rows})
    if kept < rows:
        assert context.trim(0, start + kept)


@dataclass(frozen=True)
class Case:
    """A round of `rows` tokens that keeps `kept` of them, with a rollback depth of `n_rs_seq`."""

    n_rs_seq: int
    rows: int
    kept: int


def compare_speed(model: RoundModel, case: Case, threads: int, n: int, copies: bool) -> dict[str, Any]:
    """Time rounds by replay, by copies, and of decodes that cannot be undone."""
    modes = {"replay": REPLAY, "without_undo": REPLAY} | ({"snapshots": SNAPSHOTS} if copies else {})
    contexts = {
        name: model.context(mode=mode, n_rs_seq=case.n_rs_seq, n_threads=threads) for name, mode in modes.items()
    }
    contexts["without_undo"].commit_at_once(True)
    times: dict[str, list[float]] = {name: [] for name in contexts}
    for context in contexts.values():
        context.decode({0: [1] * 16})
    for _ in range(n):
        for name, context in contexts.items():
            one_round(context, case.rows, case.rows if name == "without_undo" else case.kept)
            times[name].append(1000 * (context.cpu_seconds if threads == 1 else context.seconds))
    ms = {f"{name}_ms": statistics.median(values[3:]) for name, values in times.items()}
    best = {name: min(values) for name, values in times.items()}
    ratios = {"of_best": best["replay"] / best["without_undo"]}
    if copies:
        ratios |= {"ratio": ms["snapshots_ms"] / ms["replay_ms"], "ratio_of_best": best["snapshots"] / best["replay"]}
    return {**asdict(case), **ms, **ratios}


def compare_memory(model: RoundModel, n_rs_seq: int) -> dict[str, float]:
    """Return MiB of the state, and of records and copies for a rollback depth."""
    state = model.context(n_rs_seq=0).recurrent_mib()
    replay, copies = model.context(n_rs_seq=n_rs_seq).recurrent_mib() - state, n_rs_seq * state
    return {"state_mib": state, "replay_mib": replay, "snapshots_mib": copies, "ratio": copies / replay}


def cases(rows: int) -> list[Case]:
    """Return rounds of 1 to `rows` rows, half of them kept (0: the rounds of docs/round-state.md)."""
    if rows == 0:
        return [Case(0, 1, 1), Case(4, 1, 1), Case(4, 5, 3), Case(8, 9, 4)]
    return [Case(rows - 1, n, (n + 1) // 2) for n in range(1, rows + 1)]


def measure(threads: int, n: int, n_gpu_layers: int, rows: int, timed: str) -> dict[str, Any]:
    result: dict[str, Any] = {"threads": threads, "speed": [], "memory": {}}
    for name in [timed] if rows else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(Path(folder), name, n_gpu_layers)
            result["memory"][name] = compare_memory(model, 8)
            if name == timed:
                copies = MODELS[name][0] != "mamba2"  # llama.cpp reserves too few nodes for them
                result["speed"] = [compare_speed(model, case, threads, n, copies) for case in cases(rows)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=60, help="rounds per measurement")
    parser.add_argument("--n-gpu-layers", type=int, default=0, help="layers on the GPU (-1: all)")
    parser.add_argument("--rows", type=int, default=0, help="measure rounds of 1 to N rows with one model")
    parser.add_argument("--model", choices=MODELS, default="4B, 9B", help="model to time (default: 4B, 9B)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    n_gpu_layers = 99 if args.n_gpu_layers < 0 else args.n_gpu_layers
    result = measure(args.threads, args.runs, n_gpu_layers, args.rows, args.model)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for row in result["speed"]:
        times = [f"{name[:-3]} {row[name]:.2f} ms" for name in row if name.endswith("_ms")]
        best = f"replay takes {row['of_best']:.2f} times the decode without undo"
        if "ratio" in row:
            best += f", snapshots {row['ratio_of_best']:.2f} times replay"
        print(
            f"n_rs_seq {row['n_rs_seq']}, {row['rows']} rows, {row['kept']} kept: {', '.join(times)}; best runs: {best}"
        )
    for name, row in result["memory"].items():
        print(
            f"{name}: state {row['state_mib']:.1f} MiB; rollback depth 8: snapshots {row['snapshots_mib']:.1f} MiB, "
            f"replay {row['replay_mib']:.1f} MiB (1/{row['ratio']:.1f})"
        )


if __name__ == "__main__":
    main()
