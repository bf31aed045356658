"""Sampled drafts, verified by rejection sampling.

A drafted token d was drawn from the draft's distribution q. With p the target's distribution at its place, d is kept
with probability min(1, p(d) / q(d)); otherwise a token is drawn from max(p - q, 0), normalized. The text then has the
distribution p for any q (Leviathan et al. 2023, arXiv:2211.17192, theorem 1). p is the result of the caller's whole
sampler chain on the target's logits, q that of its filters and temperature on the draft's.

Comparing a sample with the draft's most likely token d accepts with probability p(d). Rejection sampling accepts with
probability sum min(p, q), which is more if p is flat and q is similar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_eagle.drafting.drafter import OwnDrafter
from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.generation.sampling import Sampler
from llama_eagle.native import calls
from llama_eagle.sessions.session import EagleSession

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


@dataclass(frozen=True)
class Distribution:
    """Possible next tokens, `ids` [n] in any order, with `probs` [n] that sum to 1.

    All other tokens have probability 0.
    """

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        return float(self.probs[self.ids == token].sum())

    def draw(self, rng: np.random.Generator) -> int:
        cumulative = np.cumsum(self.probs)
        at = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
        return int(self.ids[min(at, len(self.ids) - 1)])

    def beyond(self, other: Distribution) -> Distribution | None:
        """Return max(self - other, 0), normalized; None if nothing is left."""
        order = np.argsort(other.ids)
        at = np.minimum(np.searchsorted(other.ids, self.ids, sorter=order), len(order) - 1)
        theirs = np.where(other.ids[order[at]] == self.ids, other.probs[order[at]], 0.0)
        rest = np.maximum(self.probs - theirs, 0.0)
        return Distribution(self.ids, rest / rest.sum()) if rest.sum() > 0 else None


def verified(token: int, q: Distribution, p: Distribution, rng: np.random.Generator) -> int:
    """Return `token`, which was drawn from `q`, or a replacement, so that the result is distributed as `p`."""
    if rng.random() * q.prob(token) < p.prob(token):
        return token
    rest = p.beyond(q)
    return token if rest is None else rest.draw(rng)


class Chain:
    """A llama_sampler chain that ends with `dist`, and access to the distribution it samples from."""

    def __init__(self, sampler: Any, ids: NDArray[np.int32]) -> None:
        from llama_eagle.native import llama_cpp

        self._api: Any = llama_cpp
        self._sampler = sampler  # llama_sampler pointer
        self.ids = ids  # token ids of the logits
        self._data = np.empty(len(ids), CANDIDATE)

    def distribution(self, logits: NDArray[np.float32]) -> Distribution:
        """Return the chain's distribution for `logits` [n].

        The chain accepts no token; its random number is not used.
        """
        api = self._api
        self._data["id"], self._data["logit"], self._data["p"] = self.ids, logits, 0
        pointer = self._data.ctypes.data_as(api.llama_token_data_p)
        array = api.llama_token_data_array(data=pointer, size=len(self._data), selected=-1, sorted=False)
        calls.apply_sampler(self._sampler, array)
        left = np.ctypeslib.as_array(array.data, shape=(array.size,))
        return Distribution(left["id"].copy(), left["p"].astype(np.float64))

    def accept(self, token: int) -> None:
        calls.accept(self._sampler, token)


class RejectionSampling(OwnDrafter):
    """Drafter and sampler of one generation.

    The engine drafts the most likely tokens, one after the other. At each step the token drawn from the distribution is
    proposed. If it is not the most likely token, the draft ends, because later steps were computed for that one.
    """

    def __init__(self, session: EagleSession, p_min: float, target: Chain, draft: Chain, seed: int | None) -> None:
        self._session = session
        self._p_min = p_min
        self._target, self._draft = target, draft
        self._rng = np.random.default_rng(seed)
        self.name = f"{session.draft_kind}, sampled"
        self._proposed: list[tuple[int, Distribution]] = []

    def begin(self, tokens: Sequence[int]) -> None:
        pass

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def draft(self, id_last: int, n_max: int) -> list[int]:
        """Return up to `n_max` tokens drawn from the draft, to follow `id_last`."""
        self._proposed = []
        drafted = self._session.draft(id_last, n_max, self._p_min)
        self._draft.ids = self._session.draft_ids  # a trimmed vocabulary changes with the text
        for step, likeliest in enumerate(drafted):
            q = self._draft.distribution(self._session.draft_logits(step))
            token = q.draw(self._rng)
            self._proposed.append((token, q))
            if token != likeliest:
                break
        return [token for token, _ in self._proposed]

    def sample(self, logits: NDArray[np.float32], row: int) -> int:
        """Sample the token after row `row`, which a drafted token follows, from the target's logits [n_vocab]."""
        token, q = self._proposed[row]
        token = verified(token, q, self._target.distribution(logits), self._rng)
        self._target.accept(token)
        return token


@contextmanager
def rejection_sampling(
    session: EagleSession, options: DraftingOptions, sampler: Sampler
) -> Iterator[RejectionSampling | None]:
    """Yield a sampler of drafts with `sampler`'s filters, without penalties and grammar; None if drafts are matched."""
    params = sampler.params
    if options.draft_sampling != "rejection" or params.is_greedy or not session.has_draft:
        yield None
        return
    ids = session.draft_ids
    with Sampler(replace(params, repeat_penalty=1.0, grammar=None), len(ids)) as filters:
        draft, target = Chain(filters.handle, ids), Chain(sampler.handle, np.arange(sampler.n_vocab, dtype=np.int32))
        yield RejectionSampling(session, options.p_min, target, draft, params.seed)
