"""`llama-eagle check TARGET.gguf [DRAFT.gguf]`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle.cli import output
from llama_eagle.cli.options import Json

CHECK_FAILED = 5


def check(
    target: Annotated[Path, typer.Argument(metavar="TARGET.gguf")],
    draft: Annotated[Path | None, typer.Argument(metavar="DRAFT.gguf")] = None,
    json: Json = False,
) -> None:
    """Say whether a file is sound, and whether a draft fits a target; exit 5 when it does not."""
    from llama_eagle.convert.check import check_models

    report = check_models(target, draft)
    problems = [finding.message for finding in report.findings if finding.level == "error"]
    for finding in report.findings:
        if finding.level == "warning":
            output.warn(f"{draft}: {finding.message}")
    if json:
        output.result(report.to_json() | {"problems": problems})
    elif problems:
        output.data("\n".join(f"{draft}: {problem}" for problem in problems))
    elif draft is None:
        output.data(f"{target}: a sound {report.target['architecture']} model")
    else:
        output.data(f"{draft} fits {target}")
    if problems:
        raise typer.Exit(CHECK_FAILED)
