"""Drafter for the session's own draft model: EAGLE-3, DFlash, or the target's MTP head."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from llama_eagle.drafting.drafter import OwnDrafter
from llama_eagle.sessions.session import EagleSession


class SessionDraft(OwnDrafter):
    """The session's own draft; it follows the target's memory without calls to `accept`."""

    is_model = True

    def __init__(self, session: EagleSession, p_min: float) -> None:
        self._session = session
        self.p_min = p_min
        self.name = session.draft_kind
        self._notice = session.draft_notice

    def begin(self, tokens: Sequence[int]) -> None:
        pass

    def draft(self, id_last: int, n_max: int) -> list[int]:
        drafted = self._session.draft(id_last, n_max, self.p_min)
        if (notice := self._session.draft_notice) != self._notice:  # its memory has begun to slide
            self._notice = notice
            warnings.warn(f"{notice}.", stacklevel=2)
        return drafted

    def accept(self, tokens: Sequence[int]) -> None:
        pass
