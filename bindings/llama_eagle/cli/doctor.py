"""`llama-eagle doctor`"""

from __future__ import annotations

import typer

from llama_eagle.cli import output
from llama_eagle.cli.options import Json


def doctor(json: Json = False) -> None:
    """Show versions, the library in use, CPU features and GPU backends; exit 4 when something is wrong."""
    from llama_eagle.doctor import examine, render

    report = examine()
    if json:
        output.result(report)
    else:
        output.data(render(report))
    if report["problems"]:
        raise typer.Exit(4)
