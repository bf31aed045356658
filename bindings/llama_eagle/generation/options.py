"""Options of a generation and of its sampling, with their limits. Imports no native library."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llama_eagle.errors import UsageError, refuse
from llama_eagle.native.limits import MAX_FLOAT, MAX_INT

RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: the sampler draws a random seed


def sampler_seed(seed: int) -> int:
    """Return the sampler's 32-bit seed for a seed of up to 64 bits; -1 is random. The server's rule is `eagle_seed`.

    Raises `UsageError` for a longer one.
    """
    if not -(2**63) <= seed < 2**64:
        raise UsageError(f"seed={seed!s:.60} must have at most 64 bits. Use a smaller one.")
    if seed in (-1, 2**64 - 1):
        return RANDOM_SEED
    if 0 <= seed <= RANDOM_SEED:
        return seed
    mixed = (seed * 0x9E3779B97F4A7C15) % 2**64 >> 32  # Fibonacci hashing
    return 0 if mixed == RANDOM_SEED else mixed


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of the sampler that draws each token from the target's logits.

    `temperature` <= 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repeat_penalty` 1 disable the respective filter.
    `penalty_last_n` counts tokens. `grammar`: GBNF that the text must follow, starting with its rule `root`. Raises
    `UsageError` for values out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    penalty_last_n: int = 64
    seed: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        refuse(
            {
                f"temperature={self.temperature} must be a number below 1000": not (
                    math.isfinite(self.temperature) and self.temperature < 1000
                ),
                f"top_k={self.top_k} must be in 0..{MAX_INT}": not 0 <= self.top_k <= MAX_INT,
                f"top_p={self.top_p} must be in (0, 1]": not 0 < self.top_p <= 1,
                f"min_p={self.min_p} must be in [0, 1)": not 0 <= self.min_p < 1,
                f"repeat_penalty={self.repeat_penalty} must be above 0 and finite": not (
                    0 < self.repeat_penalty <= MAX_FLOAT
                ),
                f"penalty_last_n={self.penalty_last_n} must be in 0..{MAX_INT}": not (
                    0 <= self.penalty_last_n <= MAX_INT
                ),
                f"seed={self.seed} must be in 0..4294967294": self.seed is not None
                and not 0 <= self.seed < RANDOM_SEED,
            }
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def has_penalties(self) -> bool:
        return self.repeat_penalty != 1 and self.penalty_last_n > 0


@dataclass(frozen=True)
class GenerationOptions:
    """Options of one generation.

    `max_tokens` None: up to the end of the context. `ignore_eos`: continue after end-of-generation tokens. `stop`:
    texts before which the generation ends.
    """

    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise UsageError("an empty stop text would end every generation at once. Remove it.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens={self.max_tokens}: give 1 or more, or no limit (None).")
