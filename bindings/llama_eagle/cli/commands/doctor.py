"""`llama-eagle doctor`"""

from __future__ import annotations

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json


def doctor(json: Json = False) -> None:
    """Show versions, the library in use, CPU features and GPU backends; exit 4 when something is wrong."""
    from llama_eagle.diagnosis import examine, render

    report = examine()
    if json:
        console.result(report)
    else:
        console.data(render(report))
    if report["problems"]:
        raise typer.Exit(4)
