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
    from llama_eagle.compatibility import pair_problems, require_draft, require_target
    from llama_eagle.gguf_header import read_model

    header = read_model(target)[0]
    require_target(header)
    problems: list[str] = []
    if draft is not None:
        draft_header = read_model(draft)[0]
        require_draft(draft_header)
        problems = pair_problems(header, draft_header)
    if json:
        output.result({
            "target": str(target),
            "draft": None if draft is None else str(draft),
            "architecture": header.architecture,
            "compatible": not problems,
            "problems": problems,
        })
    else:
        subject = f"{target}: a sound {header.architecture} model" if draft is None else f"{draft} fits {target}"
        output.data("\n".join(f"{draft}: {problem}" for problem in problems) or subject)
    if problems:
        raise typer.Exit(CHECK_FAILED)
