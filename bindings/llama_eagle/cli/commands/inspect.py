"""`llama-eagle inspect FILE.gguf` and `llama-eagle doctor`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import Devices, Json


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="GGUF file to show.")],
    full: Annotated[bool, typer.Option("--full", help="Show long arrays, such as the vocabulary, in full.")] = False,
    json: Json = False,
) -> None:
    """Show architecture, metadata and tensors of a GGUF file."""
    from llama_eagle.gguf.describe import describe, render

    description = describe(file, full=full)
    for finding in description["findings"]:
        console.warn(f"{file}: {finding['message']}")
    if json:
        console.result(description)
    else:
        console.data(render(description, console.width()))


@grouped
def doctor(
    devices: Devices,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            metavar="TARGET.gguf",
            help="Show on which device each layer of this model would be placed.",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="Measure the memory bandwidth for two seconds, and show what it means for drafts."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show versions, CPU cores and devices.

    The exit code is 4 if there is a problem.
    """
    from llama_eagle.diagnosis import NAME, examine, render

    report = examine(devices.load(), model, memory)
    if json:
        console.result(report)
    else:
        console.prose(render(report), hang=NAME + 1)
    if report["problems"]:
        raise typer.Exit(4)
