"""`llama-eagle train --target TARGET --data FILE... -o DRAFT_DIR`"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import ADVANCED, Json, Overwrite, Yes, find_model, read_layers
from llama_eagle.errors import EagleError, EnvironmentFailure, InputError, UsageError
from llama_eagle.files import check_output, expand_home, refuse_existing, refuse_sources
from llama_eagle.progress import conversion, progress, working

if TYPE_CHECKING:
    from llama_eagle.bench.evaluate import Gain

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class DraftOptions:
    """Options of the draft to train."""

    kind: Annotated[
        str,
        typer.Option(
            metavar="eagle3|dspark|mtp",
            help="Kind of the draft: an EAGLE-3 draft; a DSpark draft, which proposes all tokens of a round in one "
            "pass and needs more training; or the target's MTP head.",
        ),
    ] = "eagle3"
    features: Annotated[
        str,
        typer.Option(
            metavar="DIR|auto|none",
            help="Folder to store the target's hidden states in, so that they are computed once, not in each epoch. "
            "auto: for a GGUF, the output folder during the run, if the disk has room. none: do not store them.",
            rich_help_panel=ADVANCED,
        ),
    ] = "auto"
    init: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFT_DIR",
            help="Start from the weights of this draft and keep its vocabulary, width and layers (default: a new draft "
            "with the target's head, last norm and last MLP). With --kind mtp: an earlier run's folder or a GGUF "
            "with an MTP head (default: the target's head, else its last attention block).",
        ),
    ] = None
    mrope: Annotated[
        bool,
        typer.Option(
            "--mrope", help="Use M-RoPE image positions in the draft, as the target does.", rich_help_panel=ADVANCED
        ),
    ] = False
    format: Annotated[
        str,
        typer.Option(
            metavar="specforge|speculators", help="Layout of the draft's checkpoint.", rich_help_panel=ADVANCED
        ),
    ] = "specforge"
    aux_layers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Numbers of target blocks after which the draft reads the hidden state (default with L blocks: 2, L/2 "
            "and L-3; with vision, a later first one).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    n_vocab_draft: Annotated[
        int | None,
        typer.Option(
            "--draft-vocab",
            min=1,
            help="Number of different tokens that the draft can propose: the most frequent ones in the data (default: "
            "enough for 99 % of the data, at most 32000).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    ffn_size: Annotated[
        int | None,
        typer.Option(
            "--ffn",
            min=1,
            help="Width of the draft's MLP (default: same as the target). A narrower one drafts faster.",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    window: Annotated[
        int | None,
        typer.Option(
            min=16,
            help="Number of last tokens that the draft attends to (default: all). Time and memory then grow linearly "
            "with --max-length, and acceptance in long texts is that of the window.",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    n_steps: Annotated[
        int,
        typer.Option(
            "--steps",
            min=1,
            max=16,
            help="Draft length in tokens that the draft is trained for; not the number of optimizer steps.",
            rich_help_panel=ADVANCED,
        ),
    ] = 5


@dataclass(frozen=True)
class OptimizerOptions:
    """Options of the training procedure."""

    max_length: Annotated[
        int, typer.Option(min=16, help="Maximum length of a training text in tokens. A smaller value saves memory.")
    ] = 1024
    batch_size: Annotated[
        int,
        typer.Option(
            min=0, help="Number of texts per forward pass; 1 needs the least memory. 0: 2 on a CPU, 8 on a GPU."
        ),
    ] = 0
    accumulate: Annotated[
        int, typer.Option(min=1, help="Number of forward passes per optimizer step.", rich_help_panel=ADVANCED)
    ] = 1
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of passes over the data; with --hours, the maximum (default: 3, up to 10 for small data; with "
            "--hours, no maximum).",
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--lr",
            min=1e-9,
            help="Peak learning rate (default: by hidden size, for example 1e-4 at 2560).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    warmup: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Fraction of the optimizer steps with an increasing learning rate.",
            rich_help_panel=ADVANCED,
        ),
    ] = 0.03
    eval_share: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.5, help="Fraction of the data that is held out for evaluation.", rich_help_panel=ADVANCED
        ),
    ] = 0.02
    eval_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Optimizer steps between evaluations (default: 20 evaluations per run).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    patience: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of evaluations without improvement before the run stops early (0: never).",
            rich_help_panel=ADVANCED,
        ),
    ] = 5
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**32 - 1, help="Random seed of weights, batches and held-out data.", rich_help_panel=ADVANCED
        ),
    ] = 0


@dataclass(frozen=True)
class RunOptions:
    """Options of the run: files, device and precision."""

    save_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Optimizer steps between saves of the run's state (default: as --eval-every, at most 1000).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    log_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Optimizer steps between lines of metrics.jsonl (default: 1 % of the run, at most 10).",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|f32|bf16",
            help="Precision of the computation; auto is bf16 where the device computes it fast, else f32.",
            rich_help_panel=ADVANCED,
        ),
    ] = "auto"
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda", help="Device to train on; auto is cuda if present, else cpu.")
    ] = "auto"
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing",
            help="Recompute activations to save memory; training gets slower.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in the output folder.")] = False


@grouped
def train(
    *,
    target: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Model to train the draft for: a GGUF file, used in its own quantization, a Hugging Face folder or "
            "hub id, used as it is, or a name that `llama-eagle list` shows. With --data self, or with its type "
            "(OWNER/NAME:TYPE), a checkpoint is converted first.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="DRAFT_DIR", help="Output folder of the trained draft.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE_OR_DIR",
            help="Training data: texts, or chats as JSONL. May be repeated. With self (the default), a GGUF target "
            "writes conversations itself; if files are named too, it also answers their questions and continues their "
            "texts.",
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Time limit of the whole run in hours, writing of data included. The number of optimizer steps "
            "follows from it (default: no limit; self writes 1000 conversations).",
        ),
    ] = None,
    draft: DraftOptions,
    optimizer: OptimizerOptions,
    run_options: RunOptions,
    gguf: Annotated[
        Path | None,
        typer.Option(metavar="FILE.gguf", help="Also convert the draft to this GGUF file; not with --kind mtp."),
    ] = None,
    gguf_type: Annotated[
        str, typer.Option(metavar="TYPE", help="Quantization type of the file that --gguf writes.")
    ] = "q8_0",
    yes: Yes = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Train an EAGLE-3 or DSpark draft, or a target's MTP head."""
    try:
        with working("loading PyTorch", after_s=0):  # rich is imported first
            from llama_eagle.train.run import train as run
            from llama_eagle.train.settings import DTYPES, FORMATS, KINDS, Settings
    except ImportError as error:
        raise EnvironmentFailure(f"training requires {error.name}. Run `pip install 'llama-eagle[train]'`.") from None
    choices = (
        ("kind", draft.kind, KINDS), ("format", draft.format, FORMATS), ("dtype", run_options.dtype, DTYPES),
        ("device", run_options.device, DEVICES),
    )  # fmt: skip
    _refuse(choices, draft)
    target = _trained_model(target, data or ["self"], yes)
    if gguf is not None:
        _require_writable(gguf, gguf_type.lower(), draft)
        _refuse_sources(gguf, out, target, [*(data or []), *([draft.init] if draft.init else [])])
        refuse_existing([gguf], overwrite)
    options = vars(draft) | vars(optimizer) | vars(run_options) | {"aux_layers": read_layers(draft.aux_layers)}
    options["seconds"] = None if hours is None else 3600 * hours
    with working("preparing"):
        report = run(Settings(output=out, target=target, data=tuple(data or ["self"]), **options))
    if report is None:  # with several processes, the first one reports
        return
    if gguf is not None:
        _convert(report.output, target, gguf, gguf_type.lower())
    file = gguf or next(Path(report.output).glob("mtp-*.gguf"), None)
    gain = _gain(target, file, report.accuracy or ()) if file is not None and expand_home(target).is_file() else None
    if json:
        console.result(report.to_json() | {"gain": gain and asdict(gain)})
        return
    score = "" if report.mean_emitted is None else f", {report.mean_emitted:.2f} tokens per round on held-out data"
    console.data(f"{gguf or report.output}: {report.steps} steps{score}; {report.ended}")
    if file is not None and expand_home(target).is_file():
        console.data(_advice(target, file, gain))


