"""Text of a constructed pair: the next token of every id, for the target and for the draft.

The vocabulary counts: " A", " B", ... " Z", " AA", " AB", ... The target always generates the next word, and starts
again after the last word of the draft's vocabulary. Every id outside of that cycle (bytes, specials, later words) is
followed by " A". The draft generates the same, except after the words of `wrong`, where it generates another word of
the cycle; a target's MTP head generates " A" there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

N_BYTES = 256
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
RUNS_PER_BLOCK = 50  # runs per stratified sample of the geometric distribution


def word(rank: int) -> str:
    """Return the rank-th column name of a spreadsheet: 0 is A, 25 is Z, 26 is AA.

    Prefixes of a word are earlier words.
    """
    letters = ""
    rank += 1
    while rank > 0:
        rank, digit = divmod(rank - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Expected measurements of speculative decoding over a part of the cycle, for a fixed draft length."""

    rounds: int
    n_drafted: int
    n_accepted: int
    accepted_per_position: tuple[float, ...]  # among the rounds in which all earlier positions were accepted

    @property
    def accept_rate(self) -> float:
        return self.n_accepted / self.n_drafted

    @property
    def mean_emitted(self) -> float:
        return 1 + self.n_accepted / self.rounds


class Cycle:
    """Successor tables of a vocabulary of `n_vocab` ids, `n_draft_vocab` of them in the draft.

    Ids: 0..255 are the bytes, then the words in an order drawn from `seed` (so that the draft's ids are scattered),
    then the specials, then ids without a token, as in the padded vocabularies of real checkpoints. `mtp`: the drafter
    is the target's own head, and its n_draft_vocab words have the lowest ids, as frequent words do, unless `rare` is
    set.
    """

    def __init__(
        self, n_vocab: int, n_draft_vocab: int, accept: float, seed: int, *, mtp: bool = False, rare: bool = False
    ) -> None:
        rng = np.random.default_rng([seed, 1])
        self.mtp = mtp
        self.n_vocab = n_vocab
        self.accept = accept
        self.n_words = n_vocab - N_BYTES - len(SPECIALS) - n_vocab // 1024
        self.special_ids = {text: N_BYTES + self.n_words + i for i, text in enumerate(SPECIALS)}
        order = rng.permutation(self.n_words)
        if mtp and not rare:
            order = np.concatenate([order[order < n_draft_vocab], order[order >= n_draft_vocab]])
        self.word_ids: NDArray[np.int64] = N_BYTES + order  # word rank -> id
        self.ids = self.word_ids[:n_draft_vocab]  # cycle position -> id
        self.draft_ids = np.sort(self.ids)  # draft index -> id
        self.position = np.full(n_vocab, -1)  # id -> cycle position, -1 outside
        self.position[self.ids] = np.arange(n_draft_vocab)
        self.next_ids = np.full(n_vocab, self.ids[0])
        self.next_ids[self.ids] = np.roll(self.ids, -1)
        self.wrong = _wrong_positions(n_draft_vocab, accept, rng)  # cycle positions
        self.draft_next_ids = self.next_ids.copy()
        self.draft_next_ids[self.ids[self.wrong]] = (
            self.start if mtp else self.next_ids[self.ids[np.roll(self.wrong, 1)]]
        )

    @property
    def start(self) -> int:
        """The id that follows every id outside of the cycle."""
        return int(self.ids[0])

    def expected_next(self, token: int) -> int:
        """Return the target's greedy choice after `token`."""
        return int(self.next_ids[token])

    def draft_next(self, token: int) -> int:
        """Return the draft's greedy choice after `token`."""
        return int(self.draft_next_ids[token])

    def walk(self, last: int) -> Iterator[int]:
        """Yield the target's tokens after `last`, without end."""
        while True:
            last = self.expected_next(last)
            yield last

    def expected_tokens(self, last: int, n: int) -> list[int]:
        """Return the n tokens of greedy decoding after a prompt that ends with `last`."""
        return list(itertools.islice(self.walk(last), n))

    def expected_text(self, last: int, n: int) -> str:
        return "".join(" " + word(int(self.position[token])) for token in self.expected_tokens(last, n))

    def counting(self, n: int) -> str:
        """Return the text of the first n words, as a prompt."""
        return "".join(f" {word(rank)}" for rank in range(n))

    def expected_accept_rate(self, n_draft: int) -> float:
        """Return sum accepted / sum drafted over a long text. Each drafted token is right with probability `accept`."""
        return sum(self.accept**k for k in range(1, n_draft + 1)) / n_draft

    def expected_mean_emitted(self, n_draft: int) -> float:
        return 1 + n_draft * self.expected_accept_rate(n_draft)

    def simulate(self, last: int, n: int, n_draft: int) -> Rounds:
        """Return exact counts of the rounds that emit at least n tokens after `last`.

        The prompt gives the first token.
        """
        reached, accepted = [0] * n_draft, [0] * n_draft
        token, rounds, n_emitted = self.expected_next(last), 0, 1
        while n_emitted < n:
            rounds += 1
            for position in range(n_draft):
                reached[position] += 1
                if self.draft_next(token) != self.expected_next(token):
                    break
                accepted[position] += 1
                token, n_emitted = self.expected_next(token), n_emitted + 1
            token, n_emitted = self.expected_next(token), n_emitted + 1
        shares = tuple(a / r if r else float("nan") for a, r in zip(accepted, reached, strict=True))
        return Rounds(rounds, rounds * n_draft, sum(accepted), shares)


def _wrong_positions(n: int, accept: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the cycle positions at which the draft errs, shuffled, about n * (1 - accept) of them.

    The runs of right positions between them have geometric lengths, as for independent errors. Each block of runs is a
    stratified sample, so that rates measured over a few hundred tokens are already close to `accept`.
    """
    if accept >= 1:
        return np.empty(0, np.int64)
    if accept <= 0:
        return rng.permutation(n)
    positions: list[int] = []
    at = -1
    while at < n:
        strata = (rng.permutation(RUNS_PER_BLOCK) + rng.random(RUNS_PER_BLOCK)) / RUNS_PER_BLOCK
        runs = np.floor(np.log1p(-strata) / np.log(accept)).astype(np.int64)
        ends = at + np.cumsum(runs + 1)
        positions += ends.tolist()
        at = int(ends[-1])
    wrong = np.array([p for p in positions if p < n], np.int64)
    return rng.permutation(wrong) if len(wrong) > 1 else np.empty(0, np.int64)
