"""`llama-eagle quantize IN.gguf OUT.gguf TYPE`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json, Overwrite, Threads
from llama_eagle.errors import UsageError
from llama_eagle.progress import progress


def quantize(
    source: Annotated[Path, typer.Argument(metavar="IN.gguf")],
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf")],
    outtype: Annotated[str, typer.Argument(metavar="TYPE", help="q4_k_m, q5_k_m, q6_k, q8_0, ...")],
    output_type: Annotated[str | None, typer.Option(help="Type of the output head.")] = None,
    tensor_type: Annotated[list[str] | None, typer.Option(metavar="PATTERN=T", help="Type by name.")] = None,
    imatrix: Annotated[Path | None, typer.Option(help="llama.cpp's importance matrix.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A named set of types by tensor, such as for speculation.")] = None,
    requantize: Annotated[bool, typer.Option("--requantize", help="Take quantized input; costs quality.")] = False,
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
        console.warn(f"{imatrix} has no entry for {names}: they are in a type that needs none")
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
