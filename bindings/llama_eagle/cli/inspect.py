"""`llama-eagle inspect FILE.gguf`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle.cli import output
from llama_eagle.cli.options import Json


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf")],
    full: Annotated[bool, typer.Option("--full", help="Show long arrays, such as the tokenizer's, in full.")] = False,
    json: Json = False,
) -> None:
    """Show a GGUF file's architecture, keys and tensors."""
    from llama_eagle.describe import describe, render

    description = describe(file, full=full)
    if json:
        output.result(description)
    else:
        output.data(render(description))
