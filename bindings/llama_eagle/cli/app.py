"""The table of commands. Command modules import what they need when they run: `--help` stays quick."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import typer

from llama_eagle.cli.commands import (
    answer,
    bench,
    chat,
    check,
    convert,
    demo,
    evaluate,
    generate,
    inspect,
    quantize,
    run,
    serve,
    train,
)

# Each with an example; the first words of its help fit into a line of 80 columns.
COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "convert": (convert.convert, "llama-eagle convert Qwen/Qwen3-8B -o qwen3-8b.gguf --outtype q4_k_m"),
    "export": (convert.export, "llama-eagle export draft.gguf --target Qwen/Qwen3-8B --to vllm -o qwen3-8b-eagle3"),
    "quantize": (quantize.quantize, "llama-eagle quantize model-f16.gguf model-q4_k_m.gguf q4_k_m"),
    "imatrix": (quantize.imatrix, "llama-eagle imatrix -m model-f16.gguf -f text.txt -o imatrix.gguf"),
    "train": (train.train, "llama-eagle train --target Qwen/Qwen3-0.6B --data chats.jsonl -o my-draft"),
    "check": (check.check, "llama-eagle check target.gguf draft.gguf"),
    "demo": (demo.demo, "llama-eagle demo --work build/demo"),
    "bench": (bench.bench, "llama-eagle bench --synthetic 0.8b --n-draft 2,4,auto"),
    "evaluate": (evaluate.evaluate, "llama-eagle evaluate -m target.gguf -d draft.gguf --data chat --limit 10"),
    "generate": (generate.generate, 'llama-eagle generate -m target.gguf -p "Why is the sky blue?"'),
    "answer": (answer.answer, "llama-eagle answer prompts.jsonl -m target.gguf -o answers.jsonl --parallel 8"),
    "chat": (chat.chat, "llama-eagle chat -m target.gguf -d draft.gguf"),
    "run": (run.run, "llama-eagle run Qwen/Qwen3-8B"),
    "pairs": (run.pairs, "llama-eagle pairs"),
    "serve": (serve.serve, "llama-eagle serve -m target.gguf -d draft.gguf --port 8000"),
    "rpc-server": (serve.rpc_server, "llama-eagle rpc-server --host 192.168.1.20 --port 50052"),
    "inspect": (inspect.inspect, "llama-eagle inspect model.gguf"),
    "doctor": (inspect.doctor, "llama-eagle doctor"),
}
METAVARS = {str: "TEXT", Path: "PATH", int: "N", float: "X"}  # of options that name none
ABOUT = "EAGLE-3 and MTP speculative decoding for quantized local models, on llama.cpp."


def command() -> Any:
    """The click command behind `llama-eagle`, with the defaults of the user's configuration file."""
    from llama_eagle.cli.config import read_defaults

    app = typer.Typer(
        help=ABOUT,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, (function, example) in COMMANDS.items():
        app.command(name, epilog=f"Example: {example}")(_with_metavars(function))
    app.callback()(_root)
    root: Any = typer.main.get_command(app)
    root.context_settings["default_map"] = read_defaults(root.commands)
    return root


def _with_metavars(function: Callable[..., None]) -> Callable[..., None]:
    """Its options say what they take by a word, not by a type of Python."""
    hints = typing.get_type_hints(function, include_extras=True)
    for hint in hints.values():
        if typing.get_origin(hint) is typing.Annotated:
            kind, option = typing.get_args(hint)
            kinds = [each for each in typing.get_args(kind) if each is not NoneType] or [kind]
            option.metavar = option.metavar or METAVARS.get(kinds[0])
    function.__annotations__ = hints
    return function


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"llama-eagle {version('llama-eagle')}")
        raise typer.Exit


def _devices(wanted: bool) -> None:
    if wanted:
        from llama_eagle.diagnosis import devices

        for device in devices():
            print(f"{device['name']}: {device['description']}, {device['free_mib']} of {device['total_mib']} MiB free")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    list_devices: bool = typer.Option(
        False, "--list-devices", callback=_devices, is_eager=True, help="Print what models can run on."
    ),
) -> None:
    """EAGLE-3 and MTP speculative decoding for quantized local models, on llama.cpp."""
