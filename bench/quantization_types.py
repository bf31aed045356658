"""What a plain decode and a verify batch cost, by quantization: the figures behind docs/quantization.md.

    python bench/quantization_types.py --gigabytes 1.2 --rows 1 5 [--json]

A synthetic model of Qwen3.5's shape (random weights) is converted once and quantized to each candidate. Costs are the
smallest processor time of many llama_decode calls on one thread, taken in turns: other load can only add to them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle._native import library
from llama_eagle.bench.convert_target import make_checkpoint
from llama_eagle.convert.targets import TargetOptions, convert_target
from llama_eagle.quantize import QuantizeOptions, quantize
from llama_eagle.recipes import RECIPES

# name -> (type, options)
CANDIDATES: dict[str, tuple[str, QuantizeOptions]] = {
    "q8_0": ("q8_0", QuantizeOptions()),
    "q6_k": ("q6_k", QuantizeOptions()),
    "q5_k_m": ("q5_k_m", QuantizeOptions()),
    "q4_k_m": ("q4_k_m", QuantizeOptions()),
    "q4_k_m, head q8_0": ("q4_k_m", QuantizeOptions(output_type="q8_0")),
    "q4_k_m, head q5_k": ("q4_k_m", QuantizeOptions(output_type="q5_k")),
    "q4_k_m, head q4_k": ("q4_k_m", QuantizeOptions(output_type="q4_k")),
    "q4_k_s": ("q4_k_s", QuantizeOptions()),
    "q4_0": ("q4_0", QuantizeOptions()),
    "iq4_nl": ("iq4_nl", QuantizeOptions()),
    **{f"q4_k_m, recipe {name}": ("q4_k_m", QuantizeOptions(recipe=name)) for name in RECIPES},
}


@dataclass
class Model:
    """A loaded model with a context, advanced by batches of given sizes."""

    api: Any
    model: Any
    ctx: Any
    n_past: int = 0

    @classmethod
    def load(cls, path: Path) -> Model:
        library()
        from llama_cpp import llama_cpp as api

        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        model = api.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise SystemExit(f"{path} does not load")
        context = api.llama_context_default_params()
        context.n_ctx, context.n_batch = 1024, 512
        context.n_threads = context.n_threads_batch = 1
        return cls(api, model, api.llama_init_from_model(model, context))

    def decode(self, n_rows: int) -> float:
        """Milliseconds of processor time of one llama_decode of n_rows tokens with logits for each."""
        batch = self.api.llama_batch_init(n_rows, 0, 1)
        for i in range(n_rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = 100 + i, self.n_past + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        batch.n_tokens = n_rows
        start = time.process_time()
        status = self.api.llama_decode(self.ctx, batch)
        self.api.llama_synchronize(self.ctx)
        elapsed = time.process_time() - start
        self.api.llama_batch_free(batch)
        if status:
            raise SystemExit(f"llama_decode: {status}")
        self.n_past += n_rows
        return elapsed * 1000

    def free(self) -> None:
        self.api.llama_free(self.ctx)
        self.api.llama_model_free(self.model)


def measure(path: Path, rows: list[int], runs: int) -> dict[int, float]:
    """Smallest milliseconds of a decode of each number of rows."""
    model = Model.load(path)
    for n in rows:
        model.decode(n)
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(runs):
        for n in rows:
            best[n] = min(best[n], model.decode(n))
    model.free()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.2, help="size of the bf16 model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5])
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
        for name, (ftype, options) in CANDIDATES.items():
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
