"""The front of several models: requests go to the server of the model that they name."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Scope, Send

from llama_eagle import console
from llama_eagle.drafting.resolve import resolve
from llama_eagle.errors import EagleError, InputError, UsageError
from llama_eagle.gguf import names
from llama_eagle.gguf.describe import file_type
from llama_eagle.gguf.header import read_header, read_model
from llama_eagle.gguf.size import DraftContext, Slots, available_bytes, draft_bytes, kv_bytes
from llama_eagle.native.programs import PATIENCE, ending_signals
from llama_eagle.serving.api_errors import Refusal
from llama_eagle.serving.apis.models import PATH, described, one_of
from llama_eagle.serving.front import listener_on, serve_until, url_of
from llama_eagle.serving.http import HEALTH, Front
from llama_eagle.serving.llama_server.child import Child
from llama_eagle.serving.llama_server.options import Checked, ServerOptions
from llama_eagle.serving.llama_server.process import INTERRUPTED
from llama_eagle.serving.ollama.bodies import model_name, read_body
from llama_eagle.serving.ollama.models import NEVER, listed, shown
from llama_eagle.serving.ollama.routes import is_unload, loaded, version
from llama_eagle.serving.pool.models import GIB, ModelPool, Offered, Server, not_loaded
from llama_eagle.serving.requests.json_body import read_json_body, without_nulls
from llama_eagle.serving.saved.saved_prompts import END_S
from llama_eagle.serving.settings import FrontSettings, settings_of
from llama_eagle.sessions.options import CACHE_TYPES
from llama_eagle.store.find import is_target
from llama_eagle.store.models import models as on_the_disk

ALL = "all"  # instead of a folder: the models that `llama-eagle list` shows
OF_A_SERVER = 128 << 20  # bytes of its processes, and of computations with a small model
IS_READY = {"status": "ok"}


def offered(where: str) -> list[Offered]:
    """Return the models of a folder, or `ALL` on the disk. Raises `UsageError` if there are none."""
    if where == ALL:
        found = [
            Offered(model.name, model.files[0], model.n_bytes, int(model.changed))
            for model in on_the_disk()
            if model.files and model.drafts_for is None
        ]
    else:
        found = [*_in_folder(Path(where).expanduser())]
    if not found:
        raise UsageError(f"--models {where}: no models. Give a folder with GGUF files, or fetch one: llama-eagle pull")
    return found


def _in_folder(folder: Path) -> list[Offered]:
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*.gguf"))}
    found = []
    for first in names.first_files(sizes):
        file = folder / first.path
        try:
            header = read_header(file)
        except InputError as error:
            console.warn(f"not served: {error}")
            continue
        if is_target(header):
            n_bytes = sum(sizes.get(part, 0) for part in names.all_parts(first))
            found.append(Offered(file.stem, file, n_bytes, int(file.stat().st_mtime)))
    n = Counter(model.name for model in found)
    paths = {model.file: model.file.relative_to(folder).with_suffix("").as_posix() for model in found}
    return [model if n[model.name] == 1 else replace(model, name=paths[model.file]) for model in found]


def memory_of(model: Offered, options: ServerOptions) -> int:
    """Return what a model takes in bytes: weights and caches of it and its draft, and its server.

    Raises `InputError`.
    """
    header, _ = read_model(model.file)
    n_ctx = Checked(options, options.drafting, "", header, None).n_ctx
    types = CACHE_TYPES[options.context.type_k], CACHE_TYPES[options.context.type_v]
    caches = kv_bytes(header, n_ctx, *types, Slots(options.parallel, options.context.n_ubatch))
    choice = resolve(model.file, options.drafting)
    draft = choice.sidecar or []
    for each in draft[:1]:
        caches += draft_bytes(header, DraftContext(each, choice.options.draft_n_ctx, options.parallel), n_ctx)
    return OF_A_SERVER + model.n_bytes + sum(file.file_size for file in draft) + caches


class PoolFront(Front):
    """The front of a pool. Its own routes are the lists of models; others go to the model that a request names."""

    def __init__(self, pool: ModelPool, settings: FrontSettings) -> None:
        prefix = settings.prefix
        routes = [
            *(Route(f"{prefix}{path}", self._health) for path in HEALTH),
            Route(f"{prefix}{PATH}", self._list),
            Route(f"{prefix}{PATH}/{{id:path}}", self._one),
            Route("/api/tags", self._tags),
            Route("/api/ps", self._loaded),
            Route("/api/show", self._show, methods=["POST"]),
            Route("/api/version", version),
        ]
        super().__init__(Child(), settings, routes)
        self._pool = pool

    @contextlib.asynccontextmanager
    async def child_for(self, scope: Scope, body: bytes) -> AsyncIterator[Child]:
        """Yield the server of the model that a body names, else of the one that was used last."""
        if not self.settings.access.has_key(dict(scope["headers"])):
            raise Refusal(401, "Invalid API Key")
        async with self._pool.use(self._named(_object(body))) as child:
            yield child

    async def _request_child(self, scope: Scope, body: bytes, send: Send) -> None:
        given = without_nulls(_object(body))
        if not is_unload(scope["path"], given) or not self.settings.access.has_key(dict(scope["headers"])):
            return await super()._request_child(scope, body, send)
        model = self._named(given)
        await self._pool.unload(model)
        await loaded(scope["path"], given, model_name(given))(scope, _nothing, send)

    def _named(self, body: Mapping[str, Any]) -> Offered:
        name = body.get("model") or body.get("name") or ""
        return self._pool.named(name if isinstance(name, str) else "")

    async def _health(self, _request: Request) -> Response:
        return JSONResponse(IS_READY)

    def _described(self) -> dict[str, object]:
        models = [
            {"id": model.name, "object": "model", "owned_by": "llama-eagle", "created": model.changed}
            for model in self._pool.models
        ]
        return described({"object": "list", "data": models})

    async def _list(self, _request: Request) -> Response:
        return JSONResponse(self._described())

    async def _one(self, request: Request) -> Response:
        name = request.path_params["id"]
        return JSONResponse(one_of(self._described(), self._pool.named(name).name if name else name))

    async def _tags(self, _request: Request) -> Response:
        return JSONResponse({"models": await asyncio.to_thread(_all_listed, self._pool.models)})

    async def _loaded(self, _request: Request) -> Response:
        entries = await asyncio.to_thread(_all_listed, self._pool.running())
        return JSONResponse({"models": [{**entry, "size_vram": 0, "expires_at": NEVER} for entry in entries]})

    async def _show(self, request: Request) -> Response:
        """Describe a model by its file: some clients ask about each model of the list."""
        model = self._pool.named(model_name(read_body(await request.body())))
        try:
            return JSONResponse(await asyncio.to_thread(_shown, model))
        except EagleError as error:
            raise not_loaded(model.name, error) from None


def _object(body: bytes) -> dict[str, Any]:
    return read_json_body(body) if body.lstrip()[:1] == b"{" else {}


async def _nothing() -> Message:
    return await asyncio.get_running_loop().create_future()


def _shown(model: Offered) -> dict[str, object]:
    family, meta, template = _about(model)
    entry = {"id": model.name, "meta": meta, "created": model.changed}
    return shown(entry, {"chat_template": template}, family, has_vectors=False)


def _all_listed(models: Iterable[Offered]) -> list[dict[str, object]]:
    return [_listed(model) for model in models]


def _listed(model: Offered) -> dict[str, object]:
    family, meta = "", {"size": model.n_bytes}
    with contextlib.suppress(EagleError):  # a file that was damaged since the start
        family, meta, _ = _about(model)
    return listed({"id": model.name, "meta": meta}, str(model.file), family)


@cache
def _about(model: Offered) -> tuple[str, dict[str, Any], object]:
    """Return a model's architecture, its sizes, and its chat template. Raises `InputError`."""
    header, files = read_model(model.file)
    meta = {
        "size": model.n_bytes,
        "n_params": sum(tensor.n_elements for file in files for tensor in file.tensors.values()),
        "n_ctx_train": header.arch_key("context_length", 0),
        "n_embd": header.arch_key("embedding_length", 0),
        "ftype": file_type(files),
    }
    return header.architecture, meta, header.keys.get("tokenizer.chat_template")


