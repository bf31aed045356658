"""Price of a draft: its expected speed relative to plain decoding.

Costs are measured on this CPU by `check --measure`, or computed from bytes. Acceptance rates begin with those that
`check --measure` saw, those on the trainer's held-out data, or those that published drafts of the kind reach; what
`generate` and `chat` see for the pair is added to them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, zip_longest
from operator import mul
from pathlib import Path
from typing import Any

from llama_eagle.drafting.options import DRAFT_VOCAB
from llama_eagle.errors import EnvironmentFailure, InputError
from llama_eagle.files import kept_json, write_json
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.names import ASSISTANT, DRAFT_KINDS, HELD_OUT
from llama_eagle.gguf.pairing import draft_shares, drafts_blocks
from llama_eagle.native.processor.detect import cpu_name

LENGTHS = range(1, 9)  # of drafts
ROW = 0.08  # of a plain decode, for another row: docs/performance.md
# Rates of a token whose predecessors in the draft are right.
# Qwen3-8B, chat, code and math, drafts of 4 (speculators#563): 2.33 to 3.12 tokens per round.
ACCEPTED = 0.7
# LFM2.5-1.2B DSpark, mean of four kinds of text (llama.cpp#27383): 3.54 tokens per round, blocks of 9.
ACCEPTED_OF_BLOCK = 0.73
# Qwen3.8-27B, one token, pooled over code, facts, prose and technical texts (tenstorrent/vllm#442): 0.647 +- 0.020.
ACCEPTED_OF_HEAD = 0.65
PRIOR = 100  # drafted tokens that the rates before any use weigh as much as
MOST = 4000  # drafted tokens at a position, after which older ones count half
_SOURCES = {"held out": " and held-out acceptance", "earlier use": " and the acceptance of earlier use"}


@dataclass(frozen=True)
class Costs:
    """Acceptance rates by position, and times or bytes relative to a plain decode: of a row, a token, a block."""

    accepted: list[float]
    row: float
    token: float
    block: float = 0.0

    def speed(self, n_draft: int) -> float:
        """Return the expected speed with drafts of `n_draft` tokens, relative to plain decoding."""
        later = sum(self.accepted) / len(self.accepted)
        rates = [*self.accepted, *[later] * n_draft][:n_draft]
        return (1 + sum(accumulate(rates, mul))) / (1 + n_draft * (self.row + self.token) + self.block)


@dataclass(frozen=True)
class Price:
    """Expected speed with the best length, relative to plain decoding.

    acceptance: source of the acceptance rates: "typical" of the kind, "held out", "measured" or "earlier use".
    """

    speed: float
    n_draft: int
    is_measured: bool
    acceptance: str = "typical"

    def __str__(self) -> str:
        costs = "measured" if self.is_measured else "computed from bytes"
        return f"{self.speed:.2f} times plain decoding, {costs}{_SOURCES.get(self.acceptance, '')}"

    @property
    def pays(self) -> bool:
        """False if something that was seen of the pair says that drafts would be slower than plain decoding."""
        return self.speed >= 1 or (self.acceptance == "typical" and not self.is_measured)


def price(target: Sequence[Header], draft: Sequence[Header] | None = None) -> Price | None:
    """Return the price of a draft that fits, or of the target's own MTP head; None if the bytes are unknown."""
    measured = _read(target, draft)
    costs = measured or _computed(target, draft)
    if costs is None:
        return None
    source = "measured" if measured else "held out" if _held_out(draft) else "typical"
    if used := _used(target[0].path, draft[0].path if draft else None):
        costs, source = replace(costs, accepted=_updated(costs.accepted, used)), "earlier use"
    n_draft = max(LENGTHS, key=costs.speed)
    return Price(costs.speed(n_draft), n_draft, measured is not None, source)


def keep(target: Sequence[Header], draft: Sequence[Header] | None, costs: Costs) -> None:
    """Keep measured costs in the cache. Raises `EnvironmentFailure` or `OSError` if it cannot be written."""
    write_json(_costs_file(target, draft), asdict(costs))


def keep_rates(target: Sequence[Header], draft: Sequence[Header], rates: Sequence[float]) -> None:
    """Replace the acceptance rates in kept costs, which were measured on a text that may be of another kind.

    Raises `EnvironmentFailure` or `OSError` as `keep` does.
    """
    if rates and (costs := _read(target, draft)):
        keep(target, draft, replace(costs, accepted=list(rates)))


