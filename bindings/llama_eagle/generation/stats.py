"""Statistics of speculative rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.drafting.price import learn
from llama_eagle.sessions.session import Timings

NATIVE_PHASES = ("draft", "verify", "sample", "commit")


ENOUGH_DRAFTED = 100  # tokens, to judge a draft
ENOUGH_DRAFTS = 25  # rounds, to judge a draft of few tokens per round
NEVER = 0.01  # acceptance rate


def phases(before: Timings, after: Timings, ms: float, sample_ms: float = 0.0) -> dict[str, float]:
    """Return the native time of each phase between two readings, and of sampling; the rest of `ms` is Python's."""
    timed = {"draft": after.draft_ms - before.draft_ms, "verify": after.verify_ms - before.verify_ms}
    native = {**timed, "sample": sample_ms, "commit": after.commit_ms - before.commit_ms}
    return {**native, "python": max(ms - sum(native.values()), 0.0)}


@dataclass
class Positions:
    """Drafted tokens whose predecessors in the draft were accepted, and the accepted ones, by draft position."""

    tried: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add_round(self, n_draft: int, n_accepted: int) -> None:
        self._grow(n_draft)
        for i in range(min(n_draft, n_accepted + 1)):
            self.tried[i] += 1
            self.accepted[i] += i < n_accepted

    def add(self, other: Positions) -> None:
        self._grow(len(other.tried))
        for i, (tried, accepted) in enumerate(zip(other.tried, other.accepted, strict=True)):
            self.tried[i] += tried
            self.accepted[i] += accepted

    def _grow(self, n_positions: int) -> None:
        missing = [0] * (n_positions - len(self.tried))
        self.tried += missing
        self.accepted += missing


@dataclass
class Statistics:
    """Statistics of the rounds of one generation. Times are in ms, without the prompt."""

    drafter: str = "none"
    rounds: int = 0
    rounds_of: dict[str, int] = field(default_factory=dict)  # by drafter
    counts_of: dict[str, tuple[int, int]] = field(default_factory=dict)  # drafted and accepted tokens, by drafter
    n_drafted: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    positions_of: dict[str, Positions] = field(default_factory=dict)  # by drafter
    ms: dict[str, float] = field(default_factory=dict)

    def add(self, other: Statistics) -> None:
        """Add the statistics of another generation."""
        self.drafter = other.drafter
        self.rounds += other.rounds
        for name, n_rounds in other.rounds_of.items():
            self.rounds_of[name] = self.rounds_of.get(name, 0) + n_rounds
        for name, counts in other.counts_of.items():
            self._count(name, *counts)
        self.n_drafted += other.n_drafted
        self.n_accepted += other.n_accepted
        self.n_emitted += other.n_emitted
        for name, positions in other.positions_of.items():
            self.positions_of.setdefault(name, Positions()).add(positions)
        for name, value in other.ms.items():
            self.ms[name] = self.ms.get(name, 0.0) + value

    def add_round(self, n_draft: int, n_accepted: int, n_emitted: int, drafter: str) -> None:
        self.rounds += 1
        self.rounds_of[drafter] = self.rounds_of.get(drafter, 0) + 1
        self._count(drafter, n_draft, n_accepted)
        self.n_drafted += n_draft
        self.n_accepted += n_accepted
        self.n_emitted += n_emitted
        if n_draft:
            self.positions_of.setdefault(drafter, Positions()).add_round(n_draft, n_accepted)

    @property
    def positions(self) -> Positions:
        """Sum over all drafters."""
        total = Positions()
        for positions in self.positions_of.values():
            total.add(positions)
        return total

    @property
    def accept_rate(self) -> float:
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def mean_emitted(self) -> float:
        return self.n_emitted / self.rounds if self.rounds else 0.0

    @property
    def accepted_per_position(self) -> list[float]:
        """Share of accepted tokens per draft position, among the rounds that accepted all earlier positions."""
        total = self.positions
        return [accepted / tried for accepted, tried in zip(total.accepted, total.tried, strict=True) if tried]

    def __str__(self) -> str:
        """Return a summary of one line."""
        if not self.rounds:
            return "no rounds yet"
        if not self.n_drafted:
            return f"{self.n_emitted} tokens, nothing drafted"
        shares = " ".join(f"{share:.0%}" for share in self.accepted_per_position)
        ms = ", ".join(f"{name} {value:.0f}" for name, value in self.ms.items())
        return (
            f"{self.n_emitted} tokens in {self.rounds} rounds, {self.mean_emitted:.2f} per round; {self.drafter}: "
            f"{self.accept_rate:.0%} of {self.n_drafted} drafted tokens accepted (by position: {shares})"
            + (f"; ms: {ms}" if ms else "")
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "rounds": self.rounds,
            "rounds_of": self.rounds_of,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "accept_rate": self.accept_rate,
            "mean_emitted": self.mean_emitted,
            "accepted_per_position": self.accepted_per_position,
            "ms": {name: round(value, 3) for name, value in self.ms.items()},
        }

    def _count(self, drafter: str, n_drafted: int, n_accepted: int) -> None:
        drafted, accepted = self.counts_of.get(drafter, (0, 0))
        self.counts_of[drafter] = drafted + n_drafted, accepted + n_accepted


def unaccepted(statistics: Statistics | None) -> str | None:
    """Return a sentence about a draft that is almost never accepted; None for others, or with too few drafted tokens.

    Look-ups are excluded: in a text without repetition none is right. Next to a look-up, a dead MTP head makes few and
    short drafts, therefore drafts are counted as well as tokens.
    """
    if statistics is None:
        return None
    for name, (n_drafted, n_accepted) in statistics.counts_of.items():
        is_enough = n_drafted >= ENOUGH_DRAFTED or statistics.rounds_of.get(name, 0) >= ENOUGH_DRAFTS
        if name != PromptLookup.name and n_drafted and is_enough and n_accepted <= NEVER * n_drafted:
            count = f"{n_accepted or 'none'} of {n_drafted} drafted tokens {'were' if n_accepted > 1 else 'was'}"
            return f"{count} accepted: wrong draft for this target, or a dead head"
    return None


def learn_acceptance(statistics: Statistics | None, kind: str, target: Path, draft: Path | None) -> None:
    """Keep the acceptance of a draft model for its price.

    kind: its name in `statistics`. draft: None for the target's own head.
    """
    if statistics is not None and (seen := statistics.positions_of.get(kind)):
        learn(target, draft, seen.tried, seen.accepted)