def run_pool(options: ServerOptions, models: Sequence[Offered], max_bytes: int | None, arguments: Sequence[str]) -> int:
    """Serve models until a signal; return our exit status. max_bytes: None for the memory that is available now.

    arguments: of `serve`, for the server of each model.
    """
    limit = max_bytes or available_bytes() or sys.maxsize
    patience = 2 * PATIENCE + (END_S if options.cache_disk else 0)  # a server ends a program of its own
    settings = settings_of(options)
    with (
        tempfile.TemporaryDirectory(prefix="llama-eagle-", ignore_cleanup_errors=True) as folder,
        listener_on(settings.host, settings.port) as listener,
    ):

        def start(model: Offered, needed: int) -> Server:
            return Server(model, needed, Path(folder), arguments, patience)

        pool = ModelPool(models, start, lambda model: memory_of(model, options), limit)
        ended, status = threading.Event(), [0]

        def end(number: int, _frame: object) -> None:
            if ended.is_set():
                return pool.hurry()
            status[0] = INTERRUPTED if number == signal.SIGINT else 0
            ended.set()

        for number in (signal.SIGINT, *ending_signals()):
            signal.signal(number, end)

        def wait() -> str:
            ended.wait()
            pool.close()  # here, because the front ends when no thread waits for a model any more
            return ""

        if not ended.is_set():
            console.log(f"serving {len(models)} models within {limit / GIB:.1f} GiB")
            console.data(f"listening on {url_of(settings.host, listener)}")
            sys.stdout.flush()
        asyncio.run(serve_until(PoolFront(pool, settings), listener, wait))
    return status[0]
