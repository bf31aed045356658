"""Which draft is used where none is named, and what the session must know of the one that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from llama_eagle.drafting.options import DRAFT_VOCAB, LOOKUP, NONE, DraftingOptions
from llama_eagle.errors import InputError, UsageError
from llama_eagle.gguf import mtp
from llama_eagle.gguf.header import Header, Source, read_model
from llama_eagle.sessions.options import MTP, SessionOptions

Options = TypeVar("Options", bound=DraftingOptions)


@dataclass(frozen=True)
class Choice(Generic[Options]):
    """`options` with their `draft` set, and why, in a sentence that begins with what drafts.

    target: as it was given, or its headers where they had to be read. beside: likewise of a head in a file of its own.
    """

    options: Options
    why: str
    target: Source
    beside: list[Header] | None = None

    @property
    def draft(self) -> Source | None:
        """What is loaded beside the target: as `PairOptions` takes it."""
        return self.beside or self.options.model


def resolve(target: Source, options: Options) -> Choice[Options]:
    """What drafts for a target: what the options name, else its own MTP head, else one in a file beside it, else none.

    Raises `InputError` for files that cannot be read.
    """
    choice = _found(target, options) if options.draft is None else _asked_for(target, options)
    if choice.options.model is not None and choice.options.looks_up:
        return replace(choice, why=f"{choice.why}; look-up in the text goes first where that pays")
    return choice


def _asked_for(target: Source, options: Options) -> Choice[Options]:
    named = {NONE: "nothing", LOOKUP: "look-up in the text", MTP: "the target's MTP head"}
    what = LOOKUP if options.draft == NONE and options.lookup else str(options.draft)
    return Choice(options, f"{named.get(what, what)} drafts, as asked", target)


def session_options(draft: Header | None, options: DraftingOptions) -> SessionOptions:
    """For the session that verifies what `options`, resolved, draft. draft: of the draft model's file, the target's for
    its own head; None: no model drafts.

    Raises `UsageError` for a `draft_vocab` where the draft brings a vocabulary of its own.
    """
    if draft is None or draft.architecture not in mtp.ARCHITECTURES:
        if options.draft_vocab is not None:
            raise UsageError("draft_vocab trims the head of an MTP draft; no such draft is used. Leave it out.")
        return SessionOptions(options.longest, options.draft_n_ctx)
    wanted = DRAFT_VOCAB if options.draft_vocab is None else options.draft_vocab
    n_rows = wanted if isinstance(wanted, int) and wanted < draft.n_vocab else 0
    base = mtp.base_ids(draft) if n_rows else []
    return SessionOptions(options.longest, options.draft_n_ctx, n_vocab_draft=n_rows, base_ids=base)


def _found(target: Source, options: Options) -> Choice[Options]:
    first, files = read_model(target)
    if mtp.has_head(files):
        return Choice(replace(options, draft=MTP), "the target's own MTP head drafts", files)
    for path in sorted(first.path.parent.glob("mtp-*.gguf")):
        if draft := _fitting(first, path):
            why = f"the MTP head in {path.name}, beside the target, drafts"
            return Choice(replace(options, draft=path), why, files, draft)
    why = "nothing drafts: the target has no MTP head, and no draft was named"
    if options.lookup:
        return Choice(replace(options, draft=LOOKUP), "look-up in the text drafts, as asked", files)
    return Choice(options if options.drafter is not None else replace(options, draft=NONE), why, files)


def _fitting(target: Header, beside: Path) -> list[Header] | None:
    """The head's headers, if it is the target's. Files are matched by name as well: a folder may hold the heads of
    several models."""
    if not target.path.stem.startswith(beside.stem.removeprefix("mtp-").split(".")[0]):
        return None
    try:
        draft, files = read_model(beside)
    except InputError:
        return None
    return files if mtp.has_head(files) and not mtp.problems(target, draft) else None
