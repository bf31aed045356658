"""`llama-eagle evaluate`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle.cli import output
from llama_eagle.cli.options import Json, TargetFile, Threads
from llama_eagle.errors import UsageError


def evaluate(
    model: TargetFile,
    draft: Annotated[Path, typer.Option("--draft", "-d", metavar="DRAFT.gguf", help="Its EAGLE-3 draft.")],
    data: Annotated[list[str], typer.Option(metavar="FILE.jsonl|chat|math", help="Prompts; may be given again.")],
    n_predict: Annotated[int, typer.Option("-n", min=2, help="Most tokens of each answer.")] = 256,
    n_draft: Annotated[str, typer.Option(metavar="K|auto", help="Tokens drafted in a round.")] = "4",
    limit: Annotated[int, typer.Option(min=0, help="Take so many prompts of each category, 0: all.")] = 0,
    temp: Annotated[float, typer.Option(help="Temperature, 0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past end-of-generation tokens.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Verify bit by bit as plain decoding computes.")] = False,
    threads: Threads = 0,
    n_gpu_layers: Annotated[int, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU, -1: all.")] = 0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw acceptance and speed.")] = None,
    json: Json = False,
) -> None:
    """Measure a draft on prompts: acceptance by position, tokens a round, speed over plain decoding."""
    from llama_eagle.bench import evaluate as evaluation
    from llama_eagle.bench.evaluation_report import as_dict, plot_scores, summary, table
    from llama_eagle.bench.prompts import read_prompts, take
    from llama_eagle.bench.report import require_plotting
    from llama_eagle.sampling import SamplingParams

    length = _draft_length(n_draft)
    if plot is not None:
        require_plotting(plot)
    prompts = take(read_prompts(data), limit)
    threads = threads or os.cpu_count() or 1
    sampling = SamplingParams(temp, seed=seed)
    job = evaluation.Evaluation(
        model, draft, prompts, n_predict, length, sampling, threads, n_gpu_layers, ignore_eos, exact
    )
    with output.progress("evaluating") as on_progress:
        scores = evaluation.evaluate(job, on_progress)
    report = {"data": data, **as_dict(job, scores), **_surroundings()}
    if plot is not None:
        plot_scores(report, plot)
    if json:
        output.result(report)
    else:
        output.table(table(report))
        output.data(summary(report))


def _surroundings() -> dict[str, Any]:
    from llama_eagle._library import build_info
    from llama_eagle.bench.run import hardware

    build = build_info()
    return {"hardware": hardware(), "upstream_commit": build.upstream_commit, "patch_hash": build.patch_hash}


def _draft_length(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) == 0:
        raise UsageError(f"--n-draft {text!r}: give a length from 1, or auto.")
    return int(text)
