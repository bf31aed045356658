"""A check that a token's logits are identical alone and in a batch, bit by bit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle.errors import InputError, NativeError, UsageError
from llama_eagle.native.limits import LONGEST, MAX_EXACT_ROWS
from llama_eagle.native.processor.threads import default_threads
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions
from llama_eagle.sessions.text import Tokenizer

N_TOKENS = 64


def check_tokens(model: Model, path: Path | None = None) -> list[int]:
    """Return the tokens of a text file, or `N_TOKENS` random ones."""
    if path is None:
        rng = random.Random(0)
        return [rng.randrange(model.n_vocab) for _ in range(N_TOKENS)]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}). Give a UTF-8 file.") from None
    return Tokenizer(model).encode(text)


@dataclass(frozen=True)
class Difference:
    """The first logit whose bits differ.

    `token` counts from the start of the text, `row` from the start of its batch.
    """

    token: int
    row: int
    n_rows: int
    n_threads: int
    logit: int  # vocabulary id
    bit: int  # the highest that differs, 31 is the sign
    alone: float
    batch: float


@dataclass(frozen=True)
class CheckOptions:
    """Options of a check.

    The first `n_prompt` tokens are evaluated as a prompt, then each token alone and in batches.
    """

    n_prompt: int = 0
    max_rows: int = MAX_EXACT_ROWS
    max_threads: int = 0  # 0: the default number, at least 2
    seed: int = 0
    context: ContextOptions = field(default_factory=ContextOptions)


@dataclass(frozen=True)
class ExactCheck:
    """Result of a check. `difference` is None if all bits are equal."""

    n_tokens: int
    n_batches: int
    difference: Difference | None

    @property
    def exact(self) -> bool:
        return self.difference is None

    def to_json(self) -> dict[str, Any]:
        return {"exact": self.exact, **asdict(self)}


def check_exact(model: Model, tokens: Sequence[int], options: CheckOptions = CheckOptions()) -> ExactCheck:
    """Decode `tokens` singly in one context and in random batches in another, and compare the logits.

    The batches use random numbers of threads.
    """
    if len(tokens) <= options.n_prompt:
        raise UsageError(
            f"the text has {len(tokens)} tokens, it must have more than {options.n_prompt}. Use a longer one."
        )
    if len(tokens) > options.context.n_ctx:
        raise UsageError(f"the text has {len(tokens)} tokens, the context {options.context.n_ctx}. Use a larger n_ctx.")
    with Context(model, options.context) as alone, Context(model, options.context) as batched:
        for start in range(0, options.n_prompt, alone.n_batch):
            piece = tokens[start : min(start + alone.n_batch, options.n_prompt)]
            for context in (alone, batched):
                decode_logits(context, piece, start, want_logits=False)
        return _compare(alone, batched, tokens, options)


def _compare(alone: Context, batched: Context, tokens: Sequence[int], options: CheckOptions) -> ExactCheck:
    n_batches = 0
    for start, stop, n_threads in _batches(len(tokens), options):
        single = np.concatenate([decode_logits(alone, tokens[i : i + 1], i) for i in range(start, stop)])
        batched._api.llama_set_n_threads(batched.handle, n_threads, n_threads)
        together = decode_logits(batched, tokens[start:stop], start)
        n_batches += 1
        if not np.array_equal(single.view(np.uint32), together.view(np.uint32)):
            difference = _first_difference(single, together, start, n_threads)
            return ExactCheck(stop - options.n_prompt, n_batches, difference)
    return ExactCheck(len(tokens) - options.n_prompt, n_batches, None)


def _batches(n_tokens: int, options: CheckOptions) -> Iterator[tuple[int, int, int]]:
    """Yield first token, end and number of threads of each batch.

    The first batch has the maximum length. About half of the others are as short as the verification of a draft.
    """
    rng = random.Random(options.seed)
    max_threads = options.max_threads or max(2, default_threads())
    start, n_rows = options.n_prompt, options.max_rows
    while start < n_tokens:
        stop = min(n_tokens, start + n_rows)
        yield start, stop, rng.randint(1, max_threads)
        start, n_rows = stop, rng.randint(1, rng.choice((min(LONGEST + 1, options.max_rows), options.max_rows)))


def decode_logits(context: Context, tokens: Sequence[int], position: int, *, want_logits: bool = True) -> np.ndarray:
    """Return the logits [len(tokens), n_vocab] of tokens that start at `position`; empty without `want_logits`."""
    api, n = context._api, len(tokens)
    batch = api.llama_batch_init(n, 0, 1)
    try:
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position + i, 1, want_logits
            batch.seq_id[i][0] = 0
        status = api.llama_decode(context.handle, batch)
    finally:
        api.llama_batch_free(batch)
    if status != 0:
        raise NativeError(f"llama_decode failed on {n} tokens at position {position}", code=status, call="llama_decode")
    if not want_logits:
        return np.empty((0, context.model.n_vocab), np.float32)
    shape = (context.model.n_vocab,)
    return np.stack([np.ctypeslib.as_array(api.llama_get_logits_ith(context.handle, i), shape) for i in range(n)])


def _first_difference(alone: np.ndarray, batch: np.ndarray, start: int, n_threads: int) -> Difference:
    changed = alone.view(np.uint32) ^ batch.view(np.uint32)
    row, logit = (int(i[0]) for i in np.nonzero(changed))
    return Difference(
        token=start + row,
        row=row,
        n_rows=len(alone),
        n_threads=n_threads,
        logit=logit,
        bit=int(changed[row, logit]).bit_length() - 1,
        alone=float(alone[row, logit]),
        batch=float(batch[row, logit]),
    )
