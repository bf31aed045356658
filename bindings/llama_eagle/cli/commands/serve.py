"""`llama-eagle serve`"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import CHAT_CONTEXT, Computing, Drafting, Verbose
from llama_eagle.errors import EnvironmentFailure, UsageError


@dataclass(frozen=True)
class Address:
    """Where to listen, and for whom."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000
    api_key: Annotated[str | None, typer.Option(envvar="LLAMA_EAGLE_API_KEY", help="Clients must present it.")] = None


@grouped
def serve(
    address: Address,
    drafting: Drafting,
    computing: Computing,
    model: Annotated[
        Path | None, typer.Option("--model", "-m", metavar="TARGET.gguf", help="The target model.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Instead: JSON or YAML with models and their drafts.")] = None,
    ctx_size: Annotated[int, typer.Option("--ctx-size", "-c", min=0, help="Tokens, 0: the model's.")] = CHAT_CONTEXT,
    chat_format: Annotated[str | None, typer.Option(help="llama-cpp-python's name of a chat format.")] = None,
    verbose: Verbose = False,
) -> None:
    """Serve the OpenAI API with a draft behind it.

    It is llama-cpp-python's server.
    """
    if (model is None) == (config is None):
        raise UsageError("give either --model (and --draft) or --config.")
    from llama_eagle.drop_in.options import from_options
    from llama_eagle.drop_in.server import EagleModelSettings, ServerSettings, create_app, read_config

    if config is not None:
        settings = read_config(config)
        server, models = ServerSettings.model_validate(settings.model_dump(exclude={"models"})), settings.models
    else:
        server = ServerSettings(host=address.host, port=address.port, api_key=address.api_key)
        options = from_options(drafting.options(), computing.context(max(ctx_size, 1), 0), computing.n_gpu_layers)
        given = {"model": str(model), "n_ctx": ctx_size, "chat_format": chat_format, "verbose": verbose}
        models = [EagleModelSettings(**{**options, **given})]
    listener = _listen(server.host, server.port)  # before a model is loaded for nothing
    _run(create_app(server, models), listener, server, verbose)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot listen on {host}:{port} ({error.strerror or error}). Choose another --host or --port."
        ) from None
    return listener


def _run(app: Any, listener: socket.socket, server: Any, verbose: bool) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="info" if verbose else "warning",
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
    )
    scheme = "https" if server.ssl_certfile else "http"
    listener.listen()  # whoever reads the line may connect at once
    console.data(f"listening on {scheme}://{server.host}:{listener.getsockname()[1]}")
    uvicorn.Server(config).run(sockets=[listener])