def _gain(target: str, draft: Path, rates: Sequence[float]) -> Gain | None:
    """Measure a trained draft, and keep its price; return None if that is impossible.

    rates: acceptance on held-out data.
    """
    from llama_eagle.bench.evaluate import measure_gain
    from llama_eagle.cli.commands.check import measure_drafting
    from llama_eagle.drafting.price import keep_rates
    from llama_eagle.gguf.header import read_model

    path = expand_home(target)
    with suppress(EnvironmentFailure, InputError, OSError):  # too little memory, a short context, a read-only cache
        with working("measuring the draft"):
            measure_drafting(path, draft)
        keep_rates(read_model(path)[1], read_model(draft)[1], rates)
        with progress("measuring the draft") as on_progress:
            return measure_gain(path, draft, on_progress)
    return None


def _advice(target: str, draft: Path, gain: Gain | None) -> str:
    """Return the command that uses a trained draft, or the reason not to use it."""
    words = (target, str(draft))
    if gain is None:
        return f"Its speed is unknown. Measure it: {shlex.join(('llama-eagle', 'check', *words, '--measure'))}"
    if not gain.pays:
        more = "Train with more --hours or --data, or for a larger target, which gains more from a draft"
        return f"Do not use it yet, {gain}. {more}."
    return f"Use it, {gain}: {shlex.join(('llama-eagle', 'generate', '-m', target, '-d', str(draft)))}"


