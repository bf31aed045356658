"""The first phase of a run with `--data self`: the target, on our server, writes the training data."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from llama_eagle import console
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.errors import UsageError
from llama_eagle.native.processor.memory import return_freed_memory
from llama_eagle.serving.llama_server import options as serving
from llama_eagle.serving.llama_server.process import background
from llama_eagle.serving.prompts import Journal, Record, stream
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import ContextOptions, LoadOptions
from llama_eagle.sessions.text import chat_text, has_chat_template
from llama_eagle.train.data.documents import Document, read_documents
from llama_eagle.train.data.loops import answer_without_loop
from llama_eagle.train.data.self_written import (
    FILE,
    N_DEFAULT,
    PART,
    Author,
    Limits,
    Template,
    Written,
    has_conversation,
    write_data,
)
from llama_eagle.train.settings import SELF, Settings
from llama_eagle.train.targets.engine import gpu_layers, is_gguf

PARALLEL, PARALLEL_ON_GPU = 8, 16  # slots of the server


def write_own_data(settings: Settings, later: Callable[[], float]) -> Settings:
    """Return the settings with the written file as their data, and the time that is left.

    The file is DRAFT_DIR/conversations.jsonl. An interrupted run continues it; a finished one is used as it is. later:
    measures the seconds that the run needs for each written token afterwards. Raises `UsageError` where no engine can
    run the target.
    """
    if not is_gguf(settings.target):
        raise UsageError("--data self needs a GGUF as the target, which our engine runs. Name files by --data.")
    path = settings.output / FILE
    used = replace(settings, data=(str(path),))
    if path.exists():
        lines = filter(str.strip, path.read_text("utf-8").split("\n"))  # splitlines would also split inside of texts
        return used.after(max(json.loads(line)["elapsed_s"] for line in lines))
    settings.output.mkdir(parents=True, exist_ok=True)
    given = list(read_documents([source for source in settings.data if source != SELF]))
    parallel = PARALLEL_ON_GPU if gpu_layers(settings.device != "cpu") else PARALLEL
    limits = Limits(N_DEFAULT, None, settings.max_length, parallel, settings.seed)
    amount = f"{limits.n} conversations"
    if settings.seconds is not None:
        limits = replace(limits, n=None, seconds=settings.seconds, later=later())
        return_freed_memory()  # of a draft in training: the server needs it now
        minutes, cost = settings.seconds / 60, 1000 * limits.later
        amount = f"as much as fits into {round(minutes, 1):g} minutes with {cost:.1f} ms of training per token"
    console.note(f"the target writes its own training data: {amount}")
    with closing(_journal(path, _identity(settings))) as journal:
        written = _write(settings, journal, path, limits, given)
    console.note(
        f"{written.n} conversations, {written.n_tokens} tokens at {written.n_tokens / written.seconds:.0f} tokens/s"
    )
    return used.after(written.seconds)


def _journal(path: Path, identity: str) -> Journal:
    """Open the journal; one without a conversation starts again, because nothing in it depends on the settings."""
    try:
        return Journal(path, identity, overwrite=not has_conversation(path.with_name(PART)))
    except UsageError:
        raise UsageError(
            f"{path.parent} holds data written with another target, --data, --max-length or --seed. Give the same "
            "ones, or another -o."
        ) from None


def _write(settings: Settings, journal: Journal, path: Path, limits: Limits, given: Sequence[Document]) -> Written:
    key = secrets.token_urlsafe()
    served = serving.check(
        serving.ServerOptions(
            model=Path(settings.target), drafting=DraftingOptions(), context=ContextOptions(),
            n_ctx=2 * limits.max_length, load=LoadOptions(n_gpu_layers=gpu_layers(settings.device != "cpu")), port=0,
            api_key=key, parallel=limits.parallel, cache_ram=0,
        )
    )  # fmt: skip
    with (
        Model(served.target, LoadOptions(no_alloc=True)) as model,
        background(serving.server_args(served), serving.server_env(served), verbose=False) as address,
    ):
        template = None
        if has_chat_template(model):
            template = Template(lambda messages: chat_text(model, messages, add_generation_prompt=False))

        def ask(path: str, body: Record) -> Record:
            return answer_without_loop(stream(address, key, path, body))

        return write_data(Author(ask, template, given, limits), journal, path, limits)


def _identity(settings: Settings) -> str:
    """Return a digest of everything that the written data depends on."""
    path = Path(settings.target)
    given = (path.name, path.stat().st_size, settings.data, settings.max_length, settings.seed)
    return hashlib.sha256(repr(given).encode()).hexdigest()
