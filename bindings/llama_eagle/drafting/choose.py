"""What drafts for a session, and how many tokens, from the options."""

from __future__ import annotations

from typing import Any

from llama_eagle.drafting.draft_length import Auto, DraftLength, Fixed
from llama_eagle.drafting.drafter import Drafter
from llama_eagle.drafting.first_of import FirstOf
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.drafting.model import ModelDrafter
from llama_eagle.drafting.options import LOOKUP, DraftingOptions
from llama_eagle.drafting.session_draft import SessionDraft
from llama_eagle.errors import UsageError
from llama_eagle.native.limits import MAX_EXACT_DRAFT
from llama_eagle.sessions.session import EagleSession, Session


def choose_drafter(session: Session, options: DraftingOptions, draft_model: Any = None) -> Drafter | None:
    """What proposes tokens for `session`; None: nothing does. `draft_model`: one of llama-cpp-python's own."""
    first = PromptLookup() if options.draft == LOOKUP and options.drafter is None else options.drafter
    if isinstance(session, EagleSession):
        own = SessionDraft(session, options.p_min)
        return own if first is None else FirstOf(first, own)
    if first is not None:
        return first
    return None if draft_model is None else ModelDrafter(draft_model)


def choose_length(n_draft: int | str, longest: int) -> DraftLength:
    """The policy of a number of tokens up to `longest`, or of "auto", which stays within what is verified exactly.

    Raises `UsageError` for anything else.
    """
    if n_draft == "auto":
        return Auto(max(min(longest, MAX_EXACT_DRAFT), 1))
    if not isinstance(n_draft, int) or not 0 <= n_draft <= longest:
        raise UsageError(f"n_draft={n_draft!r} is neither 'auto' nor a number from 0 to {longest}. Correct it.")
    return Fixed(n_draft)
