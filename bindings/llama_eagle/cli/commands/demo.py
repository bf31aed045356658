"""`llama-eagle demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json
from llama_eagle.native.limits import MAX_THREADS


def demo(
    work: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo's files go and stay.")] = Path("build/demo"),
    threads: Annotated[
        int, typer.Option("--threads", "-t", min=1, max=MAX_THREADS, help="CPU threads: it is tiny.")
    ] = 1,
    json: Json = False,
) -> None:
    """Convert a small trained pair, and answer with its draft.

    The same questions are answered without the draft, and the texts are compared.
    """
    from llama_eagle.demo.run import run_demo

    result = run_demo(work, threads, say=console.note)
    if json:
        console.result(result.as_dict())
    else:
        console.data(f"{result.prompt}\n\n{result.text}\n")
        console.table(result.table())
    if not result.as_promised:
        raise typer.Exit(5)
