"""The table of commands. Command modules import what they need when they run: `--help` stays quick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from llama_eagle.cli.commands import (
    bench,
    chat,
    check,
    convert,
    demo,
    doctor,
    evaluate,
    generate,
    inspect,
    quantize,
    serve,
    train,
)

COMMANDS: dict[str, Callable[..., None]] = {
    "convert": convert.convert,
    "quantize": quantize.quantize,
    "train": train.train,
    "check": check.check,
    "demo": demo.demo,
    "bench": bench.bench,
    "evaluate": evaluate.evaluate,
    "generate": generate.generate,
    "chat": chat.chat,
    "serve": serve.serve,
    "inspect": inspect.inspect,
    "doctor": doctor.doctor,
}


def command() -> Any:
    """The click command behind `llama-eagle`."""
    app = typer.Typer(
        help="EAGLE-3 and MTP speculative decoding for quantized local models, on llama.cpp.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, function in COMMANDS.items():
        app.command(name)(function)
    app.callback()(_root)
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"llama-eagle {version('llama-eagle')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """EAGLE-3 and MTP speculative decoding for quantized local models, on llama.cpp."""
