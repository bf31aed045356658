"""`llama-eagle train --target TARGET --data FILE... -o DRAFT_DIR`"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import Json, read_layers
from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.files import check_output

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Draft:
    """What is trained."""

    mtp: Annotated[bool, typer.Option("--mtp", help="The target's own MTP head instead of an EAGLE-3 draft.")] = False
    features: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the target's features there.")] = None
    init: Annotated[str | None, typer.Option(metavar="DRAFT_DIR", help="Start from this draft's weights.")] = None
    mrope: Annotated[bool, typer.Option("--mrope", help="It stands in images where its target does.")] = False
    format: Annotated[str, typer.Option("--format", help="specforge or speculators.")] = "specforge"
    aux_layers: Annotated[str | None, typer.Option(metavar="A,B,C", help="Boundaries the draft reads.")] = None
    n_vocab_draft: Annotated[int, typer.Option("--draft-vocab", min=1, help="Tokens the draft can propose.")] = 32000
    ffn_size: Annotated[int | None, typer.Option("--ffn", min=1, help="Width of its MLP, default: target's.")] = None
    n_steps: Annotated[int, typer.Option("--steps", min=1, max=16, help="Tokens it learns to draft in a row.")] = 5


@dataclass(frozen=True)
class Course:
    """How it learns."""

    max_length: Annotated[int, typer.Option(min=16, help="Tokens of a sequence.")] = 1024
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of a pass.")] = 1
    accumulate: Annotated[int, typer.Option(min=1, help="Passes of an optimizer step.")] = 1
    epochs: Annotated[int | None, typer.Option(min=1, help="Over the data; default: 3, up to 10 if small.")] = None
    learning_rate: Annotated[
        float | None, typer.Option("--lr", min=0.0, help="Learning rate; default by width: 1e-4 at 2560.")
    ] = None
    warmup: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the steps.")] = 0.03
    eval_share: Annotated[float, typer.Option(min=0.0, max=0.5, help="Of the data, held out.")] = 0.02
    eval_every: Annotated[int | None, typer.Option(min=1, help="Steps; default: 20 times.")] = None
    patience: Annotated[int, typer.Option(min=0, help="Evaluations without gain before it stops, 0: never.")] = 5
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0


@dataclass(frozen=True)
class Running:
    """Where it runs, and what it leaves."""

    save_every: Annotated[int | None, typer.Option(min=1, help="Steps; default: at evaluations.")] = None
    log_every: Annotated[int | None, typer.Option(min=1, help="Steps between lines of metrics.jsonl.")] = None
    dtype: Annotated[str, typer.Option(help="auto (bf16 where it is fast), f32, bf16.")] = "auto"
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto"
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Less memory, more computing.")] = False
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in DRAFT_DIR.")] = False


@grouped
def train(
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="The target: a GGUF, run by our engine in its own quantization, or a Hugging Face folder or hub id.",
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="DRAFT_DIR", help="Folder of the trained draft.")],
    draft: Draft,
    course: Course,
    running: Running,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE_OR_DIR",
            help="Training data: texts, or chats as JSONL. May be repeated. self (the default): the target, a GGUF, "
            "writes conversations itself; with files next to it, it also answers their questions and continues "
            "their texts.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Time for the whole run, writing data included. The number of steps and the learning rate follow "
            "from it, and the run stops in time (default: 1000 conversations and --epochs).",
        ),
    ] = None,
    gguf: Annotated[Path | None, typer.Option(metavar="FILE.gguf", help="Also convert the draft to this file.")] = None,
    gguf_type: Annotated[str, typer.Option(metavar="TYPE", help="Type of its matrices.")] = "q8_0",
    json: Json = False,
) -> None:
    """Train an EAGLE-3 draft, or a target's MTP head (--mtp)."""
    try:
        from llama_eagle.train.run import train as run
        from llama_eagle.train.settings import DTYPES, FORMATS, Settings
    except ImportError as error:
        raise EnvironmentFailure(f"training needs {error.name}: pip install 'llama-eagle[train]'.") from None
    chosen = (("format", draft.format, FORMATS), ("dtype", running.dtype, DTYPES), ("device", running.device, DEVICES))
    for name, value, allowed in chosen:
        if value not in allowed:
            raise UsageError(f"--{name} {value!r}: choose from {', '.join(allowed)}.")
    if draft.mtp and (draft.aux_layers or draft.ffn_size or draft.mrope or draft.format != "specforge"):
        raise UsageError("--mtp: the head has the target's shape. Leave out --aux-layers, --ffn, --mrope and --format.")
    if gguf is not None:
        if draft.mtp:
            raise UsageError("--gguf is for EAGLE-3 drafts; of a head: llama-eagle convert --mtp-only.")
        check_output(gguf)
    options = vars(draft) | vars(course) | vars(running) | {"aux_layers": read_layers(draft.aux_layers)}
    options["seconds"] = None if hours is None else 3600 * hours
    report = run(Settings(output=out, target=target, data=tuple(data or ["self"]), **options))
    if report is None:  # another process tells
        return
    if gguf is not None:
        from llama_eagle.convert.drafts import DraftOptions, convert_draft

        convert_draft(report.output, target, gguf, DraftOptions(outtype=gguf_type))
    if json:
        console.result(report.to_json())
        return
    judged = "" if report.mean_emitted is None else f", {report.mean_emitted:.2f} tokens a round on held-out data"
    console.data(f"{gguf or report.output}: {report.steps} steps{judged}")
