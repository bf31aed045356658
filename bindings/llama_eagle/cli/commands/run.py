"""`llama-eagle run MODEL`; `pull`, `list` and `remove`: the models on the disk; `pairs`"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.commands.chat import ChatOptions, run_chat
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import MODEL_HELP, Computing, Drafting, Json, OutType, Sampling, Vision
from llama_eagle.cli.piped import with_piped
from llama_eagle.errors import EagleError, UsageError
from llama_eagle.progress import working

if TYPE_CHECKING:
    from llama_eagle.store.kept import Entry
    from llama_eagle.store.models import Model

AGES = (("day", 86400), ("hour", 3600), ("minute", 60))


@grouped
def run(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"Model: {MODEL_HELP}",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="Answer this prompt and exit, instead of opening a chat. Text from a pipe is appended.",
        ),
    ] = None,
    outtype: OutType = None,
    vision: Vision,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    chat_options: ChatOptions,
    listing: Annotated[bool, typer.Option("--list", help="List the converted models in the cache and exit.")] = False,
    clear: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|all", help="Delete this model, or all, from the cache of converted models and exit."
        ),
    ] = None,
) -> None:
    """Download and convert a model if necessary, and chat with it.

    Downloads stay in the hub's cache, converted files in llama-eagle's cache (--list, --clear). For a model without an
    MTP head or a draft next to it, a published draft is downloaded if there is one (llama-eagle pairs).
    """
    from llama_eagle.store import kept

    if listing or clear is not None:
        if model is not None:
            raise UsageError(f"--list and --clear open no chat. Leave out {model}; --clear takes a name itself.")
        _show_entries(list(kept.entries()) if clear is None else kept.clear(clear), cleared=clear is not None)
        return
    if model is None:
        raise UsageError("name a MODEL: a hub id, a folder or a GGUF.")
    if prompt == "":
        raise UsageError("the prompt is empty: there is nothing to answer. Give some text.")
    question = None if prompt is None else with_piped(prompt)
    from llama_eagle.drop_in.llama import EagleLlama
    from llama_eagle.drop_in.options import check_arguments
    from llama_eagle.store.find import prepare

    drafts = drafting.options()
    options, chat = chat_options.options(vision, drafts, computing), chat_options.chat(sampling)
    check_arguments(options)  # before a download
    target = prepare(model, outtype, with_draft=drafts.draft is None, of_file=True)
    _show_estimate(target, chat_options.ctx_size)
    run_chat(target, options, chat, EagleLlama, question)


def _show_entries(entries: list[Entry], *, cleared: bool) -> None:
    for entry in entries:
        if entry.problem:
            console.warn(f"{entry.problem} Or remove this model: llama-eagle remove {entry.folder.name}")
        state = ", deleted" if cleared else "" if entry.is_complete else ", unfinished"
        console.data(f"{entry.made_of} {entry.outtype}: {console.size(entry.n_bytes)}{state}")
    if not entries:
        console.data("the cache is empty" if not cleared else "nothing to delete")


def _show_estimate(target: Path, n_ctx: int | None) -> None:
    """Show the chosen file, its memory and its expected speed; on a terminal only. n_ctx: as given by --ctx-size."""
    if not console.on_terminal():
        return
    from llama_eagle.drafting.outlook import outlook
    from llama_eagle.gguf.header import read_model

    expected = _estimate(target, n_ctx, (1, 1))
    console.note(
        f"{target}: {console.size(expected['n_bytes'])} with its context; "
        f"plain decoding on the CPU: about {expected['tokens_per_second']:.0f} tokens/s (estimate)"
    )
    prospect = outlook(read_model(target)[1])
    if not prospect.has_model:
        console.note(prospect.training(target))


def _estimate(target: Path, n_ctx: int | None, types: tuple[int, int]) -> dict[str, Any]:
    """Return `n_bytes`, the memory for weights and context, and `tokens_per_second`, an estimate of plain decoding.

    The estimate is for the CPU, from its memory bandwidth: each token reads the weights once. Sparse models read less.
    """
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.rotation import default_context, trained_context
    from llama_eagle.gguf.size import kv_bytes
    from llama_eagle.native.processor.bandwidth import read_rates
    from llama_eagle.native.processor.threads import default_threads

    first, files = read_model(target)
    weights = sum(file.file_size for file in files)
    n_ctx = default_context(first) if n_ctx is None else n_ctx or trained_context(first)
    (rate,) = read_rates([default_threads()], n_bytes=1 << 28)
    return {
        "n_bytes": weights + kv_bytes(first, n_ctx, *types),
        "tokens_per_second": rate / weights,
    }


def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"Model to fetch: {MODEL_HELP}")],
    outtype: OutType = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Do not fetch a draft for a model without an MTP head.")
    ] = False,
    json: Json = False,
) -> None:
    """Download and convert a model and its draft.

    Repeat the command to continue an interrupted download, or to get the newest version of a repository. Downloads stay
    in the hub's cache.
    """
    from llama_eagle.store.find import prepare

    try:
        with working(f"fetching {model}"):  # shown between downloads and conversions, too
            path = prepare(model, outtype, with_draft=not no_draft, of_file=True, update=True)
    except KeyboardInterrupt:
        console.note("What was downloaded is kept. Repeat the command to continue.")
        raise
    n_bytes, drafter = _size(path), _drafter(path)
    if json:
        console.result({"model": model, "path": str(path), "n_bytes": n_bytes, "drafter": drafter})
        return
    console.data(f"{path}: {console.size(n_bytes)}; drafter: {drafter}")
    console.note(f"Next: llama-eagle run {model}")


def list_models(json: Json = False) -> None:
    """List the models on the disk.

    They are the converted models in llama-eagle's cache, and the GGUF files in the hub's. Commands take these names.
    """
    from llama_eagle.pairs import models_dir
    from llama_eagle.store.models import models

    found = list(models())
    if json:
        console.result({"models": [_facts(model) for model in found], "folder": str(models_dir())})
        return
    for model in found:
        if model.entry is not None and model.entry.problem:
            console.warn(f"{model.entry.problem} Or remove this model: llama-eagle remove {model.entry.folder.name}")
        role = _role(model) if model.files else "unfinished"
        console.data(f"{model.name}  {console.size(model.n_bytes)}, {_age(model.changed)}, {role}")
        console.data(f"    {model.files[0] if model.files else model.entry and model.entry.folder}")
    if not found:
        console.data("no models. llama-eagle pull OWNER/NAME fetches one")


def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="Names as `llama-eagle list` shows them. OWNER/NAME means all types."),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Delete models from the disk, after a question on a terminal.

    Checkpoints that were downloaded for a conversion stay in the hub's cache; `hf cache rm model/OWNER/NAME` deletes
    them.
    """
    from llama_eagle.store import models as store

    found = {model.name: model for name in names for model in store.find_models(name)}
    for model in found.values():
        console.note(f"{model.name}: {console.size(model.n_bytes)}")
    if not yes and not _agrees(len(found)):
        found.clear()
        console.note("nothing was removed")
    for model in found.values():
        store.remove(model)
    if json:
        console.result({"removed": [{"name": each.name, "n_bytes": each.n_bytes} for each in found.values()]})
        return
    for model in found.values():
        console.data(f"{model.name}: {console.size(model.n_bytes)}, removed")


