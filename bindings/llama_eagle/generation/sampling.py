"""Sampler chains: llama.cpp's samplers in llama.cpp's order, so that the target's distribution stays exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llama_eagle.errors import EnvironmentFailure
from llama_eagle.generation.options import RANDOM_SEED, SamplingParams
from llama_eagle.native import calls
from llama_eagle.native.calls import library
from llama_eagle.native.closing import Closing


class Sampler(Closing):
    """A llama_sampler chain built from `SamplingParams`. Free it with `close()` or use it as a context manager."""

    def __init__(self, params: SamplingParams, n_vocab: int, vocab: Any = None) -> None:
        """Build the chain.

        vocab: llama_vocab pointer, required for a grammar. Raises `UsageError` for an invalid grammar.
        """
        library()
        from llama_eagle.native import llama_cpp

        self._api: Any = llama_cpp
        self.n_vocab = n_vocab
        self.params = params
        self._vocab = vocab
        self._penalties: Any = None
        self.handle: Any = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        try:
            for part in self._parts():
                if not part:
                    raise EnvironmentFailure(
                        "llama.cpp could not create a sampler: out of memory. Free some and retry."
                    )
                llama_cpp.llama_sampler_chain_add(self.handle, part)
        except BaseException:
            self.close()
            raise

    def sample(self, ctx: Any, row: int = -1) -> int:
        """Sample from row `row` of the last decode (-1: the last row) and accept the token in the chain."""
        return calls.sample(ctx, self.handle, row)

    def prime(self, prompt: Sequence[int]) -> None:
        """Add the end of the prompt to the penalties. The grammar starts after the prompt."""
        if self._penalties:
            for token in prompt[-self.params.penalty_last_n :]:
                calls.accept(self._penalties, token)

    def close(self) -> None:
        if self.handle:
            self._api.llama_sampler_free(self.handle)
            self.handle = self._penalties = None

    def _parts(self) -> Iterator[Any]:
        """Yield the samplers one at a time: the chain owns each before the next one is made."""
        api, params = self._api, self.params
        if params.has_penalties:
            penalty = (params.penalty_last_n, params.repeat_penalty, 0.0, 0.0)
            self._penalties = api.llama_sampler_init_penalties(self.n_vocab, *penalty)
            yield self._penalties
        if params.grammar is not None:
            calls.check_grammar(self._vocab, params.grammar)
            yield api.llama_sampler_init_grammar(self._vocab, params.grammar.encode(), b"root")
        if params.is_greedy:
            yield api.llama_sampler_init_greedy()
            return
        if params.top_k > 0:
            yield api.llama_sampler_init_top_k(params.top_k)
        if params.top_p < 1:
            yield api.llama_sampler_init_top_p(params.top_p, 1)
        if params.min_p > 0:
            yield api.llama_sampler_init_min_p(params.min_p, 1)
        yield api.llama_sampler_init_temp(params.temperature)
        seed = RANDOM_SEED if params.seed is None else params.seed
        yield api.llama_sampler_init_dist(seed)
