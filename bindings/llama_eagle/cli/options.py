"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_eagle.errors import UsageError
from llama_eagle.native.limits import MAX_THREADS

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, also for failures.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show llama.cpp's log on stderr.")]
TargetFile = Annotated[Path, typer.Option("--model", "-m", metavar="TARGET.gguf", help="The target model.")]
DraftFile = Annotated[
    Path | None, typer.Option("--draft", "-d", metavar="DRAFT.gguf", help="Its EAGLE-3 draft; none: plain decoding.")
]
GpuLayers = Annotated[int, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU, -1: all.")]
Threads = Annotated[int, typer.Option("--threads", "-t", min=0, max=MAX_THREADS, help="CPU threads, 0: all cores.")]
DraftGpuLayers = Annotated[int | None, typer.Option(help="The draft's; default: as the target.")]
DraftCtxSize = Annotated[int, typer.Option(min=0, help="Positions the draft sees, 0: as the target.")]
NDraft = Annotated[str, typer.Option(metavar="K|auto", help="Tokens drafted in a round.")]
NDraftMax = Annotated[int, typer.Option(min=1, help="Longest draft: how far a recurrent state can be taken back.")]
PMin = Annotated[float, typer.Option(help="End a draft when its probability falls below this.")]


def read_n_draft(text: str) -> int | str:
    """A number of 0 or more, or "auto". Raises `UsageError` for anything else."""
    if text == "auto":
        return text
    if not text.isdigit():
        raise UsageError(f"draft length {text!r} (--n-draft): give a number of 0 or more, or auto.")
    return int(text)


def read_layers(text: str | None) -> tuple[int, ...] | None:
    """The numbers of --aux-layers. Raises `UsageError` for anything else."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--aux-layers {text!r}: give numbers separated by commas, such as 2,12,21.") from None
