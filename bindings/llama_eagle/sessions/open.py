"""The one way to a session: a target's context, what drafts for it, and how far drafts reach."""

from __future__ import annotations

from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.plain import PlainSession
from llama_eagle.sessions.session import ContextLike, DraftLike, EagleSession


def open_session(context: ContextLike, draft: DraftLike | None, options: SessionOptions) -> EagleSession | PlainSession:
    """The session of an empty context. `draft` None: rows that something else drafted can be verified in it.

    Raises `IncompatibleModels` when the draft does not fit, `NativeError` when the context cannot be drafted for.
    """
    if draft is None:
        return PlainSession(context, options.n_draft_max)
    return EagleSession(context, draft, options)