def learn(target: Path, draft: Path | None, tried: Sequence[int], accepted: Sequence[int]) -> None:
    """Add the drafted and the accepted tokens of generations, by position, to those kept for a pair.

    draft: None for the target's own head. Nothing is kept if the cache cannot be written.
    """
    if not tried:
        return
    old_tried, old_accepted = _used(target, draft) or ([], [])
    sums = [_sums(old_tried, tried), _sums(old_accepted, accepted)]
    if sums[0][0] > MOST:
        sums = [[n // 2 for n in each] for each in sums]
    with suppress(EnvironmentFailure, OSError):  # a read-only home: the next estimate is the same as this one
        write_json(_used_file(target, draft), {"tried": sums[0], "accepted": sums[1]})


def _sums(counts: Sequence[int], others: Sequence[int]) -> list[int]:
    return [sum(pair) for pair in zip_longest(counts, others, fillvalue=0)]


def _updated(rates: Sequence[float], used: tuple[list[int], list[int]]) -> list[float]:
    """Return acceptance rates by position: those before any use as `PRIOR` tokens, and what was counted."""
    later = sum(rates) / len(rates)
    counts = zip_longest(rates, *used)
    return [
        (PRIOR * (later if rate is None else rate) + (accepted or 0)) / (PRIOR + (tried or 0))
        for rate, tried, accepted in counts
    ]


def _computed(target: Sequence[Header], draft: Sequence[Header] | None) -> Costs | None:
    shares = draft_shares(target, draft)
    if not shares:
        return None
    share = shares.get(str(DRAFT_VOCAB), shares["all"])
    is_block = draft is not None and drafts_blocks(draft[0])
    accepted = _held_out(draft) or [_typical(draft)]
    return Costs(accepted, ROW, 0.0, share) if is_block else Costs(accepted, ROW, share)


def _typical(draft: Sequence[Header] | None) -> float:
    if draft is None or draft[0].architecture not in DRAFT_KINDS or draft[0].architecture == ASSISTANT:
        return ACCEPTED_OF_HEAD
    return ACCEPTED_OF_BLOCK if drafts_blocks(draft[0]) else ACCEPTED


def _held_out(draft: Sequence[Header] | None) -> list[float]:
    """Return the acceptance rates that the trainer wrote into the draft's file; empty without them."""
    try:
        rates = draft[0].value(HELD_OUT) if draft else None
        return [min(max(float(rate), 0.0), 1.0) for rate in rates] if isinstance(rates, list) else []
    except (InputError, OSError, TypeError, ValueError):
        return []


def _read(target: Sequence[Header], draft: Sequence[Header] | None) -> Costs | None:
    try:
        found = _read_json(_costs_file(target, draft))
        numbers = [float(found[name]) for name in ("row", "token", "block")]
        return Costs([float(rate) for rate in found["accepted"]] or [0.0], *numbers)
    except (EnvironmentFailure, OSError, ValueError, KeyError, TypeError):
        return None  # no cache, not measured, or damaged


def _used(target: Path, draft: Path | None) -> tuple[list[int], list[int]] | None:
    """Return the drafted and the accepted tokens by position that were seen for a pair; None if there were none."""
    try:
        found = _read_json(_used_file(target, draft))
        tried, accepted = ([int(n) for n in found[name]] for name in ("tried", "accepted"))
        is_sound = bool(tried) and all(0 <= right <= n for n, right in zip(tried, accepted, strict=True))
    except (EnvironmentFailure, OSError, ValueError, KeyError, TypeError):
        return None
    return (tried, accepted) if is_sound else None


def _read_json(file: Path) -> Any:
    return json.loads(file.read_bytes())


def _costs_file(target: Sequence[Header], draft: Sequence[Header] | None) -> Path:
    """Return the file with the measured costs of these files on this CPU."""
    return kept_json("prices", [file.path for file in (*target, *(draft or ()))], cpu_name())


def _used_file(target: Path, draft: Path | None) -> Path:
    """Return the file with the tokens that were drafted and accepted with these models."""
    return kept_json("acceptance", [target, *([draft] if draft else [])])
