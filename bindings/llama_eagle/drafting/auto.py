"""Draft policy (native/include/eagle_policy.h): chooses drafter and draft length for each round."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_eagle.drafting.draft_length import RoundCost
from llama_eagle.errors import UsageError
from llama_eagle.native.calls import PolicyDraft, PolicyRound, as_tokens, check, library
from llama_eagle.native.closing import free_with
from llama_eagle.native.limits import LONGEST

OFFER, MODEL = 1, 2  # eagle_draft_source


@dataclass(frozen=True)
class Expected:
    """Bytes of weights read per round, relative to a plain decode. They order the lengths before any is measured.

    decodes: of 1, 2, ... rows; with experts, more rows read more weights. token: of a drafted token (0: unknown).
    draft: of a draft of any length, for models that draft a block at once.
    """

    decodes: tuple[float, ...] = (1.0,)
    token: float = 0.0
    draft: float = 0.0


UNKNOWN = Expected()


class Policy:
    """Draft policy of one sequence. Lengths in tokens, times in ms.

    n_draft: the only length (0: any). has_model: a draft model is available; offers are possible without one.
    """

    def __init__(self, n_draft_max: int, *, has_model: bool, n_draft: int = 0, expected: Expected = UNKNOWN) -> None:
        self._lib = library()
        self._handle = ctypes.c_void_p()
        params = self._lib.eagle_policy_default_params()
        params.n_draft_max, params.n_draft, params.has_model = n_draft_max, n_draft, has_model
        costs = (ctypes.c_float * len(expected.decodes))(*expected.decodes)
        params.n_rows, params.row_cost, params.token_cost = len(costs), costs, expected.token
        params.draft_cost = expected.draft
        check(self._lib.eagle_policy_new(ctypes.byref(params), ctypes.byref(self._handle)), "eagle_policy_new")
        free_with(self, self._handle, self._lib.eagle_policy_free)

    def begin(self) -> None:
        check(self._lib.eagle_policy_begin(self._handle, 0), "eagle_policy_begin")

    @property
    def wants_offer(self) -> bool:
        return bool(self._lib.eagle_policy_wants_offer(self._handle))

    def offer(self, tokens: Sequence[int], ms: float) -> None:
        status = self._lib.eagle_policy_offer(self._handle, 0, as_tokens(tokens), len(tokens), 0, ms)
        check(status, "eagle_policy_offer")

    def choose(self, n_max: int) -> tuple[int, int]:
        """Return source and length for a round with room for `n_max` tokens."""
        draft = PolicyDraft(0, n_max)
        check(self._lib.eagle_policy_choose(self._handle, ctypes.byref(draft), 1), "eagle_policy_choose")
        return draft.source, draft.n_draft

    def look_up(self, lookup: Any, came: Sequence[int], n_max: int) -> tuple[int, int, list[int]]:
        """Return source, length and offered tokens of a round, as `text`, `offer` and `choose` do for a native look-up.

        lookup: its handle. came: tokens that were added to the text, and the one that follows it. One call, since plain
        rounds make it too.
        """
        draft, ids = PolicyDraft(0, n_max), (ctypes.c_int32 * n_max)()
        status = self._lib.eagle_lookup_round(
            lookup, self._handle, as_tokens(came), len(came), ids, ctypes.byref(draft)
        )
        check(status, "eagle_lookup_round")
        return draft.source, draft.n_draft, ids[: draft.n_draft] if draft.source == OFFER else []

    def observe(self, cost: RoundCost, source: int) -> None:
        n_model = cost.n_draft if source == MODEL else 0
        done = PolicyRound(0, n_model, cost.n_draft, cost.n_accepted, cost.draft_ms, cost.verify_ms)
        check(self._lib.eagle_policy_observe(self._handle, ctypes.byref(done)), "eagle_policy_observe")

    def text(self, tokens: Sequence[int]) -> None:
        """Report the tokens that followed the one after which the last offer was made."""
        check(self._lib.eagle_policy_text(self._handle, 0, as_tokens(tokens), len(tokens)), "eagle_policy_text")


class Auto:
    """Policy for the draft length with the most tokens per second, from measured acceptance and times."""

    def __init__(self, n_max: int = LONGEST, expected: Expected = UNKNOWN) -> None:
        if n_max < 1:
            raise UsageError(f"the maximum draft length is {n_max} tokens. Give 1 or more.")
        self._policy = Policy(n_max, has_model=True, expected=expected)
        self._n_max = n_max

    def choose(self, n_max: int) -> int:
        return self._policy.choose(min(n_max, self._n_max))[1]

    def observe(self, round_cost: RoundCost) -> None:
        self._policy.observe(round_cost, MODEL)
