"""`llama-eagle evaluate`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.options import GpuLayers, Json, NDraft, TargetFile, Threads, read_n_draft
from llama_eagle.errors import UsageError


def evaluate(
    model: TargetFile,
    draft: Annotated[Path, typer.Option("--draft", "-d", metavar="DRAFT.gguf", help="Its EAGLE-3 draft.")],
    data: Annotated[list[str], typer.Option(metavar="FILE.jsonl|chat|math", help="Prompts; may be given again.")],
    n_predict: Annotated[int, typer.Option("-n", min=2, help="Most tokens of each answer.")] = 256,
    n_draft: NDraft = "4",
    limit: Annotated[int, typer.Option(min=0, help="Take so many prompts of each category, 0: all.")] = 0,
    temp: Annotated[float, typer.Option(help="Temperature, 0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past end-of-generation tokens.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Verify bit by bit as plain decoding computes.")] = False,
    threads: Threads = 0,
    n_gpu_layers: GpuLayers = 0,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw acceptance and speed.")] = None,
    json: Json = False,
) -> None:
    """Measure a draft on prompts: acceptance by position, tokens a round, speed over plain decoding."""
    from llama_eagle.bench import evaluate as evaluation
    from llama_eagle.bench.evaluation_report import as_dict, plot_scores, summary, table
    from llama_eagle.bench.prompts import read_prompts, take
    from llama_eagle.bench.report import require_plotting
    from llama_eagle.bench.surroundings import surroundings
    from llama_eagle.generation.sampling import SamplingParams

    length = read_n_draft(n_draft)
    if length == 0:
        raise UsageError("draft length 0 (--n-draft): there is nothing to evaluate. Give 1 or more, or auto.")
    if plot is not None:
        require_plotting(plot)
    prompts = take(read_prompts(data), limit)
    threads = threads or os.cpu_count() or 1
    sampling = SamplingParams(temp, seed=seed)
    job = evaluation.Evaluation(
        model, draft, prompts, n_predict, length, sampling, threads, n_gpu_layers, ignore_eos, exact
    )
    with console.progress("evaluating") as on_progress:
        scores = evaluation.evaluate(job, on_progress)
    report = {"data": data, **as_dict(job, scores), **surroundings()}
    if plot is not None:
        plot_scores(report, plot)
    if json:
        console.result(report)
    else:
        console.table(table(report))
        console.data(summary(report))
