"""Costs of single steps: decode, verification by rows, draft and prompt; and the bytes that a decode reads."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from llama_eagle.bench.ours import Ours
from llama_eagle.drafting.resolve import session_options
from llama_eagle.gguf.header import Header
from llama_eagle.sessions.models import Context
from llama_eagle.sessions.options import SessionOptions
from llama_eagle.sessions.session import EagleSession

MOST_ROWS = 9
N_DRAFT = 4
N_TIMES = 4  # measurements of each step per repetition
FIRST = 300  # first token of a prompt; tokens from here are ordinary in every large vocabulary
BLOCK = re.compile(r"blk\.(\d+)\.")
N_WORDS = 1000  # period of the prompt's tokens


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """Median ms of one step at a context depth of `depth` tokens; `verify_ms[i]` belongs to i + 1 rows."""

    depth: int
    decode_ms: float
    draft_ms: float | None  # N_DRAFT tokens; None: there is no draft model
    verify_ms: list[float]

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verify_over_decode": [ms / self.decode_ms for ms in self.verify_ms]}


@dataclasses.dataclass(frozen=True)
class PromptCosts:
    """Median tokens/s of evaluating a prompt of `n` tokens, without and with a draft."""

    n: int
    plain_tps: float
    draft_tps: float
    upstream_tps: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "draft_over_plain": self.draft_tps / self.plain_tps}


def decode_bytes(files: list[Header]) -> int:
    """Return the bytes of weights that decoding one token reads; for a mixture of experts, only the experts in use.

    Embeddings are excluded unless they are also the output head, because a decode reads one row of them. The MTP head
    is excluded because it is a drafter.
    """
    first = files[0]
    n_blocks = int(first.arch_key("block_count", 0)) - int(first.arch_key("nextn_predict_layers", 0))
    n_experts = int(first.arch_key("expert_count", 0))
    share = int(first.arch_key("expert_used_count", 0)) / n_experts if n_experts else 1.0
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    total = 0.0
    for name, tensor in tensors.items():
        block = BLOCK.match(name)
        if (block and int(block[1]) >= n_blocks) or (name == "token_embd.weight" and "output.weight" in tensors):
            continue
        total += (tensor.n_bytes or 0) * (share if "_exps." in name else 1.0)
    return int(total)


def step_costs(ours: Ours, depths: Sequence[int], repetitions: int) -> Iterator[StepCosts]:
    """Measure the steps at each depth, in ascending order. The tokens themselves do not affect the cost."""
    ids, n_times = _tokens(ours, MOST_ROWS), N_TIMES * repetitions
    with _sessions(ours, max(depths) + n_times * MOST_ROWS, MOST_ROWS) as (plain, drafting):
        for depth in sorted(depths):
            for session in (plain, drafting):
                _fill(ours, session, depth)
            decodes, drafts = [], []
            verifications: list[list[float]] = [[] for _ in range(MOST_ROWS)]
            for _ in range(n_times):
                for n_rows, mine in enumerate(verifications, 1):
                    decodes.append(_timed(partial(plain.verify, ids[:1])))
                    plain.commit(1)
                    if drafting.has_draft:
                        drafts.append(_timed(partial(drafting.draft, ids[0], N_DRAFT)))
                    mine.append(_timed(partial(drafting.verify, ids[:n_rows])))
                    drafting.commit(1)
            draft_ms = median(drafts) if drafts else None
            yield StepCosts(depth, median(decodes), draft_ms, [median(mine) for mine in verifications])


def prompt_costs(ours: Ours, lengths: Sequence[int], repetitions: int) -> Iterator[PromptCosts]:
    """Measure each prompt length, alternating between no draft and a draft."""
    with _sessions(ours, max(lengths), N_DRAFT) as sessions:
        for n in lengths:
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(repetitions):
                for session, mine in zip(sessions, times, strict=True):
                    session.reset()
                    mine.append(_timed(partial(session.eval, _tokens(ours, n))))
            plain, draft = (n / median(mine) * 1e3 for mine in times)
            yield PromptCosts(n, plain, draft)


@contextmanager
def _sessions(ours: Ours, n_tokens: int, n_rows: int) -> Iterator[tuple[EagleSession, EagleSession]]:
    """Open a session without and a session with a draft, each in its own context of `n_tokens` and `n_rows` more."""
    draft = ours.pair.draft
    options = dataclasses.replace(ours.job.context, n_ctx=n_tokens + n_rows)
    longest = dataclasses.replace(ours.job.drafting(N_DRAFT), n_draft_max=n_rows)
    with (
        Context(ours.pair.target, options) as plain,
        Context(ours.pair.target, dataclasses.replace(options, n_rs_seq=n_rows)) as context,
        EagleSession(plain, None, SessionOptions(0)) as without,
        EagleSession(context, draft, session_options(draft.header if draft else None, longest)) as session,
    ):
        yield without, session


def _fill(ours: Ours, session: EagleSession, depth: int) -> None:
    """Bring a session to `depth` tokens, starting over if the previous measurement went beyond it."""
    if session.n_past > depth:
        session.reset()
    session.eval(_tokens(ours, depth - session.n_past))


def _tokens(ours: Ours, n: int) -> list[int]:
    return [(FIRST + i % N_WORDS) % ours.pair.target.n_vocab for i in range(n)]


def _timed(call: Callable[[], object]) -> float:
    """Return the duration of a call in ms."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
