"""Rounds that are told to a drafter: how many rows each keeps is set, whatever a random head drafts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fixtures.f32_memory import f32_session
from llama_eagle.bench.peer import Peer
from llama_eagle.sessions.models import Context, ModelPair
from llama_eagle.sessions.options import MTP, ContextOptions, PairOptions, SessionOptions
from llama_eagle.synthetic.cycle import Cycle
from parity.mtp_reference import MTPReference, TargetStates


@dataclass(frozen=True)
class Round:
    """rows [n_draft + 1] are decoded after the draft that follows rows[0]; the first n_kept of them stay."""

    rows: list[int]
    n_kept: int


@dataclass(frozen=True)
class Script:
    prompt: list[int]
    n_draft: int
    rounds: list[Round]

    @classmethod
    def random(cls, n_prompt: int, n_draft: int, n_rounds: int, n_vocab: int, seed: int) -> Script:
        """Keeps 1 to n_draft + 1 rows, each equally often."""
        rng = np.random.default_rng(seed)
        kept = 1 + rng.permutation(n_rounds) % (n_draft + 1)
        rounds = [Round(rng.integers(0, n_vocab, n_draft + 1).tolist(), int(n)) for n in kept]
        return cls(rng.integers(0, n_vocab, n_prompt).tolist(), n_draft, rounds)

    @classmethod
    def greedy(cls, cycle: Cycle, n_draft: int, n_rounds: int) -> Script:
        """Generate with a constructed target and its head: each round keeps the correct drafts."""
        prompt, rounds = cycle.expected_tokens(0, 8), []
        last = cycle.expected_next(prompt[-1])
        for _ in range(n_rounds):
            rows = [last]
            while len(rows) <= n_draft:
                rows.append(cycle.draft_next(rows[-1]))
            wrong = (i for i in range(1, n_draft + 1) if rows[i] != cycle.expected_next(rows[i - 1]))
            n_kept = next(wrong, n_draft + 1)
            last = cycle.expected_next(rows[n_kept - 1])
            rounds.append(Round(rows, n_kept))
        return cls(prompt, n_draft, rounds)

    @property
    def text(self) -> list[int]:
        """The prompt and all rows that were kept."""
        return self.prompt + [token for r in self.rounds for token in r.rows[: r.n_kept]]

    def write(self, path: Path) -> Path:
        head = [len(self.prompt), self.n_draft, len(self.rounds), *self.prompt]
        np.array(head + [n for r in self.rounds for n in (r.n_kept, *r.rows)], np.int32).tofile(path)
        return path

    def drafted_by_upstream(self, peer: Peer, model: Path, folder: Path) -> list[list[int]]:
        """Return the drafts of each round by llama.cpp's own driver."""
        command = [peer.folder / "mtp-rounds", model, self.write(folder / "script"), folder / "drafted"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        found: list[list[int]] = np.fromfile(folder / "drafted", np.int32).reshape(-1, self.n_draft).tolist()
        return found

    def drafted_by_ours(self, model: Path) -> Iterator[list[int]]:
        """Return the drafts of each round by our engine with the target's own head."""
        f32 = ContextOptions(
            n_ctx=len(self.text) + self.n_draft + 1, n_threads=1, flash_attn="off", type_k="f32", type_v="f32",
            n_rs_seq=self.n_draft,
        )  # fmt: skip
        with (
            ModelPair(PairOptions(model, MTP)) as pair,
            Context(pair.target, f32) as context,
            f32_session(context, pair.target, SessionOptions(self.n_draft)) as session,
        ):
            session.eval(self.prompt)
            for r in self.rounds:
                yield session.draft(r.rows[0], self.n_draft)
                session.verify(r.rows)
                session.commit(r.n_kept)

    def drafted_by_reference(self, checkpoint: Path) -> Iterator[list[int]]:
        """Return the drafts of each round by the plain torch head."""
        reference, hidden = MTPReference(checkpoint), TargetStates(checkpoint).hidden(self.text)
        n = len(self.prompt)
        reference.prefill(self.prompt, hidden[: n - 1])
        for r in self.rounds:
            yield [step.token for step in reference.chain(r.rows[0], hidden[n - 1], self.n_draft)]
            reference.trim(n)
            for token in r.rows[: r.n_kept]:
                reference.row(token, hidden[n - 1])
                n += 1
