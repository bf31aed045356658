"""`llama-eagle demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json, Threads
from llama_eagle.errors import CHECK_FAILED


def demo(
    work: Annotated[Path, typer.Option(metavar="DIR", help="Where the demo's files go and stay.")] = Path("build/demo"),
    threads: Threads = 1,
    padded: Annotated[
        bool, typer.Option("--padded/--no-padded", help="Also at the cost of a 0.8B: a minute or two, 2.4 GB of disk.")
    ] = True,
    json: Json = False,
) -> None:
    """Convert a small trained pair, and answer with both its drafts.

    The same questions are answered without drafts, and the texts are compared: by the pair as it is, and padded with
    zeros to the cost of a 0.8B, where drafting pays.
    """
    from dataclasses import asdict

    from llama_eagle.demo.run import PADDED_STEPS, QUESTION, STEPS, compare_padded, convert_demo, run_demo, told
    from llama_eagle.progress import numbered

    say = numbered(STEPS + (PADDED_STEPS if padded else 0))
    files = convert_demo(work, say)
    if not json:
        console.data(f"{QUESTION} (what was drafted is in colour)\n")
    result = run_demo(files, threads, say, on_text=None if json else console.stream)
    if not json:
        console.table(result.table())
        console.prose(result.told())
    large = compare_padded(work, say) if padded else ()
    if json:
        console.result(result.as_dict() | ({"padded": [asdict(each) for each in large]} if large else {}))
    elif large:
        console.prose(told(large))
    if not result.as_promised or any(each.exact and not each.equal for each in large):
        raise typer.Exit(CHECK_FAILED)
