"""Small parts of `EagleLlama`: views of the parent's handles, its session and drafter, a download."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

from llama_eagle.drafting.drafters import Drafter, EagleDrafter, FirstOf, ModelDrafter
from llama_eagle.drop_in.options import EagleOptions
from llama_eagle.errors import EagleError, InputError, UsageError
from llama_eagle.native import log
from llama_eagle.sessions.models import LoadOptions, Model
from llama_eagle.sessions.plain import PlainSession
from llama_eagle.sessions.session import EagleSession, Session, SessionOptions


@dataclass(frozen=True)
class ContextView:
    """The parent's context, as sessions want it."""

    handle: Any
    model_path: Path
    n_ctx: int
    n_batch: int


@dataclass(frozen=True)
class ModelView:
    """The parent's model, likewise."""

    handle: Any


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """What the parent cannot load or create, with llama.cpp's reason, as an `InputError` (a `ValueError`, as there)."""
    log.clear()
    try:
        yield
    except ValueError as error:
        reason = log.first_error()
        if isinstance(error, EagleError) or not reason:
            raise
        remedy = "Correct the arguments or use a smaller n_ctx" if "context" in str(error) else "Convert it again"
        raise InputError(f"{error}: {reason}. {remedy}.") from None


def open_session(
    context: ContextView, options: EagleOptions, gpu_layers: int, n_draft_max: int, stack: contextlib.ExitStack
) -> Session:
    """The session for the parent's context; `stack` closes it and the draft. `n_draft_max` 0: nothing drafts."""
    if options.draft_path is None:
        return PlainSession(context, n_draft_max)
    layers = gpu_layers if options.draft_gpu_layers is None else options.draft_gpu_layers
    draft = Model(options.draft_path, LoadOptions(layers))
    stack.callback(draft.close)
    session = EagleSession(context, draft, SessionOptions(n_draft_max, options.draft_n_ctx))
    stack.callback(session.close)
    return session


def choose_drafter(session: Session, options: EagleOptions, draft_model: Any) -> Drafter | None:
    """What proposes tokens; None: nothing does."""
    if isinstance(session, EagleSession):
        eagle = EagleDrafter(session, options.p_min)
        return eagle if options.drafter is None else FirstOf(options.drafter, eagle)
    if options.drafter is not None:
        return options.drafter
    return None if draft_model is None else ModelDrafter(draft_model)


def require_grammar(vocab: Any, grammar: Any) -> None:
    """Raises `UsageError` for a llama_cpp.LlamaGrammar that cannot be parsed: sampling with it would crash."""
    if grammar is None:
        return
    texts = (grammar._grammar.encode(), grammar._root.encode())
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, *texts)
    if not sampler:
        raise UsageError("the grammar cannot be parsed. Correct it: llama.cpp's grammars/README.md has the syntax.")
    llama_cpp.llama_sampler_free(sampler)


def download(repo_id: str, pattern: str | None, **where: Any) -> str:
    """The one file of a hub repository that matches, a GGUF by default; `where`: as hf_hub_download takes it.

    Raises `UsageError` when none or several match.
    """
    from huggingface_hub import hf_hub_download, list_repo_files

    pattern = pattern or "*.gguf"
    names = fnmatch.filter(list_repo_files(repo_id), pattern)
    if len(names) != 1:
        found = ", ".join(sorted(names)[:5]) or "none"
        raise UsageError(f"{repo_id}: {pattern!r} must match one file, it matches {len(names)} ({found}). Name one.")
    return str(hf_hub_download(repo_id, names[0], **where))
