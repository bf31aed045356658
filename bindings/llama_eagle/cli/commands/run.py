"""`llama-eagle run MODEL` and `llama-eagle pairs`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_eagle import console
from llama_eagle.cli.commands.chat import ChatOptions, run_chat
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import MODEL_HELP, Computing, Drafting, Json, Sampling, Vision
from llama_eagle.cli.piped import with_piped
from llama_eagle.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from llama_eagle.store.kept import Entry


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
    outtype: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Quantization type to convert a checkpoint to (default: q4_k_m), or to choose among a repository's "
            "GGUF files (default: q4_k_m, or another one if that does not fit into memory).",
        ),
    ] = None,
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
    expected = _estimate(target, n_ctx, (1, 1))
    console.note(
        f"{target}: {console.size(expected['n_bytes'])} with its context; "
        f"plain decoding on the CPU: about {expected['tokens_per_second']:.0f} tokens/s (estimate)"
    )


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
