"""The table of commands. A command's module is imported if it is named, and its dependencies when it runs."""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import typer

from llama_eagle.errors import UsageError

# The commands in the order of docs/commands.md: module and function, the first sentence of the help, and an example.
# The sentence must fit a line of 80 columns.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": (
        "run.run",
        "Download and convert a model if necessary, and chat with it.",
        "llama-eagle run Qwen/Qwen3-8B",
    ),
    "chat": (
        "chat.chat",
        "Chat with a model on the terminal.",
        "llama-eagle chat -m target.gguf -d draft.gguf",
    ),
    "generate": (
        "generate.generate",
        "Answer one prompt and exit.",
        'llama-eagle generate -m target.gguf -p "Why is the sky blue?"',
    ),
    "serve": (
        "serve.serve",
        "Serve a model over OpenAI and Anthropic APIs and a chat page.",
        "llama-eagle serve -m target.gguf -d draft.gguf --port 8000",
    ),
    "answer": (
        "answer.answer",
        "Answer a file of prompts, several at the same time.",
        "llama-eagle answer prompts.jsonl -m target.gguf -o answers.jsonl --parallel 8",
    ),
    "pull": (
        "run.pull",
        "Download and convert a model and its draft.",
        "llama-eagle pull Qwen/Qwen3-8B",
    ),
    "list": (
        "run.list_models",
        "List the models on the disk.",
        "llama-eagle list",
    ),
    "remove": (
        "run.remove",
        "Delete models from the disk, after a question on a terminal.",
        "llama-eagle remove Qwen/Qwen3-8B:q4_k_m",
    ),
    "pairs": (
        "run.pairs",
        "List published drafts with their targets, kinds and sizes.",
        "llama-eagle pairs",
    ),
    "convert": (
        "convert.convert",
        "Convert a model, a draft model or a LoRA adapter to GGUF.",
        "llama-eagle convert Qwen/Qwen3-8B -o qwen3-8b.gguf --outtype q4_k_m",
    ),
    "quantize": (
        "quantize.quantize",
        "Quantize a GGUF file with llama.cpp's quantizer.",
        "llama-eagle quantize model-f16.gguf model-q4_k_m.gguf q4_k_m",
    ),
    "imatrix": (
        "quantize.imatrix",
        "Compute an importance matrix from a text, for `quantize`.",
        "llama-eagle imatrix -m model-f16.gguf -f text.txt -o imatrix.gguf",
    ),
    "export": (
        "convert.export",
        "Export an EAGLE-3 draft for vLLM, SGLang or speculators.",
        "llama-eagle export draft.gguf --target Qwen/Qwen3-8B --to vllm -o qwen3-8b-eagle3",
    ),
    "train": (
        "train.train",
        "Train an EAGLE-3 or DSpark draft, or a target's MTP head.",
        "llama-eagle train --target Qwen/Qwen3-0.6B --data chats.jsonl -o my-draft",
    ),
    "check": (
        "check.check",
        "Check a model, or whether a draft fits its target.",
        "llama-eagle check target.gguf draft.gguf",
    ),
    "inspect": (
        "inspect.inspect",
        "Show architecture, metadata and tensors of a GGUF file.",
        "llama-eagle inspect model.gguf",
    ),
    "evaluate": (
        "evaluate.evaluate",
        "Measure a drafter's acceptance rate and speed on prompts.",
        "llama-eagle evaluate -m target.gguf -d draft.gguf --data chat --limit 10",
    ),
    "bench": (
        "bench.bench",
        "Measure decoding speed without drafts and by draft length.",
        "llama-eagle bench --synthetic 0.8b --n-draft 2,4,auto",
    ),
    "demo": (
        "demo.demo",
        "Show speculative decoding with two small models.",
        "llama-eagle demo",
    ),
    "rpc-server": (
        "serve.rpc_server",
        "Lend this machine's memory and processors to other machines.",
        "llama-eagle rpc-server --host 192.168.1.20 --port 50052",
    ),
    "doctor": (
        "inspect.doctor",
        "Show versions, CPU cores and devices.",
        "llama-eagle doctor",
    ),
}
METAVARS = {str: "TEXT", Path: "PATH", int: "N", float: "X"}  # for options that name none
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
PLAIN_NUMBERS = {int: re.compile(r"-?[0-9]{1,18}"), float: re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?")}
ABOUT = "Run GGUF models faster with speculative decoding (EAGLE-3, MTP, prompt look-up), on llama.cpp."


class _WithPlainValues(typer.core.TyperCommand if TYPE_CHECKING else object):  # type: ignore[misc]
    """A command whose plain values need no conversion."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)
        for parameter in parameters:
            _accept_plain_values(parameter)
        return parameters


class Command(_WithPlainValues, typer.core.TyperCommand):
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


class Group(_WithPlainValues, typer.core.TyperGroup):
    """The root, whose help lists the commands without importing them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary, _) in COMMANDS.items()])


class Commands(Mapping[str, Any]):
    """click's commands by name, each made when it is asked for."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            place, _, example = COMMANDS[name]
            module, _, function = place.partition(".")
            app = typer.Typer(add_completion=False, **PLAIN)
            made = getattr(import_module(f"llama_eagle.cli.commands.{module}"), function)
            app.command(name, cls=Command, epilog=f"Example: {example}")(_with_metavars(made))
            self.made[name] = typer.main.get_command(app)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


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
        cls=Group,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": sys.maxsize},  # the terminal's
        **PLAIN,
    )
    app.callback()(_root)
    root: Any = typer.main.get_command(app)
    root.commands = Commands()
    return root


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


def _accept_plain_values(parameter: Any) -> None:
    """Accept absent and plain values of a parameter without typer's conversion, which imports pydantic.

    That takes as long as all other imports of a command. Typer converts, or refuses, every other value.
    """
    typed = getattr(parameter, "type_descriptor", None)  # of the typer versions that use pydantic
    if typed is None or "process_value" in vars(parameter):
        return
    kind, info, convert = typed.annotation, typed.parameter_info, parameter.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        if value is None and kind is bool and parameter.callback is not None:
            return parameter.callback(ctx, parameter, None)
        if parameter.callback is not None:
            return convert(ctx, value)
        if value is None and not parameter.required:
            return () if parameter.multiple or parameter.nargs == -1 else None
        if info.parser is not None:
            with suppress(Exception):
                return info.parser(value)
            return convert(ctx, value)  # calls it again, and reports the error
        if kind is Path and isinstance(value, str):
            return Path(value)
        if kind in PLAIN_NUMBERS and isinstance(value, str) and PLAIN_NUMBERS[kind].fullmatch(value):
            value = kind(value)
        is_plain = type(value) is kind and kind in (bool, str, int, float)
        return value if is_plain and _is_inside(info, value) else convert(ctx, value)

    parameter.process_value = process_value


def _is_inside(info: Any, value: Any) -> bool:
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)


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
