"""Sampler chains: llama.cpp's own samplers, in llama.cpp's own order, so that any target distribution stays exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.native import calls
from llama_eagle.native.calls import library
from llama_eagle.native.closing import Closing

RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: the sampler draws its own


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn from the target's logits.

    `temperature` <= 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repeat_penalty` 1 switch those off.
    `penalty_last_n` counts tokens. Raises `UsageError` for values out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    penalty_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        problems = {
            "temperature must be a number below 1000": not (
                math.isfinite(self.temperature) and self.temperature < 1000
            ),
            "top_k must be 0 or more": self.top_k < 0,
            "top_p must be in (0, 1]": not 0 < self.top_p <= 1,
            "min_p must be in [0, 1)": not 0 <= self.min_p < 1,
            "repeat_penalty must be above 0": not (math.isfinite(self.repeat_penalty) and self.repeat_penalty > 0),
            "penalty_last_n must be 0 or more": self.penalty_last_n < 0,
            "seed must be in 0..4294967294": self.seed is not None and not 0 <= self.seed < RANDOM_SEED,
        }
        for problem, found in problems.items():
            if found:
                raise UsageError(f"{problem}. Correct it.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def has_penalties(self) -> bool:
        return self.repeat_penalty != 1 and self.penalty_last_n > 0


class Sampler(Closing):
    """A llama_sampler chain built from `SamplingParams`. Free it with `close()` or use it as a context manager."""

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        library()
        import llama_cpp

        self._api: Any = llama_cpp
        self._n_vocab = n_vocab
        self.params = params
        self.handle: Any = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for part in self._parts():
            if not part:
                raise EnvironmentFailure("llama.cpp could not create a sampler: out of memory. Free some and retry.")
            llama_cpp.llama_sampler_chain_add(self.handle, part)

    def sample(self, ctx: Any, row: int = -1) -> int:
        """Draw from row `row` of the last decode (-1: the last one) and take the token into the chain's state."""
        return calls.sample(ctx, self.handle, row)

    def accept(self, token: int) -> None:
        """Take a token that was not drawn here (of the prompt) into the chain's state."""
        self._api.llama_sampler_accept(self.handle, token)

    def close(self) -> None:
        if self.handle:
            self._api.llama_sampler_free(self.handle)
            self.handle = None

    def _parts(self) -> list[Any]:
        api, params = self._api, self.params
        parts = []
        if params.has_penalties:
            penalty = (params.penalty_last_n, params.repeat_penalty, 0.0, 0.0)
            parts.append(api.llama_sampler_init_penalties(self._n_vocab, *penalty))
        if params.is_greedy:
            return [*parts, api.llama_sampler_init_greedy()]
        if params.top_k > 0:
            parts.append(api.llama_sampler_init_top_k(params.top_k))
        if params.top_p < 1:
            parts.append(api.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            parts.append(api.llama_sampler_init_min_p(params.min_p, 1))
        parts.append(api.llama_sampler_init_temp(params.temperature))
        seed = RANDOM_SEED if params.seed is None else params.seed
        return [*parts, api.llama_sampler_init_dist(seed)]
