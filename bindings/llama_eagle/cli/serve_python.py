"""`llama-eagle serve --python`: llama-cpp-python's server."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle import console
from llama_eagle.cli.options import Computing, Drafting, Vision

if TYPE_CHECKING:
    from llama_eagle.cli.commands.serve import Address


def serve_python(
    address: Address,
    vision: Vision,
    drafting: Drafting,
    computing: Computing,
    model: Path | None,
    config: Path | None,
    ctx_size: int,
    chat_format: str | None,
    verbose: bool,
) -> None:
    """One conversation in memory. For several models in one configuration, chat formats by name, rejection sampling."""
    from llama_eagle.cli.commands.serve import listen
    from llama_eagle.drop_in.options import from_options
    from llama_eagle.drop_in.server import EagleModelSettings, ServerSettings, create_app, read_config

    if config is not None:
        settings = read_config(config)
        server, models = ServerSettings.model_validate(settings.model_dump(exclude={"models"})), settings.models
    else:
        server = ServerSettings(host=address.host, port=address.port, api_key=address.api_key)
        options = from_options(drafting.options(), computing.context(max(ctx_size, 1), 0), computing.load())
        given = {
            "model": str(model), "n_ctx": ctx_size, "chat_format": chat_format, "verbose": verbose,
            "mmproj_path": None if vision.mmproj is None else str(vision.mmproj),
        }  # fmt: skip
        models = [EagleModelSettings(**{**options, **given})]
    listener = listen(server.host, server.port)  # before a model is loaded for nothing
    _run(create_app(server, models, open_to_all=address.no_api_key), listener, server, verbose)


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
