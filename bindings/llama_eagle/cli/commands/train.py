"""`llama-eagle train --target TARGET --data FILE... -o DRAFT_DIR`"""

from __future__ import annotations

from collections.abc import Sequence
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
class DraftOptions:
    """Options of the draft to train."""

    mtp: Annotated[bool, typer.Option("--mtp", help="Train the target's MTP head instead of an EAGLE-3 draft.")] = False
    features: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Compute the target's features once and store them in this folder (default: compute them in each "
            "pass). Faster with several epochs, but needs disk space.",
        ),
    ] = None
    init: Annotated[
        str | None, typer.Option(metavar="DRAFT_DIR", help="Start from this draft's weights (default: random).")
    ] = None
    mrope: Annotated[
        bool, typer.Option("--mrope", help="Use M-RoPE image positions in the draft, as the target does.")
    ] = False
    format: Annotated[
        str, typer.Option("--format", help="Layout of the trained draft's checkpoint: specforge or speculators.")
    ] = "specforge"
    aux_layers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Target layers whose outputs the draft reads (default: an early, a middle and a late one).",
        ),
    ] = None
    n_vocab_draft: Annotated[
        int, typer.Option("--draft-vocab", min=1, help="Number of tokens that the draft can propose.")
    ] = 32000
    ffn_size: Annotated[
        int | None, typer.Option("--ffn", min=1, help="Width of the draft's MLP (default: same as the target).")
    ] = None
    n_steps: Annotated[
        int, typer.Option("--steps", min=1, max=16, help="Number of consecutive tokens that the draft learns to draft.")
    ] = 5


@dataclass(frozen=True)
class OptimizerOptions:
    """Options of the training procedure."""

    max_length: Annotated[int, typer.Option(min=16, help="Maximum sequence length in tokens.")] = 1024
    batch_size: Annotated[int, typer.Option(min=1, help="Number of sequences per forward pass.")] = 1
    accumulate: Annotated[int, typer.Option(min=1, help="Number of forward passes per optimizer step.")] = 1
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of passes over the data (default: 3, up to 10 for small data).")
    ] = None
    learning_rate: Annotated[
        float | None,
        typer.Option("--lr", min=0.0, help="Learning rate (default: depends on the width, 1e-4 at 2560)."),
    ] = None
    warmup: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Fraction of the steps with an increasing learning rate.")
    ] = 0.03
    eval_share: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Fraction of the data that is held out for evaluation.")
    ] = 0.02
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between evaluations (default: 20 evaluations per run).")
    ] = None
    patience: Annotated[
        int, typer.Option(min=0, help="Number of evaluations without improvement before the run stops (0: never).")
    ] = 5
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Random seed of weights, batches and held-out data.")
    ] = 0


@dataclass(frozen=True)
class RunOptions:
    """Options of the run: files, device and precision."""

    save_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps between saves of the run's state (default: at each evaluation, at least every 1000)."
        ),
    ] = None
    log_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps between lines of metrics.jsonl (default: 100 lines per run, at least every 10 steps)."
        ),
    ] = None
    dtype: Annotated[
        str, typer.Option(help="Precision of the computation: auto (bf16 if it is fast), f32 or bf16.")
    ] = "auto"
    device: Annotated[str, typer.Option(help="Device to train on: auto, cpu or cuda.")] = "auto"
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Recompute activations to save memory; training gets slower.")
    ] = False
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DRAFT_DIR.")] = False


@grouped
def train(
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="The target: a GGUF, run by our engine in its own quantization, or a Hugging Face folder or hub id.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="DRAFT_DIR", help="Output folder of the trained draft.")
    ],
    draft: DraftOptions,
    optimizer: OptimizerOptions,
    run_options: RunOptions,
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
    gguf_type: Annotated[str, typer.Option(metavar="TYPE", help="Quantization type of --gguf.")] = "q8_0",
    json: Json = False,
) -> None:
    """Train an EAGLE-3 draft, or a target's MTP head (--mtp)."""
    try:
        from llama_eagle.train.run import train as run
        from llama_eagle.train.settings import DTYPES, FORMATS, Settings
    except ImportError as error:
        raise EnvironmentFailure(f"training requires {error.name}. Run `pip install 'llama-eagle[train]'`.") from None
    choices = (
        ("format", draft.format, FORMATS), ("dtype", run_options.dtype, DTYPES), ("device", run_options.device, DEVICES)
    )  # fmt: skip
    _refuse(choices, draft, gguf)
    options = vars(draft) | vars(optimizer) | vars(run_options) | {"aux_layers": read_layers(draft.aux_layers)}
    options["seconds"] = None if hours is None else 3600 * hours
    report = run(Settings(output=out, target=target, data=tuple(data or ["self"]), **options))
    if report is None:  # with several processes, the first one reports
        return
    if gguf is not None:
        from llama_eagle.convert.drafts import DraftOptions as ConvertOptions
        from llama_eagle.convert.drafts import convert_draft

        convert_draft(report.output, target, gguf, ConvertOptions(outtype=gguf_type))
    if json:
        console.result(report.to_json())
        return
    score = "" if report.mean_emitted is None else f", {report.mean_emitted:.2f} tokens per round on held-out data"
    console.data(f"{gguf or report.output}: {report.steps} steps{score}")


def _refuse(choices: tuple[tuple[str, str, Sequence[str]], ...], draft: DraftOptions, gguf: Path | None) -> None:
    """Raise `UsageError` for options that cannot work. choices: name, value and allowed values."""
    for name, value, allowed in choices:
        if value not in allowed:
            raise UsageError(f"--{name} {value!r}: choose from {', '.join(allowed)}.")
    if draft.mtp and (draft.aux_layers or draft.ffn_size or draft.mrope or draft.format != "specforge"):
        raise UsageError("--mtp: the head has the target's shape. Omit --aux-layers, --ffn, --mrope and --format.")
    if gguf is not None:
        if draft.mtp:
            raise UsageError(
                "--gguf is for EAGLE-3 drafts. For a GGUF target, DRAFT_DIR/mtp-NAME.gguf is the head; otherwise "
                "convert it with llama-eagle convert --mtp-only."
            )
        check_output(gguf)
