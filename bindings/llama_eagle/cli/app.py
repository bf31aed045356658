"""The table of commands. A command's module imports its dependencies when it runs, so that `--help` is fast."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable
from functools import cache
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
from llama_eagle.errors import UsageError

# Command -> function and example, in the order of docs/commands.md. The first sentence of a command's help must fit a
# line of 80 columns.
COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "run": (run.run, "llama-eagle run Qwen/Qwen3-8B"),
    "chat": (chat.chat, "llama-eagle chat -m target.gguf -d draft.gguf"),
    "generate": (generate.generate, 'llama-eagle generate -m target.gguf -p "Why is the sky blue?"'),
    "serve": (serve.serve, "llama-eagle serve -m target.gguf -d draft.gguf --port 8000"),
    "answer": (answer.answer, "llama-eagle answer prompts.jsonl -m target.gguf -o answers.jsonl --parallel 8"),
    "pull": (run.pull, "llama-eagle pull Qwen/Qwen3-8B"),
    "list": (run.list_models, "llama-eagle list"),
    "remove": (run.remove, "llama-eagle remove Qwen/Qwen3-8B:q4_k_m"),
    "pairs": (run.pairs, "llama-eagle pairs"),
    "convert": (convert.convert, "llama-eagle convert Qwen/Qwen3-8B -o qwen3-8b.gguf --outtype q4_k_m"),
    "quantize": (quantize.quantize, "llama-eagle quantize model-f16.gguf model-q4_k_m.gguf q4_k_m"),
    "imatrix": (quantize.imatrix, "llama-eagle imatrix -m model-f16.gguf -f text.txt -o imatrix.gguf"),
    "export": (convert.export, "llama-eagle export draft.gguf --target Qwen/Qwen3-8B --to vllm -o qwen3-8b-eagle3"),
    "train": (train.train, "llama-eagle train --target Qwen/Qwen3-0.6B --data chats.jsonl -o my-draft"),
    "check": (check.check, "llama-eagle check target.gguf draft.gguf"),
    "inspect": (inspect.inspect, "llama-eagle inspect model.gguf"),
    "evaluate": (evaluate.evaluate, "llama-eagle evaluate -m target.gguf -d draft.gguf --data chat --limit 10"),
    "bench": (bench.bench, "llama-eagle bench --synthetic 0.8b --n-draft 2,4,auto"),
    "demo": (demo.demo, "llama-eagle demo --no-padded"),
    "rpc-server": (serve.rpc_server, "llama-eagle rpc-server --host 192.168.1.20 --port 50052"),
    "doctor": (inspect.doctor, "llama-eagle doctor"),
}
METAVARS = {str: "TEXT", Path: "PATH", int: "N", float: "X"}  # for options that name none
ABOUT = "Run GGUF models faster with speculative decoding (EAGLE-3, MTP, prompt look-up), on llama.cpp."


class Command(typer.core.TyperCommand):
    """A command whose help lists options by panel: first those without one, then "Advanced"."""

    def make_parser(self, ctx: Any) -> Any:
        """Return click's parser, which takes the last of several values. It refuses two drafters, but for `-d none`."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            values, others, order = parse(args)
            if sum(parameter.name == "draft" for parameter in order) > 1 and values["draft"] != "none":
                raise UsageError("--draft names two drafters. Name one; --lookup adds prompt look-up to a draft model.")
            return values, others, order

        parser.parse_args = parse_args
        return parser

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                name = re.sub(r" <[][\w]+>$", "", record[0])  # typer adds an argument's Python type
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append((name, record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command() -> Any:
    """Return the click command of `llama-eagle`, with the defaults of the user's configuration file."""
    from llama_eagle.cli.config import read_defaults

    root = _root_command()
    root.context_settings["default_map"] = read_defaults(root.commands)
    return root


@cache
def _root_command() -> Any:
    app = typer.Typer(
        help=ABOUT,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": sys.maxsize},  # the terminal's
    )
    for name, (function, example) in COMMANDS.items():
        app.command(name, cls=Command, epilog=f"Example: {example}")(_with_metavars(function))
    app.callback()(_root)
    return typer.main.get_command(app)


def _with_metavars(function: Callable[..., None]) -> Callable[..., None]:
    """Give each option without a metavar one of METAVARS, in place of a Python type."""
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


def _list_devices(wanted: bool) -> None:
    if wanted:
        from llama_eagle.diagnosis import devices

        for device in devices():
            print(f"{device['name']}: {device['description']}, {device['free_mib']} of {device['total_mib']} MiB free")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    list_devices: bool = typer.Option(
        False,
        "--list-devices",
        callback=_list_devices,
        is_eager=True,
        help="Print the devices that models can run on, with their free memory, and exit.",
    ),
) -> None:
    pass
