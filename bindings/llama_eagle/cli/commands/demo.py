"""`llama-eagle demo`"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.options import Json, Threads
from llama_eagle.errors import CHECK_FAILED, EnvironmentFailure

if TYPE_CHECKING:
    from llama_eagle.demo.real import RealResult


def demo(
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the demo's files, which remain after it (default: in the cache)."),
    ] = None,
    threads: Threads = 0,
    real: Annotated[
        bool, typer.Option("--real/--no-real", help="Download SmolLM2-135M-Instruct (94 MB) and answer with it.")
    ] = True,
    padded: Annotated[
        bool,
        typer.Option(
            "--padded",
            help="Also run the small pair padded to the cost of a 0.8B model. Takes minutes and 2.5 GB of disk.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show speculative decoding with two small models.

    The demo answers every question with and without drafts and compares the texts. The real model is
    SmolLM2-135M-Instruct with prompt look-up. The small pair is a tiny model of Qwen3.5's architecture with an EAGLE-3
    draft and an MTP head. The demo converts and quantizes it.
    Unless --threads is given, the tiny model runs on one thread. With --padded it also runs padded with zeros to the
    cost of a 0.8B model, where drafts save time, on all cores.
    """
    from dataclasses import asdict

    from llama_eagle.demo.run import PADDED_STEPS, QUESTION, STEPS, compare_padded, convert_demo, run_demo, summary
    from llama_eagle.files import cache_dir
    from llama_eagle.progress import numbered

    work = work or cache_dir() / "demo"
    console.log(_about_files(work, real, padded))
    log_step = numbered(STEPS + (PADDED_STEPS if padded else 0) + (2 if real else 0))
    shown = _real(work, threads, log_step, json) if real else None
    files = convert_demo(work, log_step)
    streams = not json and shown is None
    if streams:
        console.data(f"{QUESTION.strip()}\n\n(drafted text is in colour)\n")
    result = run_demo(files, threads or 1, log_step, on_text=console.stream if streams else None)
    if not json:
        console.table(result.table())
    large = compare_padded(work, log_step) if padded else ()
    if json:
        found: dict[str, Any] = result.as_dict() | ({"padded": [asdict(each) for each in large]} if large else {})
        console.result(found | ({"real": shown.as_dict()} if shown else {}))
    elif large:
        console.prose(summary(large))
    is_equal = result.is_as_expected and all(each.equal or not each.exact for each in large)
    if not is_equal or (shown is not None and not shown.is_as_expected):
        raise typer.Exit(CHECK_FAILED)


def _about_files(work: Path, real: bool, padded: bool) -> str:
    """Name the folder of the demo's files, and their size in MB while the demo runs and after it."""
    from llama_eagle.demo.real import REAL_MB
    from llama_eagle.demo.run import PADDED_MB, PAIR_MB

    parts = [PAIR_MB, *([REAL_MB] if real else []), *([PADDED_MB] if padded else [])]
    kept = sum(part.kept for part in parts)
    peak = max(part.peak + sum(other.kept for other in parts if other is not part) for part in parts)
    return f"files: {work}, {kept} MB, up to {peak} MB during the demo"


def _real(work: Path, threads: int, log_step: Callable[[str], None], json: bool) -> RealResult | None:
    """Run the real model and show its results; return None with a warning if it cannot be downloaded."""
    from llama_eagle.demo.real import NAME, QUESTION, fetch_target, run_real

    log_step(f"downloading {NAME}")
    try:
        target = fetch_target(work / "smollm2")
    except EnvironmentFailure as failure:
        console.warn(f"{failure} The demo continues with the small pair.")
        return None
    if not json:
        console.data(f"{QUESTION.strip()}\n\n(drafted text is in colour)\n")
    shown = run_real(target, threads, log_step, on_text=None if json else console.stream)
    if not json:
        console.table(shown.table())
        console.data(f"tokens/s, all prompts\n{shown.bars()}")
    return shown
