"""Price of a draft: its expected speed relative to plain decoding, measured on this CPU or computed from bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path

from llama_eagle.drafting.options import DRAFT_VOCAB
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import cache_dir, write_whole
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.names import ASSISTANT, DRAFT_KINDS
from llama_eagle.gguf.pairing import draft_shares, drafts_blocks
from llama_eagle.native.processor.detect import cpu_name

LENGTHS = range(1, 9)  # of drafts
ROW = 0.08  # of a plain decode, for another row: docs/performance.md
ACCEPTED = 0.7  # of the tokens at a position, if those before it are right: ordinary texts, published drafts
ACCEPTED_OF_HEAD = 0.8  # of an MTP head, which was trained with its model, and of a small model


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
    """Expected speed with the best length, relative to plain decoding."""

    speed: float
    n_draft: int
    is_measured: bool

    def __str__(self) -> str:
        return f"{self.speed:.2f} times plain decoding, {'measured' if self.is_measured else 'computed from bytes'}"


def price(target: Sequence[Header], draft: Sequence[Header] | None = None) -> Price | None:
    """Return the price of a draft that fits, or of the target's own MTP head; None if the bytes are unknown.

    It is measured if `check --measure` has measured these files on this CPU.
    """
    measured = _read(target, draft)
    costs = measured or _computed(target, draft)
    if costs is None:
        return None
    n_draft = max(LENGTHS, key=costs.speed)
    return Price(costs.speed(n_draft), n_draft, measured is not None)


def keep(target: Sequence[Header], draft: Sequence[Header] | None, costs: Costs) -> None:
    """Keep measured costs in the cache. Raises `EnvironmentFailure` or `OSError` if it cannot be written."""
    file = _file(target, draft)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda path: path.write_text(json.dumps(asdict(costs)), "utf-8"))


def _computed(target: Sequence[Header], draft: Sequence[Header] | None) -> Costs | None:
    shares = draft_shares(target, draft)
    if not shares:
        return None
    share = shares.get(str(DRAFT_VOCAB), shares["all"])
    is_head = draft is None or draft[0].architecture not in DRAFT_KINDS or draft[0].architecture == ASSISTANT
    accepted = [ACCEPTED_OF_HEAD if is_head else ACCEPTED]
    is_block = draft is not None and drafts_blocks(draft[0])
    return Costs(accepted, ROW, 0.0, share) if is_block else Costs(accepted, ROW, share)


def _read(target: Sequence[Header], draft: Sequence[Header] | None) -> Costs | None:
    try:
        found = json.loads(_file(target, draft).read_bytes())
        numbers = [float(found[name]) for name in ("row", "token", "block")]
        return Costs([float(rate) for rate in found["accepted"]] or [0.0], *numbers)
    except (EnvironmentFailure, OSError, ValueError, KeyError, TypeError):
        return None  # no cache, not measured, or damaged


def _file(target: Sequence[Header], draft: Sequence[Header] | None) -> Path:
    """Return the file with the measured costs of these files on this CPU."""
    states = [(file.path.resolve(), file.path.stat()) for file in (*target, *(draft or ()))]
    key = [cpu_name(), *(f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in states)]
    return cache_dir() / "prices" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
