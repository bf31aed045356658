"""`llama-eagle evaluate`"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import ADVANCED, Drafting, Json, Loading, Overwrite, Sampling, Target, Threads, Vision
from llama_eagle.drafting.options import LOOKUP, DraftingOptions
from llama_eagle.errors import UsageError
from llama_eagle.native.processor.threads import n_threads
from llama_eagle.progress import progress

FIXED = "4"  # tokens of a draft model's drafts
LENGTH = "Draft length in tokens per round, or auto (default: 4 with a draft model, auto with prompt look-up)."


@dataclass(frozen=True)
class EvaluationDrafting(Drafting):
    """Drafting options with a fixed length for a draft model, because the report shows acceptance by position."""

    n_draft: Annotated[
        str,
        typer.Option("--n-draft", metavar="K|auto", show_default=False, help=LENGTH),
    ] = ""

    def options(self) -> DraftingOptions:
        """Return the drafting options. Raises `UsageError` for values out of range."""
        return super().options() if self.n_draft else replace(self, n_draft=FIXED).options()


@dataclass(frozen=True)
class EvaluationSampling(Sampling):
    """Sampling options that are greedy by default, so that answers can be compared with plain decoding."""

    temp: Annotated[float, typer.Option(help="Sampling temperature (0: greedy decoding).")] = 0.0
    seed: Annotated[int | None, typer.Option(help="Random seed of sampling.")] = 1


@grouped
def evaluate(
    target: Target,
    vision: Vision,
    drafting: EvaluationDrafting,
    sampling: EvaluationSampling,
    devices: Loading,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.jsonl|chat|math|lookup",
            help="Prompt file or built-in set of prompts (default: chat with a draft model, lookup with prompt "
            "look-up). May be repeated.",
        ),
    ] = None,
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", min=2, help="Maximum length of an answer in tokens.")
    ] = 256,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of prompts per category of a prompt file (0: all).")
    ] = 0,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Continue after end-of-generation tokens, so that every answer has -n tokens.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    threads: Threads = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write a plot of acceptance and speed to this file.")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Measure a drafter's acceptance rate and speed on prompts.

    A target without a draft model is measured with prompt look-up, on the built-in set `lookup`: edits, extracts,
    summaries, renamed code, answers of agents, repetitions and chats. With a draft model, look-up alone is measured too
    and, without --n-draft, what `generate` does by default: both drafters and the automatic length.
    """
    from llama_eagle.bench import evaluate as evaluation
    from llama_eagle.bench.evaluation_report import as_dict, plot_scores, summary, table
    from llama_eagle.bench.prompts import read_prompts, take
    from llama_eagle.bench.report import require_plotting
    from llama_eagle.bench.surroundings import surroundings
    from llama_eagle.drafting.resolve import resolve

    given = drafting.options()
    if plot is not None:
        require_plotting(plot, overwrite)
    model = target.file(given)
    choice = resolve(model, given)
    drafts = choice.options
    if not drafts.drafts and given.draft is None:
        drafts = _lookup(drafts)
    console.note(f"{choice.why}; measured: prompt look-up" if drafts is not choice.options else choice.why)
    if drafts.model is None and drafts.drafts and not drafting.n_draft:
        drafts = replace(drafts, n_draft="auto")
    data = data or [LOOKUP if drafts.model is None else "chat"]
    if not drafts.drafts or drafts.n_draft == 0:
        raise UsageError("there is no drafter to evaluate. Give --draft, and --n-draft of 1 or more, or auto.")
    prompts = take(read_prompts(data), limit)
    threads = n_threads(threads)
    job = evaluation.Evaluation(
        model, prompts, n_predict, drafts, sampling.params(), threads, devices.load(), ignore_eos, vision.mmproj
    )
    with progress("evaluating") as on_progress:
        others = {} if drafts.model is None else _others(model, drafts, drafting)
        own, *further = evaluation.evaluate_all(job, [drafts, *others.values()], on_progress)
    report = {"data": data, **as_dict(job, own, dict(zip(others, further, strict=True))), **surroundings()}
    if plot is not None:
        plot_scores(report, plot)
    if json:
        console.result(report)
    else:
        console.table(table(report))
        console.data(summary(report))


def _others(model: Path, drafts: DraftingOptions, given: EvaluationDrafting) -> dict[str, DraftingOptions]:
    """Return further options to measure with a draft model, by the names of the report."""
    from llama_eagle.drafting.resolve import resolve

    if given.n_draft:
        return {LOOKUP: _lookup(drafts)}
    default = replace(given, n_draft="auto").options()
    return {"default": resolve(model, default).options, LOOKUP: replace(_lookup(drafts), n_draft="auto")}


def _lookup(drafts: DraftingOptions) -> DraftingOptions:
    """Return options for prompt look-up alone, with the same draft lengths."""
    return DraftingOptions(LOOKUP, drafts.n_draft, drafts.n_draft_max, exact=drafts.exact)
