"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, also for failures.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show llama.cpp's log on stderr.")]
TargetFile = Annotated[Path, typer.Option("--model", "-m", metavar="TARGET.gguf", help="The target model.")]
DraftFile = Annotated[
    Path | None, typer.Option("--draft", "-d", metavar="DRAFT.gguf", help="Its EAGLE-3 draft; none: plain decoding.")
]
GpuLayers = Annotated[int, typer.Option("--n-gpu-layers", "-ngl", help="Layers on the GPU, -1: all.")]
Threads = Annotated[int, typer.Option("--threads", "-t", min=0, max=512, help="CPU threads, 0: all cores.")]
DraftGpuLayers = Annotated[int | None, typer.Option(help="The draft's; default: as the target.")]
DraftCtxSize = Annotated[int, typer.Option(min=0, help="Positions the draft sees, 0: as the target.")]
NDraft = Annotated[str, typer.Option(metavar="K|auto", help="Tokens drafted in a round.")]
NDraftMax = Annotated[int, typer.Option(min=1, help="Longest draft: how far a recurrent state can be taken back.")]
PMin = Annotated[float, typer.Option(help="End a draft when its probability falls below this.")]
