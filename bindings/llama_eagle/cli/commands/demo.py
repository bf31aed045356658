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
    padded: Annotated[
        bool, typer.Option("--padded", help="Also at the cost of a 0.8B: two minutes, 2.4 GB of disk.")
    ] = False,
    json: Json = False,
) -> None:
    """Convert a small trained pair, and answer with its draft.

    The same questions are answered without the draft, and the texts are compared.
    """
    from dataclasses import asdict

    from llama_eagle.demo.run import compare_padded, run_demo, told

    result = run_demo(work, threads, say=console.note)
    large = compare_padded(work, say=console.note) if padded else None
    if json:
        console.result(result.as_dict() | ({"padded": asdict(large)} if large else {}))
    else:
        console.data(f"{result.prompt}\n\n{result.text}\n")
        console.table(result.table())
        if large is not None:
            console.data(told(large))
    if not result.as_promised or (large is not None and large.exact and not large.equal):
        raise typer.Exit(5)
