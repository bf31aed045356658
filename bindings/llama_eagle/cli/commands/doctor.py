"""`llama-eagle doctor`"""

from __future__ import annotations

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json


def doctor(json: Json = False) -> None:
    """Show versions, library and devices; exit 4 if one is wrong."""
    from llama_eagle.diagnosis import examine, render

    report = examine()
    if json:
        console.result(report)
    else:
        console.data(render(report))
    if report["problems"]:
        raise typer.Exit(4)
