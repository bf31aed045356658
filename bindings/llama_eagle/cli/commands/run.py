"""`llama-eagle run MODEL` and `llama-eagle pairs`"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from llama_eagle import console
from llama_eagle.cli.commands.chat import Talking, talk
from llama_eagle.cli.groups import grouped
from llama_eagle.cli.options import Computing, Drafting, Json, Sampling, Vision
from llama_eagle.cli.piped import with_piped
from llama_eagle.errors import UsageError

if TYPE_CHECKING:
    from llama_eagle.cli.store import Entry, Ready


@grouped
def run(
    vision: Vision,
    drafting: Drafting,
    sampling: Sampling,
    computing: Computing,
    talking: Talking,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A hub id, a folder or a GGUF.")] = None,
    outtype: Annotated[str, typer.Option("--type", help="Type to convert to, or of a repository's GGUF.")] = "q4_k_m",
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="Answer this and end, instead of a chat. Piped text is appended."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Show the models that are kept.")] = False,
    clear: Annotated[str | None, typer.Option(metavar="MODEL|all", help="Delete kept models.")] = None,
) -> None:
    """Chat with a model by name: found, converted once, drafted for.

    What is downloaded stays in the hub's cache, what is converted in our own (--list, --clear). The draft is the
    model's own MTP head, an EAGLE-3 file beside it, or a published one (llama-eagle pairs).
    """
    from llama_eagle.cli import store

    if listing or clear is not None:
        _show_entries(list(store.entries()) if clear is None else store.clear(clear), cleared=clear is not None)
        return
    if model is None:
        raise UsageError("name a MODEL: a hub id, a folder or a GGUF.")
    if prompt == "":
        raise UsageError("the prompt is empty: there is nothing to answer. Give some text.")
    question = None if prompt is None else with_piped(prompt)
    ready = store.prepare(model, outtype.lower())
    drafts = drafting.options()
    if drafts.draft is None and ready.draft is not None:
        drafts = replace(drafts, draft=ready.draft)
    _tell(ready, computing.context(max(talking.ctx_size, 1), 0).n_ctx)
    from llama_eagle.drop_in.llama import EagleLlama

    options = talking.options(vision, drafts, computing)
    talk(ready.target, options, talking.chat(sampling), EagleLlama, question)


def _show_entries(entries: list[Entry], *, cleared: bool) -> None:
    for entry in entries:
        console.data(f"{entry.made_of} {entry.outtype}: {console.size(entry.n_bytes)}{', deleted' if cleared else ''}")
    if not entries:
        console.data("nothing is kept" if not cleared else "nothing to delete")


def _tell(ready: Ready, n_ctx: int) -> None:
    """What was chosen, and what to expect of it; on a terminal only."""
    if not console.on_terminal():
        return
    from llama_eagle.cli import store

    expected = store.estimate(ready.target, n_ctx, (1, 1))
    console.note(
        f"{ready.target}: {console.size(expected['n_bytes'])} with its context; "
        f"plain decoding on the CPU: at most about {expected['tokens_per_second']:.0f} tokens/s"
    )


def pairs(json: Json = False) -> None:
    """List published drafts with their targets."""
    from dataclasses import asdict

    from llama_eagle.pairs import PAIRS

    if json:
        console.result({"pairs": [asdict(pair) for pair in PAIRS]})
        return
    width = max(len(pair.target) for pair in PAIRS)
    console.data(f"{'target':<{width}}  draft")
    for pair in PAIRS:
        console.data(f"{pair.target:<{width}}  {pair.draft}")
    console.note(f"Next: llama-eagle run {PAIRS[0].target}")
