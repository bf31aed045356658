"""What speculative rounds did and what they took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llama_eagle.drafting.lookup import PromptLookup
from llama_eagle.sessions.session import Timings

NATIVE_PHASES = ("draft", "verify", "sample", "commit")


ENOUGH_DRAFTED = 100  # tokens, before nothing is expected of a draft any more
NEVER = 0.01  # acceptance rate
ENOUGH_DRAFTS = 25  # drafts of one token each are fewer tokens, and prove as much


def phases(before: Timings, after: Timings, ms: float, sample_ms: float = 0.0) -> dict[str, float]:
    """Native time by phase between two readings; what is left of `ms` is Python's.

    `sample_ms`: native sampling that the session did not time.
    """
    native = {name: getattr(after, f"{name}_ms") - getattr(before, f"{name}_ms") for name in NATIVE_PHASES}
    native["sample"] += sample_ms
    return {**native, "python": max(ms - sum(native.values()), 0.0)}


@dataclass
class Statistics:
    """What the rounds of one generation did. Times in ms over the whole generation, prompt excluded."""

    drafter: str = "none"
    rounds: int = 0
    rounds_of: dict[str, int] = field(default_factory=dict)  # by what drafted them
    counts_of: dict[str, tuple[int, int]] = field(default_factory=dict)  # tokens drafted and accepted, likewise
    n_drafted: int = 0
    n_accepted: int = 0
    n_emitted: int = 0
    tried_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    ms: dict[str, float] = field(default_factory=dict)

    def add(self, other: Statistics) -> None:
        """Count another generation in."""
        self.drafter = other.drafter
        self.rounds += other.rounds
        for name, n_rounds in other.rounds_of.items():
            self.rounds_of[name] = self.rounds_of.get(name, 0) + n_rounds
        for name, counts in other.counts_of.items():
            self._count(name, *counts)
        self.n_drafted += other.n_drafted
        self.n_accepted += other.n_accepted
        self.n_emitted += other.n_emitted
        self._grow(len(other.tried_at))
        for i, (tried, accepted) in enumerate(zip(other.tried_at, other.accepted_at, strict=True)):
            self.tried_at[i] += tried
            self.accepted_at[i] += accepted
        for name, value in other.ms.items():
            self.ms[name] = self.ms.get(name, 0.0) + value

    def add_round(self, n_draft: int, n_accepted: int, n_emitted: int, drafter: str) -> None:
        self.rounds += 1
        self.rounds_of[drafter] = self.rounds_of.get(drafter, 0) + 1
        self._count(drafter, n_draft, n_accepted)
        self.n_drafted += n_draft
        self.n_accepted += n_accepted
        self.n_emitted += n_emitted
        self._grow(n_draft)
        for i in range(min(n_draft, n_accepted + 1)):
            self.tried_at[i] += 1
            self.accepted_at[i] += i < n_accepted

    @property
    def accept_rate(self) -> float:
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def mean_emitted(self) -> float:
        return self.n_emitted / self.rounds if self.rounds else 0.0

    @property
    def accepted_per_position(self) -> list[float]:
        """For each draft position, the share accepted among the rounds in which all earlier ones were."""
        return [accepted / tried for accepted, tried in zip(self.accepted_at, self.tried_at, strict=True) if tried]

    def __str__(self) -> str:
        """In a line, for people."""
        if not self.rounds:
            return "no rounds yet"
        if not self.n_drafted:
            return f"{self.n_emitted} tokens, nothing drafted"
        shares = " ".join(f"{share:.0%}" for share in self.accepted_per_position)
        ms = ", ".join(f"{name} {value:.0f}" for name, value in self.ms.items())
        return (
            f"{self.n_emitted} tokens in {self.rounds} rounds, {self.mean_emitted:.2f} a round; {self.drafter}: "
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

    def _grow(self, n_positions: int) -> None:
        missing = [0] * (n_positions - len(self.tried_at))
        self.tried_at += missing
        self.accepted_at += missing


def unaccepted(statistics: Statistics | None) -> str | None:
    """A sentence about a draft that is practically never accepted; None for others, and for too few drafted tokens.

    Look-ups are left out: in a text without repetitions none is right. Of a dead head next to a look-up, few and short
    drafts are made.
    """
    if statistics is None:
        return None
    for name, (n_drafted, n_accepted) in statistics.counts_of.items():
        is_enough = n_drafted >= ENOUGH_DRAFTED or statistics.rounds_of.get(name, 0) >= ENOUGH_DRAFTS
        if name != PromptLookup.name and n_drafted and is_enough and n_accepted <= NEVER * n_drafted:
            count = f"{n_accepted or 'none'} of {n_drafted} drafted tokens {'were' if n_accepted > 1 else 'was'}"
            return f"{count} accepted: wrong draft for this target, or a dead head"
    return None
