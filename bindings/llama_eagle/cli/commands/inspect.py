"""`llama-eagle inspect FILE.gguf`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf")],
    full: Annotated[bool, typer.Option("--full", help="Show long arrays, such as the tokenizer's, in full.")] = False,
    json: Json = False,
) -> None:
    """Show a GGUF file's architecture, keys and tensors."""
    from llama_eagle.gguf.describe import describe, render

    description = describe(file, full=full)
    for finding in description["findings"]:
        console.warn(f"{file}: {finding['message']}")
    if json:
        console.result(description)
    else:
        console.data(render(description, console.width()))
