"""The round loop: draft, verify, accept, commit. Every front end runs it.

A token is sampled when the caller requests it, so that the caller may stop or insert tokens after any of them.

While row i of a round is sampled, the text memory contains exactly the tokens up to row i. Logits processors, stopping
criteria and penalties therefore see the same as without a draft.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from llama_eagle.drafting.draft_length import DraftLength, RoundCost
from llama_eagle.drafting.drafter import NONE, OwnDrafter
from llama_eagle.errors import EagleError, NativeError
from llama_eagle.generation.rejection import RejectionSampling
from llama_eagle.generation.stats import Statistics
from llama_eagle.native.calls import ERR_CONTEXT_FULL, require_numbers, sample
from llama_eagle.native.processor.competition import note_round
from llama_eagle.sessions.text_memory import TextMemory


@dataclass
class _Round:
    """A verified batch: the last sampled token, followed by the drafted ones."""

    rows: list[int]
    draft_ms: float
    verify_ms: float
    row: int = 0  # row of the next token
    sampled: int = 0  # rows sampled so far


@dataclass
class Plan:
    """Sampler, drafter and limits of one generation."""

    sampler: Any  # llama_sampler pointer
    drafter: OwnDrafter | None
    length: DraftLength
    rejection: RejectionSampling | None = None  # samples rows that a drafted token follows; it is also the drafter
    max_tokens: int | None = None
    n_draft_max: int | None = None  # limit for this generation; None: the session's
    n_draft_min: int = 0  # shorter drafts are dropped
    sample_ms: float = field(default=0.0, init=False)


class Rounds:
    """Rounds of one generation that continues `text`."""

    def __init__(self, text: TextMemory, plan: Plan) -> None:
        self.text = text
        self.plan = plan
        self.statistics = Statistics(drafter=NONE if plan.drafter is None else plan.drafter.name)
        self.n_delivered = 0
        self._round: _Round | None = None
        self._full = False
        self._last = -1
        if plan.drafter is not None:
            plan.drafter.begin(text.known.tolist())

    @property
    def was_drafted(self) -> bool:
        """True if the last delivered token had been drafted."""
        current = self._round
        return current is not None and current.rows[current.row + 1 : current.row + 2] == [self._last]

    def next_token(self) -> int | None:
        """Sample and return the next token; None if the context is full."""
        if self._full:
            return None
        self.n_delivered += 1
        current = self._round
        if current is not None:
            current.sampled = current.row + 1
        self._last = self._sample(self.text.row if current is None else current.row)
        return self._last

    def advance(self, token: int, inserted: Sequence[int] = ()) -> None:
        """Continue after `token` and, if the caller inserts tokens, after those."""
        current = self._round
        follows = current is not None and current.rows[current.row + 1 : current.row + 2] == [token]
        if current is not None and follows and not inserted:
            current.row += 1
            self.text.record(token, current.row)
            return
        self.finish()
        if inserted:
            self.text.extend([token, *inserted])
            if self.plan.drafter is not None:
                self.plan.drafter.accept([token, *inserted])
        else:
            self._round = self._start(token)
            self._full = self._round is None

    def finish(self, *, stopped: bool = False) -> None:
        """Commit the accepted part of the pending round. `stopped`: the caller requests no further token."""
        plan, current, self._round = self.plan, self._round, None
        if current is not None:
            self._end(plan, current, stopped=stopped)
        if stopped and plan.drafter is not None:
            plan.drafter.finish()

    def _end(self, plan: Plan, current: _Round, *, stopped: bool) -> None:
        """Commit what the round has delivered, and count it."""
        start = time.perf_counter()
        n_kept = current.row + 1
        self.text.session.commit(n_kept)
        if plan.drafter is not None:
            plan.drafter.accept(current.rows[:n_kept])
        n_draft = len(current.rows) - 1
        refused = current.sampled > current.row and current.rows[n_kept : n_kept + 1] != [self._last]
        if stopped and not refused:  # it is unknown if the rest would have been accepted
            n_draft = min(n_draft, current.row)
        else:
            verify_ms = current.verify_ms + (time.perf_counter() - start) * 1e3
            plan.length.observe(RoundCost(n_draft, current.row, current.draft_ms, verify_ms))
        source = plan.drafter.source_name if plan.drafter is not None and n_draft else NONE
        self.statistics.add_round(n_draft, current.row, current.sampled, source)

    def _start(self, token: int) -> _Round | None:
        """Draft and verify the next round; return None if the context is full."""
        session, plan = self.text.session, self.plan
        start = time.perf_counter()
        more: list[int] = []
        if plan.drafter is not None:
            n_draft = plan.length.choose(min(session.n_draft_room, self._n_useful()))
            proposed = plan.drafter.draft(token, n_draft) if n_draft > 0 else []
            more = self._usable(proposed) if len(proposed) >= plan.n_draft_min else []
        drafted_at = time.perf_counter()
        with self._undone_if_interrupted():
            rows = self._verify([token, *more])
            if not rows:
                return None
            end = time.perf_counter()
            note_round(len(rows), end - drafted_at)
            self.text.record(token, 0)
            return _Round(rows, (drafted_at - start) * 1e3, (end - drafted_at) * 1e3)

    def _n_useful(self) -> int:
        """Return how many drafted tokens can still be delivered.

        The last token of a generation is sampled, never drafted.
        """
        limit, longest = self.plan.max_tokens, self.plan.n_draft_max
        longest = self.text.session.n_draft_max if longest is None else longest
        return longest if limit is None else min(longest, max(limit - self.n_delivered - 1, 0))

    def _usable(self, proposed: Sequence[int]) -> list[int]:
        """Return the tokens before the first invalid one: a look-up may have matched the rows of an image."""
        return list(takewhile(lambda token: 0 <= token < self.text.n_vocab, proposed))

    def _verify(self, rows: list[int]) -> list[int]:
        """Verify all rows, or the first if the context is full; return those verified.

        Images take more room in the memory than their positions indicate.
        """
        for n_rows in (len(rows), 1):
            try:
                self.text.session.verify(rows[:n_rows], is_final=len(rows) == 1)
            except NativeError as error:
                if error.code != ERR_CONTEXT_FULL:
                    raise
            else:
                return rows[:n_rows]
        return []

    @contextmanager
    def _undone_if_interrupted(self) -> Iterator[None]:
        """Restore memory and text if Ctrl-C arrives between the verification and its bookkeeping."""
        n_tokens = self.text.n_tokens
        try:
            yield
        except BaseException:
            self.text.n_tokens, self.text.is_live = n_tokens, False
            with suppress(EagleError):  # nothing is pending if the verification itself failed
                self.text.session.commit(0)
            raise

    def _sample(self, row: int) -> int:
        start = time.perf_counter()
        if self._round is not None and self.plan.rejection is not None and row + 1 < len(self._round.rows):
            require_numbers(self.text.session.ctx, row)
            token = self.plan.rejection.sample(self.text.logits(row), row)
        else:
            token = sample(self.text.session.ctx, self.plan.sampler, row)
        elapsed = (time.perf_counter() - start) * 1e3
        self.plan.sample_ms += elapsed
        if self._round is not None:
            self._round.verify_ms += elapsed
        return token
