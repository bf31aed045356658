"""`llama-eagle serve` and `llama-eagle rpc-server`"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import (
    CONTEXT_HELP,
    FLAGS,
    ParseSpecial,
    ServedComputing,
    ServedDrafting,
    TargetOption,
    Threads,
    Verbose,
    Vision,
    Yes,
    find_model,
    in_flags,
)
from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.files import read_json_or_yaml

if TYPE_CHECKING:
    from llama_eagle.gguf.header import Header
    from llama_eagle.serving.llama_server.options import ServerOptions

ALIASES = {"draft_path": "--draft"}  # another name of a key in a configuration file -> its option


@dataclass(frozen=True)
class Address:
    """Address of the server and its access control."""

    host: Annotated[
        str, typer.Option(help="Address to listen on: an IP address, a host name, or a file name ending in .sock.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on (0: any free port).")] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="LLAMA_EAGLE_API_KEY",
            help="Key that clients must send (default: none). Required if --host is not a loopback address.",
        ),
    ] = None
    no_api_key: Annotated[bool, typer.Option("--no-api-key", help="Allow other machines to connect without a key.")] = (
        False
    )


@dataclass(frozen=True)
class Vectors:
    """Modes without generated text."""

    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Compute embeddings (/v1/embeddings) instead of generating text.")
    ] = False
    reranking: Annotated[
        bool, typer.Option("--reranking", help="Score documents (/v1/rerank) with a reranking model.")
    ] = False

    def extra(self) -> tuple[str, ...]:
        """Return llama-server's arguments of these modes."""
        return tuple(f"--{field.name}" for field in fields(self) if getattr(self, field.name))


@dataclass(frozen=True)
class Pool:
    """Several models behind one address."""

    models: Annotated[
        str | None,
        typer.Option(
            metavar="all|FOLDER",
            help="Serve the models that `llama-eagle list` shows (all), or those of a folder, instead of --model. A "
            "request loads the model that it names.",
        ),
    ] = None
    max_memory: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="GIB",
            help="Memory of all loaded models in GiB: the least recently used ones are unloaded (default: what is free "
            "at the start).",
        ),
    ] = None


OWN = ("--models", "--max-memory", "--host", "--port", "--api-key")  # options that servers of single models do not get


def arguments_of_servers(given: Sequence[str]) -> list[str]:
    """Return the arguments of `serve` for the server of one of several models."""
    from llama_eagle.serving.settings import without_keys

    options, extra = [*given], []
    if "--" in options:
        at = options.index("--")
        options, extra = options[:at], options[at:]
    kept, is_value = [], False
    for option in options:
        is_left_out, is_value = is_value, option in OWN
        if not is_left_out and option.partition("=")[0] not in (*OWN, "--no-api-key"):
            kept.append(option)
    return [*kept, *without_keys(extra)]


@grouped
def serve(
    *,
    context: typer.Context,
    model: Annotated[str | None, TargetOption] = None,
    yes: Yes = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON or YAML file with the model, its draft and their options, instead of --model (see "
            "docs/server.md). Options on the command line take precedence over it.",
        ),
    ] = None,
    pool: Pool,
    address: Address,
    vision: Vision,
    drafting: ServedDrafting,
    computing: ServedComputing,
    ctx_size: Annotated[
        int | None,
        typer.Option("--ctx-size", "-c", min=0, help=f"Context size of each conversation in tokens {CONTEXT_HELP}"),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", "-np", help="Maximum number of conversations at the same time, 1 to 16.")
    ] = 4,
    cache_disk: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Keep the computed prompts of conversations on disk, up to SIZE for all models together (8G), so "
            "that the next start does not read them again (0: off). The files contain these texts; only this user can "
            "read them.",
        ),
    ] = "0",
    vectors: Vectors,
    parse_special: ParseSpecial = True,
    verbose: Verbose = False,
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- LLAMA-SERVER-OPTIONS", help="Further options, passed to llama-server unchanged."),
    ] = None,
) -> None:
    """Serve a model over OpenAI and Anthropic APIs and a chat page.

    Requests go to llama.cpp's llama-server, with the kernels and drafters of this project.
    """
    if [model, config, pool.models].count(None) != 2:
        raise UsageError("give one of --model (and --draft), --models and --config.")
    from llama_eagle.serving.llama_server import options as serving

    options = serving.ServerOptions(
        model=model or "",
        drafting=drafting.options(),
        mmproj=vision.mmproj,
        context=computing.context(ctx_size or 1, 0),
        n_ctx=ctx_size,
        load=computing.load(),
        host=address.host,
        port=address.port,
        api_key=address.api_key,
        open_to_all=address.no_api_key,
        parallel=parallel,
        cache_disk=serving.read_cache_disk(cache_disk),
        parse_special=parse_special,
        verbose=verbose,
        extra=(*vectors.extra(), *(extra or ())),
    )
    if config is not None:
        options = serving.from_config(config, read_json_or_yaml(config), options, _keys_on_command_line(context))
    require_free(options.host, options.port)
    raise typer.Exit(_serve_one(options, yes) if pool.models is None else _serve_several(options, pool))


