"""Drafting options: which drafter to use and how long drafts may be. As light as sessions/options.py.

Each field carries its help, its limits and where it applies. The command line (cli/options.py), the keywords of
`EagleLlama`, the configuration files of `serve` (serving/llama_server/options.py) and the tables of docs/commands.md
and docs/eagle-llama.md follow from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle.errors import UsageError, refuse
from llama_eagle.files import refuse_special
from llama_eagle.native.limits import LONGEST, MAX_CONTEXT, MAX_EXACT_DRAFT, MAX_INT
from llama_eagle.sessions.options import MTP

if TYPE_CHECKING:
    from llama_eagle.drafting.drafter import Drafter

AUTO, NONE, LOOKUP = "auto", "none", "lookup"
DRAFT_VOCAB = 16384  # on a CPU, more rows cost more time than they save (docs/mtp.md)


@dataclass(frozen=True)
class About:
    """Description of a field.

    flag: its name on the command line ("": none). metavar: its value there. least, most: limits. choices: all values.
    kind: its type in the configuration files of `serve` (None: llama-server has no such setting).
    """

    help: str
    flag: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    kind: Any = None


def about(name: str) -> About:
    """Return the description of a field of `DraftingOptions`."""
    described: About = DraftingOptions.__dataclass_fields__[name].metadata["about"]
    return described


def _about(*given: Any, **further: Any) -> dict[str, About]:
    return {"about": About(*given, **further)}


@dataclass(frozen=True)
class DraftingOptions:
    """Drafting options, the same for `EagleLlama`, `generate`, `chat`, `serve`, `evaluate` and `bench`.

    Raises `UsageError` for values out of range.
    """

    draft: str | Path | None = field(
        default=None,
        metadata=_about(
            "Drafter: a GGUF file with a draft model or an MTP head, mtp (the target's own head), lookup (prompt "
            "look-up), none or auto. auto, the default, is the draft with the best price (`llama-eagle check`) among "
            "the target's MTP head, draft files next to the target and published drafts that `llama-eagle pull` or "
            "`run` has fetched. Without one, it is prompt look-up.",
            "--draft",
            "DRAFT.gguf|mtp|lookup|none|auto",
            kind=str,
        ),
    )
    n_draft: int | str = field(
        default="auto",
        metadata=_about(
            "Draft length in tokens per round, or auto: chosen from the measured acceptance rate and cost, down to no "
            "draft.",
            "--n-draft",
            "K|auto",
            kind=int | str,
        ),
    )
    n_draft_max: int = field(
        default=LONGEST,
        metadata=_about(
            "Maximum draft length in tokens for auto. A lower value saves memory with recurrent models such as "
            "Qwen3.5.",
            "--n-draft-max",
            least=1,
            most=MAX_INT,
            kind=int,
        ),
    )
    p_min: float = field(
        default=0.0,
        metadata=_about(
            "End a draft when the product of its tokens' probabilities in the draft model falls below this, from 0 to "
            "1 (0: never).",
            "--p-min",
            kind=float,
        ),
    )
    draft_sampling: str = field(
        default="match",
        metadata=_about(
            "Verification of drafts at temperatures above 0. match: the text is identical to plain decoding on CPUs, "
            "and on CUDA with exact. rejection: only the distribution is the same, and more tokens are accepted at "
            "high temperatures.",
            "--draft-sampling",
            "match|rejection",
            choices=("match", "rejection"),
        ),
    )
    exact: bool = field(
        default=False,
        metadata=_about(
            "Guarantee that drafts do not change the text: use exact kernels on CUDA too, and fail if any weight has "
            "none.",
            "--exact",
            kind=bool,
        ),
    )
    draft_gpu_layers: int | None = field(
        default=None,
        metadata=_about(
            "Number of the draft model's layers on the GPU (-1: all; default: same as the target).",
            "--draft-gpu-layers",
            least=-1,
            most=MAX_INT,
            kind=int,
        ),
    )
    draft_n_ctx: int = field(
        default=0,
        metadata=_about(
            "Context size of the draft model in tokens (0: same as the target, at most the size it was trained with). "
            "A smaller one saves memory; longer texts are drafted from their last tokens.",
            "--draft-ctx-size",
            least=0,
            most=MAX_CONTEXT,
            kind=int,
        ),
    )
    draft_vocab: int | str | None = field(
        default=None,
        metadata=_about(
            f"Number of tokens that a draft's head can propose, at least 16, or all (default: {DRAFT_VOCAB}, and all "
            "of a draft that has a vocabulary of its own). Fewer make drafting cheaper but miss rare tokens.",
            "--draft-vocab",
            "N|all",
            kind=int | str,
        ),
    )
    lookup: bool | None = field(
        default=None,
        metadata=_about(
            "Use prompt look-up, which copies drafts from earlier text, before the draft model if it is faster "
            "(default: on, except with a fixed draft length or rejection sampling).",
            "--lookup/--no-lookup",
            kind=bool,
        ),
    )
    lookup_cache: str | Path | None = field(
        default=None,
        metadata=_about(
            "File that keeps the texts of prompt look-up between runs: read at the start, extended at the end, created "
            "if missing. Models with the same vocabulary can share it.",
            "--lookup-cache",
            "FILE",
            kind=str,
        ),
    )
    drafter: Drafter | None = field(
        default=None,
        metadata=_about(
            "Your own drafter in place of prompt look-up: an object with the methods begin, draft and accept."
        ),
    )

    def __post_init__(self) -> None:
        if self.draft == AUTO:
            object.__setattr__(self, "draft", None)
        for each in fields(DraftingOptions):
            self._check_limits(each.name)
        fixed = None if self.n_draft == "auto" else self.n_draft
        refuse(
            {
                f"n_draft={self.n_draft!r} is neither 'auto' nor a number of 0 or more": (
                    fixed is not None and (isinstance(fixed, (str, bool)) or fixed < 0)
                ),
                f"n_draft={self.n_draft} is above {MAX_INT}": isinstance(fixed, int) and fixed > MAX_INT,
                f"p_min={self.p_min} is not in [0, 1)": not 0 <= self.p_min < 1,
                f"draft_vocab={self.draft_vocab!r} is neither 'all' nor a number of 16 or more": (
                    self.draft_vocab not in (None, "all")
                    and (isinstance(self.draft_vocab, (str, bool)) or int(self.draft_vocab or 0) < 16)
                ),
            }
        )
        if self.exact and isinstance(self.n_draft, int) and self.n_draft > MAX_EXACT_DRAFT:
            raise UsageError(
                f"exact verification supports drafts of at most {MAX_EXACT_DRAFT} tokens, not {self.n_draft}. Lower "
                "n_draft or omit exact."
            )
        if self.draft == "":
            raise UsageError("draft is empty. Give a file, mtp, lookup, none or auto.")
        if self.lookup is False and self.draft == LOOKUP:
            raise UsageError("draft='lookup' and lookup=False contradict each other. Leave one out.")
        if self.lookup_cache is not None:
            self._check_cache()
        if self.lookup and self.drafter is not None:
            raise UsageError("lookup and drafter are two drafters to try first. Leave one out.")
        if self.draft_sampling == "rejection":
            self._check_rejection()

    def _check_limits(self, name: str) -> None:
        value, known = getattr(self, name), about(name)
        if value is None:
            return
        if known.least is not None and value < known.least:
            raise UsageError(f"{name}={value} is below {known.least}. Correct it.")
        if known.most is not None and value > known.most:
            raise UsageError(f"{name}={value} is above {known.most}. Correct it.")
        if known.choices and value not in known.choices:
            raise UsageError(f"{name}={value!r} is neither {' nor '.join(map(repr, known.choices))}. Correct it.")

    @property
    def model(self) -> str | Path | None:
        """The draft model: a file, or `MTP` for the target's own head; None without a draft model."""
        return None if self.draft in (None, NONE, LOOKUP) else self.draft

    @property
    def draft_file(self) -> Path | None:
        """The draft model's own file; None if it has none."""
        return None if self.model in (None, MTP) else Path(str(self.model))

    @property
    def drafts(self) -> bool:
        """True if these options name a drafter."""
        return self.draft not in (None, NONE) or self.drafter is not None or bool(self.lookup)

    @property
    def looks_up(self) -> bool:
        """True if prompt look-up is used, alone or first."""
        if self.lookup is None:
            before_model = self.model is not None and self.n_draft == "auto" and self.draft_sampling == "match"
            return self.drafter is None and (self.draft == LOOKUP or before_model)
        return self.lookup

    @property
    def longest(self) -> int:
        """Maximum draft length in tokens; 0 without a drafter."""
        longest = max(self.n_draft_max, self.n_draft) if isinstance(self.n_draft, int) else self.n_draft_max
        return longest if self.drafts else 0

    def _check_cache(self) -> None:
        """Turn the look-up on. Raises `UsageError` where it is turned off, `InputError` for a pipe or device."""
        if self.draft == NONE or self.lookup is False or self.drafter is not None:
            raise UsageError("lookup_cache needs prompt look-up, which is turned off. Leave one out.")
        if self.lookup_cache == "":
            raise UsageError("lookup_cache is empty. Name a file.")
        refuse_special(Path(self.lookup_cache or ""))
        object.__setattr__(self, "lookup", True)

    def _check_rejection(self) -> None:
        if self.model is None or self.drafter is not None or self.lookup:
            raise UsageError(
                "draft_sampling='rejection' samples from the draft model: it requires draft and no other drafter."
            )
        if self.exact:
            raise UsageError(
                "exact=True guarantees the text of plain decoding, rejection sampling only its distribution. Omit one."
            )
