"""What drafts for a target, and how far its drafts reach: values and their limits. As light as sessions/options.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle.errors import UsageError, refuse
from llama_eagle.native.limits import LONGEST, MAX_EXACT_DRAFT
from llama_eagle.sessions.options import MTP

if TYPE_CHECKING:
    from llama_eagle.drafting.drafter import Drafter

NONE, LOOKUP = "none", "lookup"
DRAFT_VOCAB = 16384  # on a CPU, more rows cost more than they bring: docs/mtp.md


@dataclass(frozen=True)
class DraftingOptions:
    """The same for `EagleLlama`, `generate`, `chat`, `serve`, `evaluate` and `bench`. Lengths in tokens.

    draft: a GGUF with an EAGLE-3 draft or an MTP head, "mtp" (the target's own head), "lookup" (in the text so far) or
        "none"; None: what there is, see drafting/resolve.py.
    draft_vocab: rows of an MTP draft's head, "all" for the whole vocabulary; None: DRAFT_VOCAB.
    n_draft: tokens drafted in a round, or "auto": by measured acceptance and cost, down to none.
    n_draft_max: the longest draft; sets how far a recurrent state can be taken back.
    p_min: a draft ends where its cumulative probability falls below this.
    draft_sampling: "match": rows are sampled while the sample equals the most likely draft token; the same seed gives
        the same text as without a draft. "rejection": draft tokens are drawn and kept or replaced such that the
        distribution stays; more are kept at high temperatures, and a seed gives another text.
    exact: verification computes each row as plain decoding would, to the last bit; refused where it cannot.
    draft_gpu_layers: None: as the target. draft_n_ctx: positions the draft sees, 0: as the target.
    lookup: whether drafts are looked up in the text so far first, where that pays; None: beside a draft model, with
        n_draft="auto" and draft_sampling="match".
    drafter: another source of drafts, in place of the look-up; beside a draft, it is asked first while it pays.

    Raises `UsageError` for values out of range.
    """

    draft: str | Path | None = None
    n_draft: int | str = "auto"
    n_draft_max: int = LONGEST
    p_min: float = 0.0
    draft_sampling: str = "match"
    exact: bool = False
    draft_gpu_layers: int | None = None
    draft_n_ctx: int = 0
    draft_vocab: int | str | None = None
    lookup: bool | None = None
    drafter: Drafter | None = None

    def __post_init__(self) -> None:
        fixed = None if self.n_draft == "auto" else self.n_draft
        refuse(
            {
                f"n_draft={self.n_draft!r} is neither 'auto' nor a number of 0 or more": (
                    fixed is not None and (isinstance(fixed, (str, bool)) or fixed < 0)
                ),
                f"n_draft_max={self.n_draft_max} is below 1": self.n_draft_max < 1,
                f"draft_sampling={self.draft_sampling!r} is neither 'match' nor 'rejection'": (
                    self.draft_sampling not in ("match", "rejection")
                ),
                f"p_min={self.p_min} is not in [0, 1)": not 0 <= self.p_min < 1,
                f"draft_n_ctx={self.draft_n_ctx} is negative": self.draft_n_ctx < 0,
                f"draft_vocab={self.draft_vocab!r} is neither 'all' nor a number of 16 or more": (
                    self.draft_vocab not in (None, "all")
                    and (isinstance(self.draft_vocab, (str, bool)) or int(self.draft_vocab or 0) < 16)
                ),
            }
        )
        if self.exact and isinstance(self.n_draft, int) and self.n_draft > MAX_EXACT_DRAFT:
            raise UsageError(
                f"exact verification goes up to drafts of {MAX_EXACT_DRAFT} tokens, not {self.n_draft}. Lower n_draft "
                "or leave exact out."
            )
        if self.lookup is False and self.draft == LOOKUP:
            raise UsageError("draft='lookup' and lookup=False contradict each other. Leave one out.")
        if self.lookup and self.drafter is not None:
            raise UsageError("lookup and drafter name two things to ask first. Leave one out.")
        if self.draft_sampling == "rejection":
            self._check_rejection()

    @property
    def model(self) -> str | Path | None:
        """The model that drafts: a file, or `MTP` for the target's own head; None: no model does."""
        return None if self.draft in (None, NONE, LOOKUP) else self.draft

    @property
    def draft_file(self) -> Path | None:
        """The draft model's own file; None: it has none."""
        return None if self.model in (None, MTP) else Path(str(self.model))

    @property
    def drafts(self) -> bool:
        """Whether these options name something that drafts."""
        return self.draft not in (None, NONE) or self.drafter is not None or bool(self.lookup)

    @property
    def looks_up(self) -> bool:
        """Whether drafts are looked up in the text, alone or first."""
        if self.lookup is None:
            beside = self.model is not None and self.n_draft == "auto" and self.draft_sampling == "match"
            return self.drafter is None and (self.draft == LOOKUP or beside)
        return self.lookup

    @property
    def longest(self) -> int:
        """Tokens of the longest draft, 0 when nothing drafts."""
        longest = max(self.n_draft_max, self.n_draft) if isinstance(self.n_draft, int) else self.n_draft_max
        return longest if self.drafts else 0

    def _check_rejection(self) -> None:
        if self.model is None or self.drafter is not None or self.lookup:
            raise UsageError(
                "draft_sampling='rejection' draws from the draft model: it needs draft and takes no other drafter."
            )
        if self.exact:
            raise UsageError(
                "exact=True promises the text of plain decoding, rejection sampling only its distribution."
            )
