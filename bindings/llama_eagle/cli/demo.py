"""`llama-eagle demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle.cli import output
from llama_eagle.cli.options import Json
from llama_eagle.limits import MAX_THREADS


def demo(
    work: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo's files go and stay.")] = Path("build/demo"),
    threads: Annotated[
        int, typer.Option("--threads", "-t", min=1, max=MAX_THREADS, help="CPU threads: it is tiny.")
    ] = 1,
    json: Json = False,
) -> None:
    """Convert and quantize a small trained pair, and answer questions with its draft and without."""
    from llama_eagle.demo.run import run_demo

    result = run_demo(work, threads, say=output.note)
    if json:
        output.result(result.as_dict())
    else:
        output.data(f"{result.prompt}\n\n{result.text}\n")
        output.table(result.table())
    if not result.as_promised:
        raise typer.Exit(5)