def _serve_one(options: ServerOptions, yes: bool) -> int:
    from llama_eagle.drafting.resolve import without_effect
    from llama_eagle.serving.llama_server.child import new_child
    from llama_eagle.serving.llama_server.options import check, server_args, server_env
    from llama_eagle.serving.llama_server.process import start_server, until_end
    from llama_eagle.serving.settings import for_child, front_settings

    served = check(replace(options, model=find_model(options.model, yes, options.drafting)))
    if problem := without_effect(served.drafts):
        console.warn(f"{problem}: --draft, --lookup.")
    settings = front_settings(served)
    saves: list[Callable[[], object]] = []
    with new_child() as child:
        of_child = for_child(served, child)
        process = start_server(server_args(of_child), server_env(of_child))

        def follow(is_ending: Callable[[], bool]) -> str:
            from llama_eagle.serving.front import run  # imports a web framework while the child loads the model

            about = f"serving {_name(served.target)}; {in_flags(served.why)}"
            return run(served, settings, child, process, about, saves.append, is_ending)

        return until_end(process, follow, "See --verbose.", lambda: [save() for save in saves])


def _serve_several(options: ServerOptions, pool: Pool) -> int:
    from llama_eagle.serving.pool.front import offered, run_pool

    limit = None if pool.max_memory is None else int(pool.max_memory * 2**30)
    return run_pool(options, offered(str(pool.models)), limit, arguments_of_servers(sys.argv[2:]))


def _keys_on_command_line(context: typer.Context) -> set[str]:
    """Return the keys of a configuration file whose options are on the command line."""
    from llama_eagle.serving.llama_server.options import CONFIG_KEYS

    flags = set()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            flags.update(parameter.opts)
    return {key for key in CONFIG_KEYS if ALIASES.get(key, FLAGS.get(key, f"--{key}")) in flags}


def _name(target: Header) -> str:
    """Return the name of the file, followed by that of the model if the file has one."""
    name = target.keys.get("general.name")
    return f"{target.path.name} ({name})" if name else target.path.name


def require_free(host: str, port: int) -> None:
    """Bind the address once, so that an occupied one is reported before a model is loaded.

    A socket file that a server has left behind is removed. Raises `EnvironmentFailure`.
    """
    if host.endswith(".sock"):
        _require_free_file(Path(host))
        return
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except (OSError, UnicodeError) as error:  # the second: no valid host name
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentFailure(
            f"cannot listen on {host}:{port} ({reason}). Choose another --host or --port."
        ) from None


def _require_free_file(path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):  # Python on Windows
        return
    if path.exists() and not path.is_socket():
        raise EnvironmentFailure(f"cannot listen on {path}: the file exists and is no socket. Choose another --host.")
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        path.unlink()
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot listen on {path} ({error.strerror or error}). Choose another --host."
        ) from None


def _is_served(path: Path) -> bool:
    """Return True if a program listens on a socket file. Raises `OSError` if this cannot be determined."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def rpc_server(
    host: Annotated[str, typer.Option(help="IPv4 address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 50052,
    threads: Threads = 0,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Devices to offer, by the names of `llama-eagle --list-devices` (default: the GPUs, else the CPU).",
        ),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="Cache received weights on disk, so that the next load does not send them again."),
    ] = False,
) -> None:
    """Lend this machine's memory and processors to other machines.

    They use it with --rpc HOST:PORT. This is ggml's RPC server. It is experimental and not secure: there is no password
    and no encryption. Anyone who can connect to the port can make this process read, write and execute data of their
    choice. Never expose it to a network that you do not trust. It serves one client at a time.
    """
    from llama_eagle.native.processor.threads import n_threads
    from llama_eagle.serving.llama_server.process import run_rpc_server

    if not host or ":" in host:
        raise UsageError(f"--host: {host!r} is no IPv4 address. Correct it.")
    address = "127.0.0.1" if host == "localhost" else host
    require_free(address, port)
    arguments = ["--host", address, "--port", str(port), "--threads", str(n_threads(threads))]
    arguments += ["--device", device] if device else []
    arguments += ["--cache"] if cache else []
    reached = "127.0.0.1" if address == "0.0.0.0" else address
    raise typer.Exit(run_rpc_server(arguments, f"{reached}:{port}"))
