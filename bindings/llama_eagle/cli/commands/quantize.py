"""`llama-eagle quantize MODEL OUT.gguf TYPE` and `llama-eagle imatrix`"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    ADVANCED,
    KEPT_HELP,
    GpuLayers,
    Json,
    Overwrite,
    Target,
    Threads,
    Verbose,
    find_kept,
    warn_without_gpu,
)
from llama_eagle.errors import UsageError
from llama_eagle.progress import progress

if TYPE_CHECKING:
    from llama_eagle.quantize.collect import CollectReport


def quantize(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help=f"Model to quantize, in f32, f16 or bf16 (see --requantize): {KEPT_HELP}."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="GGUF file to write.")],
    outtype: Annotated[str, typer.Argument(metavar="TYPE", help="Quantization type: q4_k_m, q5_k_m, q6_k, q8_0, ...")],
    output_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the model's output matrix (default: chosen by the TYPE argument).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGEX=TYPE",
            help="Type of the tensors whose names match a regular expression, such as ffn_down=q6_k. May be repeated; "
            "the first match wins.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Importance matrix from `imatrix`, to lose less quality; required for iq1_*, iq2_*, iq3_xxs, "
            "iq3_xs and q2_k_s.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="speculation",
            help="Named set of tensor types. speculation: attention and recurrent matrices in q6_k, for q4_k_m with "
            "drafts.",
        ),
    ] = None,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Accept a file that is already quantized; the result loses quality.")
    ] = False,
    threads: Threads = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Quantize a GGUF file with llama.cpp's quantizer."""
    from llama_eagle.files import refuse_existing
    from llama_eagle.quantize import quantize as quantizer
    from llama_eagle.quantize.written import type_line

    options = quantizer.QuantizeOptions(
        output_type=output_type,
        tensor_types=_pairs(tensor_type or []),
        imatrix=imatrix,
        recipe=recipe,
        threads=threads,
        requantize=requantize,
    )
    refuse_existing([out], overwrite)
    source = find_kept(model)
    with progress("quantizing", after_s=1.0, then="finishing") as on_progress:
        report = quantizer.quantize(source, out, outtype.lower(), replace(options, progress=on_progress))
    console.log(f"written: {type_line(report.types)}")
    for warning in report.warnings:
        console.warn(warning)
    if json:
        names = ("types", "oversize", "without_matrix", "unused_experts", "without_effect")
        facts = {name: getattr(report, name) for name in names}
        console.result({"output": str(out), "outtype": outtype.lower(), "n_bytes": report.n_bytes, **facts})
    else:
        console.data(f"{out}: {outtype.lower()}, {console.size(report.n_bytes)}")


@grouped
def imatrix(
    target: Target,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.gguf", help="GGUF file to write the matrix to.")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="UTF-8 text file to evaluate; at least two chunks long."),
    ] = None,
    in_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Add the statistics of this earlier matrix. May be repeated; without --file the matrices are summed.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", help="Size of a chunk in tokens.")] = 512,
    chunks: Annotated[int, typer.Option(min=0, help="Number of chunks to evaluate (0: the whole text).")] = 0,
    from_chunk: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of chunks to skip at the start of the text, to continue an interrupted run.",
            rich_help_panel=ADVANCED,
        ),
    ] = 0,
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size",
            "-b",
            help="Number of tokens evaluated at once (0: one chunk). A smaller value takes less memory.",
            rich_help_panel=ADVANCED,
        ),
    ] = 0,
    parse_special: Annotated[
        bool,
        typer.Option(
            "--parse-special",
            help="Parse special tokens in the text, such as <|im_start|>; for texts of chats.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    n_gpu_layers: GpuLayers = 0,
    threads: Threads = 0,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Compute an importance matrix from a text, for `quantize`.

    It runs llama.cpp's llama-imatrix, which evaluates the text in chunks. MTP heads of Qwen3.5, 3.6, 3.8 and Qwen3-Next
    get statistics too.
    """
    from llama_eagle.files import refuse_existing
    from llama_eagle.quantize import collect as collector

    if n_gpu_layers:
        warn_without_gpu(n_gpu_layers)
    options = collector.CollectOptions(
        n_ctx=ctx_size,
        n_chunks=chunks,
        first_chunk=from_chunk,
        n_batch=batch_size,
        threads=threads,
        n_gpu_layers=n_gpu_layers,
        earlier=tuple(in_file or ()),
        parse_special=parse_special,
        verbose=verbose,
        on_partial=_tell_how_to_continue,
    )
    refuse_existing([out], overwrite)
    model = target.file()
    with progress("collecting", after_s=1.0) as on_progress:
        report = collector.collect(model, file, out, replace(options, progress=on_progress))
    _print_matrix(out, report, json)


def _print_matrix(out: Path, report: CollectReport, json: bool) -> None:
    for warning in report.warnings:
        console.warn(warning)
    if json:
        console.result({**asdict(report), "output": str(out)})
    else:
        quality = "" if report.perplexity is None else f", perplexity {report.perplexity:.4g}"
        console.data(f"{out}: {report.n_matrices} matrices, {report.n_chunks} chunks{quality}")


def _tell_how_to_continue(partial: Path, next_chunk: int) -> None:
    console.warn(f"{partial} holds what was collected. Continue with --in-file {partial} --from-chunk {next_chunk}.")


def _pairs(options: list[str]) -> Any:
    pairs = [option.rpartition("=") for option in options]
    for pattern, separator, kind in pairs:
        if not (pattern and separator and kind):
            raise UsageError(f"--tensor-type {pattern + separator + kind!r}: give PATTERN=TYPE, such as ffn_down=q6_k.")
    return {pattern: kind for pattern, _, kind in pairs}
