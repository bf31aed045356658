"""`llama-eagle inspect MODEL` and `llama-eagle doctor`"""

from __future__ import annotations

from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import KEPT_HELP, Devices, Json, find_kept


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"Model to show: {KEPT_HELP}.")],
    full: Annotated[bool, typer.Option("--full", help="Show long arrays, such as the vocabulary, in full.")] = False,
    json: Json = False,
) -> None:
    """Show architecture, metadata and tensors of a GGUF file."""
    from llama_eagle.gguf.describe import describe, render

    file = find_kept(model)
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
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help=f"Show on which device each layer of this model would be placed: {KEPT_HELP}.",
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

    report = examine(devices.load(), None if model is None else find_kept(model), memory)
    if json:
        console.result(report)
    else:
        console.prose(render(report), hang=NAME + 1)
    if report["problems"]:
        raise typer.Exit(4)
