"""What a plain decode and a verify batch cost, by quantization: the figures behind docs/quantization.md.

    python bench/studies/quantization_types.py --gigabytes 1.2 --rows 1 5 [--types q8_0 q6_k] [--json]

A synthetic model of Qwen3.5's shape (random weights) is converted once and quantized to each candidate. Costs are the
smallest processor time of many llama_decode calls on one thread, taken in turns: other load can only add to them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from convert_target import make_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.quantize.quantize import QuantizeOptions, quantize
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions, SessionOptions
from llama_eagle.sessions.session import EagleSession

# name -> (type, options)
CANDIDATES: dict[str, tuple[str, QuantizeOptions]] = {
    "q8_0": ("q8_0", QuantizeOptions()),
    "q6_k": ("q6_k", QuantizeOptions()),
    "q5_k_m": ("q5_k_m", QuantizeOptions()),
    "q4_k_m": ("q4_k_m", QuantizeOptions()),
    "q4_k_m, head q8_0": ("q4_k_m", QuantizeOptions(output_type="q8_0")),
    "q4_k_m, head q5_k": ("q4_k_m", QuantizeOptions(output_type="q5_k")),
    "q4_k_m, head q4_k": ("q4_k_m", QuantizeOptions(output_type="q4_k")),
    "q4_k_m, speculation": ("q4_k_m", QuantizeOptions(recipe="speculation")),
    "q4_k_s": ("q4_k_s", QuantizeOptions()),
    "q4_0": ("q4_0", QuantizeOptions()),
    "iq4_nl": ("iq4_nl", QuantizeOptions()),
}


def measure(path: Path, rows: list[int], runs: int) -> dict[int, float]:
    """Smallest milliseconds of processor time of a decode of each number of rows, with logits for each row."""
    best = dict.fromkeys(rows, float("inf"))
    options = ContextOptions(n_ctx=1024, n_batch=512, n_threads=1)
    with (
        Model(path) as model,
        Context(model, options) as context,
        EagleSession(context, None, SessionOptions(0)) as session,
    ):
        for _ in range(runs + 1):  # the first time builds graphs: it is never the smallest
            for n in rows:
                start = time.process_time()
                session.verify(range(100, 100 + n))
                best[n] = min(best[n], (time.process_time() - start) * 1e3)
                session.commit(n)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.2, help="size of the bf16 model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--types", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), metavar="NAME")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--passes", type=int, default=2, help="how often the list of candidates is gone through")
    parser.add_argument("--folder", type=Path, help="where to work; needs twice the size; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    results: dict[str, dict[str, Any]] = {}
    try:
        make_checkpoint(folder, int(arguments.gigabytes * 1e9))
        convert_target(folder, folder / "bf16.gguf", TargetOptions(outtype="bf16"))
        (folder / "model.safetensors").unlink()
        for name in arguments.types:
            ftype, options = CANDIDATES[name]
            path = folder / f"{name}.gguf"
            results[name] = {"n_bytes": quantize(folder / "bf16.gguf", path, ftype, options).n_bytes, "ms": {}}
        for _ in range(arguments.passes):
            for name, result in results.items():
                found = measure(folder / f"{name}.gguf", arguments.rows, arguments.runs)
                result["ms"] = {n: min(ms, result["ms"].get(n, ms)) for n, ms in found.items()}
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps(results))
        return
    for name, result in results.items():
        costs = ", ".join(f"{n} rows {ms:.1f} ms" for n, ms in result["ms"].items())
        print(f"{name:28} {result['n_bytes'] / 1e6:7.0f} MB  {costs}")


if __name__ == "__main__":
    main()