def _agrees(n_models: int) -> bool:
    """Ask on a terminal. Raises `UsageError` without one."""
    if not (sys.stdin.isatty() and console.on_terminal()):
        raise UsageError("nothing was removed: there is no terminal to ask on. Add --yes.")
    return typer.confirm(f"Remove {'it' if n_models == 1 else f'these {n_models} models'}?", err=True)


def _facts(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "path": str(model.files[0]) if model.files else None,
        "n_bytes": model.n_bytes,
        "age_s": round(max(time.time() - model.changed, 0)),
        "source": "download" if model.entry is None else "conversion",
        "drafts_for": model.drafts_for,
        "drafter": _drafter(model.files[0]) if model.files and model.drafts_for is None else None,
    }


def _role(model: Model) -> str:
    return f"draft of {model.drafts_for}" if model.drafts_for else f"drafter: {_drafter(model.files[0])}"


def _drafter(path: Path) -> str:
    """Return the drafter that commands choose for a model, in a few words."""
    from llama_eagle.drafting.options import LOOKUP, DraftingOptions
    from llama_eagle.drafting.resolve import resolve
    from llama_eagle.sessions.options import MTP

    try:
        draft = resolve(path, DraftingOptions()).options.draft
    except EagleError as error:
        return f"none ({error})"
    return {MTP: "its MTP head", LOOKUP: "prompt look-up"}.get(str(draft), Path(str(draft)).name)


def _size(path: Path) -> int:
    from llama_eagle.gguf.header import read_model

    return sum(file.file_size for file in read_model(path)[1])


def _age(changed: float) -> str:
    seconds = max(time.time() - changed, 0)
    for unit, length in AGES:
        if seconds >= length:
            n = int(seconds // length)
            return f"{n} {unit}{'s' * (n > 1)} old"
    return "new"


def pairs(json: Json = False) -> None:
    """List published drafts with their targets, kinds and sizes."""
    from dataclasses import asdict

    from llama_eagle.pairs import PAIRS

    if json:
        console.result({"pairs": [asdict(pair) for pair in PAIRS]})
        return
    width = max(len(pair.target) for pair in PAIRS)
    console.data(f"{'target':<{width}}  {'kind':<8} {'B':>3}  draft")
    for pair in PAIRS:
        size = "" if pair.size is None else f"{pair.size:g}"
        console.data(f"{pair.target:<{width}}  {pair.kind:<8} {size:>3}  {pair.draft}")
    console.note(f"Next: llama-eagle run {PAIRS[0].target}")
