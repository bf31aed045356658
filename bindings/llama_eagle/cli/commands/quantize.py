"""`llama-eagle quantize IN.gguf OUT.gguf TYPE`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import ADVANCED, Json, Overwrite, Threads
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
        Path | None, typer.Option(help="Importance matrix of llama.cpp; required for types below 3 bits.")
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
    if missing := report.without_matrix:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        console.warn(f"{imatrix} has no entry for {names}: these get a type that needs no importance matrix")
    if json:
        console.result({"output": str(out), "outtype": outtype.lower(), "n_bytes": report.n_bytes})
    else:
        console.data(f"{out}: {outtype.lower()}, {console.size(report.n_bytes)}")


def _pairs(options: list[str]) -> Any:
    pairs = [option.partition("=") for option in options]
    for pattern, separator, kind in pairs:
        if not (pattern and separator and kind):
            raise UsageError(f"--tensor-type {pattern + separator + kind!r}: give PATTERN=TYPE, such as ffn_down=q6_k.")
    return {pattern: kind for pattern, _, kind in pairs}
