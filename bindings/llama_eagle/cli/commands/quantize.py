"""`llama-eagle quantize IN.gguf OUT.gguf TYPE` and `llama-eagle imatrix`"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import (
    ADVANCED,
    GpuLayers,
    Json,
    Overwrite,
    TargetFile,
    Threads,
    Verbose,
    warn_without_gpu,
)
from llama_eagle.errors import UsageError
from llama_eagle.progress import progress


def quantize(
    source: Annotated[Path, typer.Argument(metavar="IN.gguf", help="GGUF file to quantize, in f32, f16 or bf16.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="GGUF file to write.")],
    outtype: Annotated[str, typer.Argument(metavar="TYPE", help="Quantization type: q4_k_m, q5_k_m, q6_k, q8_0, ...")],
    output_type: Annotated[
        str | None,
        typer.Option(help="Type of the output matrix (default: chosen by TYPE).", rich_help_panel=ADVANCED),
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=T",
            help="Type of the tensors whose names match a regular expression, such as ffn_down=q6_k. May be repeated; "
            "the first match wins.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(help="Importance matrix, such as the `imatrix` command writes; required for types below 3 bits."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Named set of tensor types. speculation: higher precision where drafts lose most."),
    ] = None,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Accept input that is already quantized, which loses quality.")
    ] = False,
    threads: Threads = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Quantize a GGUF with llama.cpp's own quantizer."""
    from llama_eagle.files import refuse_existing
    from llama_eagle.quantize import quantize as quantizer

    options = quantizer.QuantizeOptions(
        output_type=output_type,
        tensor_types=_pairs(tensor_type or []),
        imatrix=imatrix,
        recipe=recipe,
        threads=threads,
        requantize=requantize,
    )
    refuse_existing([out], overwrite)
    with progress("quantizing", after_s=1.0) as on_progress:
        report = quantizer.quantize(source, out, outtype.lower(), replace(options, progress=on_progress))
    for warning in report.warnings:
        console.warn(warning)
    if json:
        lacking = {"without_matrix": report.without_matrix, "unused_experts": report.unused_experts}
        console.result({"output": str(out), "outtype": outtype.lower(), "n_bytes": report.n_bytes, **lacking})
    else:
        console.data(f"{out}: {outtype.lower()}, {console.size(report.n_bytes)}")


def imatrix(
    model: TargetFile,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.gguf", help="The importance matrix.")],
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="TEXT", help="Text to evaluate (UTF-8).")] = None,
    in_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Add the statistics of this matrix; may be repeated.")
    ] = None,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", help="Tokens of a chunk.")] = 512,
    chunks: Annotated[int, typer.Option(min=0, help="Chunks to evaluate, 0: the whole text.")] = 0,
    from_chunk: Annotated[
        int, typer.Option(min=0, help="Chunks to skip at the start of the text, to continue an interrupted run.")
    ] = 0,
    batch_size: Annotated[
        int,
        typer.Option("--batch-size", "-b", help="Tokens evaluated at once, 0: a chunk. Less takes less memory."),
    ] = 0,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Read special tokens in the text, such as those of a chat.")
    ] = False,
    n_gpu_layers: GpuLayers = 0,
    threads: Threads = 0,
    overwrite: Overwrite = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Collect an importance matrix on a text, for the quantizer.

    It is llama.cpp's llama-imatrix. The MTP head of Qwen3.5, Qwen3.6 and Qwen3-Next has statistics too.
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
    with progress("collecting", after_s=1.0) as on_progress:
        report = collector.collect(model, file, out, replace(options, progress=on_progress))
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
    pairs = [option.partition("=") for option in options]
    for pattern, separator, kind in pairs:
        if not (pattern and separator and kind):
            raise UsageError(f"--tensor-type {pattern + separator + kind!r}: give PATTERN=TYPE, such as ffn_down=q6_k.")
    return {pattern: kind for pattern, _, kind in pairs}
