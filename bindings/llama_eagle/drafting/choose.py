"""Choice of a session's drafters and its draft-length policy from the options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llama_eagle.drafting.adaptive import AdaptiveDrafter
from llama_eagle.drafting.auto import UNKNOWN, Auto, Expected
from llama_eagle.drafting.draft_length import DraftLength, Fixed
from llama_eagle.drafting.drafter import GivenDrafter, OwnDrafter
from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.drafting.model import ModelDrafter
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drafting.session_draft import SessionDraft
from llama_eagle.errors import UsageError
from llama_eagle.native.limits import MAX_EXACT_DRAFT
from llama_eagle.sessions.session import EagleSession

BLOCK_TOKEN = 0.01  # of a plain decode: another row of a block draft, without its weights


def choose_drafters(session: EagleSession, options: DraftingOptions, draft_model: Any = None) -> list[OwnDrafter]:
    """Return the drafters of `session`: the one to try first, and its draft model.

    `draft_model`: one of llama-cpp-python's own, for a session without a draft model.
    """
    found: list[OwnDrafter] = []
    if options.drafter is not None:
        found.append(GivenDrafter(options.drafter))
    elif options.looks_up:
        found.append(_make_lookup(session, options))
    if session.has_draft:
        found.append(SessionDraft(session, options.p_min))
    elif draft_model is not None and not found:
        found.append(ModelDrafter(draft_model))
    return found


def _make_lookup(session: EagleSession, options: DraftingOptions) -> PromptLookup:
    lookup = PromptLookup()
    if options.lookup_cache is not None:
        lookup.open(options.lookup_cache, session.vocab)
    return lookup


def save_lookups(drafters: Iterable[OwnDrafter]) -> None:
    """Write what look-ups have learned to their files, where they have one."""
    for drafter in drafters:
        drafter.save()


def expected_times(session: EagleSession) -> Expected:
    """Estimate relative round times from the bytes of the models' weights."""
    reads = [session.bytes_read(n_rows) for n_rows in range(1, session.n_draft_max + 2)]
    decodes = tuple(n_bytes / reads[0] for n_bytes in reads)
    if not session.has_draft:
        return Expected(decodes)
    draft = session.draft_bytes_read / reads[0]
    return Expected(decodes, BLOCK_TOKEN, draft) if session.drafts_blocks else Expected(decodes, draft)


def choose_length(n_draft: int | str, longest: int, expected: Expected = UNKNOWN) -> DraftLength:
    """Return the policy for a fixed number of tokens up to `longest`, or for "auto".

    "auto" stays within the lengths that are verified exactly. Raises `UsageError` for other values.
    """
    return Auto(_longest_auto(longest), expected) if n_draft == "auto" else _fixed(n_draft, longest)


def combine(
    drafters: list[OwnDrafter],
    n_draft: int | str,
    longest: int,
    expected: Expected = UNKNOWN,
    *,
    sampled: bool = False,
) -> tuple[OwnDrafter | None, DraftLength]:
    """Combine the available drafters with a draft-length policy.

    If both drafter and length can vary, one object decides both. `sampled`: drafts are drawn for the generation's own
    sampler, which calls the draft model itself. Raises `UsageError` like `choose_length`.
    """
    has_choice = len(drafters) > 1 or (n_draft == "auto" and bool(drafters))
    if not has_choice or n_draft == 0 or sampled:
        return (drafters[0] if drafters else None), choose_length(n_draft, longest, expected)
    first = None if drafters[0].is_model else drafters[0]
    second = drafters[-1] if first is None or len(drafters) > 1 else None
    if n_draft == "auto":
        adaptive = AdaptiveDrafter(first, second, _longest_auto(longest), expected=expected)
    else:
        adaptive = AdaptiveDrafter(first, second, longest, _fixed(n_draft, longest).n_draft, expected)
    return adaptive, adaptive


def _fixed(n_draft: int | str, longest: int) -> Fixed:
    """Return a fixed length. Raises `UsageError` for anything but a number from 0 to `longest`."""
    if not isinstance(n_draft, int) or not 0 <= n_draft <= longest:
        raise UsageError(f"n_draft={n_draft!r} is neither 'auto' nor a number from 0 to {longest}. Correct it.")
    return Fixed(n_draft)


def _longest_auto(longest: int) -> int:
    return max(min(longest, MAX_EXACT_DRAFT), 1)