def _trained_model(target: str, data: Sequence[str], yes: bool) -> str:
    """Return the target as training takes it: a checkpoint's folder or hub id, or the file of a GGUF."""
    from llama_eagle.store.find import is_checkpoint, is_name

    if not is_name(target) or ("self" not in data and is_checkpoint(target)):
        return target
    return str(find_model(target, yes))


def _convert(folder: str, target: str, gguf: Path, outtype: str) -> None:
    from llama_eagle.convert import drafts

    try:
        with conversion("converting the draft") as meter:
            drafts.convert_draft(folder, target, gguf, drafts.DraftOptions(outtype=outtype), meter)
    except EagleError as error:
        convert = ("llama-eagle", "convert", folder, "--target", target, "-o", str(gguf), "--outtype", outtype)
        more = ("--overwrite",) if gguf.exists() else ()
        error.args = (
            f"{str(error).rstrip('.')}. The draft in {folder} is complete: repeat the command with --resume, or "
            f"`{shlex.join((*convert, *more))}`.",
        )
        raise


def _refuse(choices: tuple[tuple[str, str, Sequence[str]], ...], draft: DraftOptions) -> None:
    """Raise `UsageError` for options that cannot work. choices: name, value and allowed values."""
    for name, value, allowed in choices:
        if value not in allowed:
            raise UsageError(f"--{name} {value!r}: choose from {', '.join(allowed)}.")
    of_eagle3 = draft.window or draft.mrope or draft.format != "specforge"
    if draft.kind == "mtp" and (of_eagle3 or draft.aux_layers or draft.ffn_size):
        raise UsageError(
            "--kind mtp: the head has the target's shape. Omit --aux-layers, --ffn, --window, --mrope and --format."
        )
    if draft.kind == "dspark" and (of_eagle3 or draft.init):
        raise UsageError("--kind dspark has no --init, --window, --mrope and --format. Omit them.")
    if draft.kind == "dspark" and draft.n_steps < 2:
        raise UsageError(f"--steps {draft.n_steps}: a block has at least 2 tokens.")


def _require_writable(gguf: Path, outtype: str, draft: DraftOptions) -> None:
    """Check, before hours of training, that the draft can be converted to this file."""
    from llama_eagle.convert.quantized import require_type

    if draft.kind == "mtp":
        raise UsageError(
            "--gguf is for drafts. For a GGUF target, DRAFT_DIR/mtp-NAME.gguf is the head; otherwise "
            "convert it with llama-eagle convert --mtp-only."
        )
    require_type(outtype)
    check_output(gguf)


def _refuse_sources(gguf: Path, out: Path, target: str, sources: Sequence[str]) -> None:
    """Raise `UsageError` for a file of the target, of `sources` or of the run itself."""
    from llama_eagle.gguf.header import read_model

    path = expand_home(target)
    files = [part.path for part in read_model(path)[1]] if path.is_file() else [path]
    refuse_sources(gguf, [*files, *map(Path, sources)])
    if gguf.suffix != ".gguf" and gguf.resolve().parent == out.resolve():
        raise UsageError(f"--gguf {gguf}: -o contains files of the run. Give the file a name that ends in .gguf.")
