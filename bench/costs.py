"""What each step costs: a decode, a verification by its rows, a draft, with more and more in memory; a prompt; and the
bytes that a decode must read."""

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
N_TIMES = 4  # that each step is measured in each repetition
FIRST = 300  # prompts count up from this token: ordinary ones in every vocabulary
BLOCK = re.compile(r"blk\.(\d+)\.")
N_WORDS = 1000  # and begin anew after so many


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """Median ms of one step behind `depth` tokens; `verify_ms[i]` is that of i + 1 rows."""

    depth: int
    decode_ms: float
    draft_ms: float | None  # of N_DRAFT tokens; None: no model drafts
    verify_ms: list[float]

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "verify_over_decode": [ms / self.decode_ms for ms in self.verify_ms]}


@dataclasses.dataclass(frozen=True)
class PromptCosts:
    """Median tokens/s of reading a prompt of `n` tokens, without a draft and with it."""

    n: int
    plain_tps: float
    draft_tps: float
    upstream_tps: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "draft_over_plain": self.draft_tps / self.plain_tps}


def decode_bytes(files: list[Header]) -> int:
    """Bytes of the weights that one token's decode reads: of a mixture, as many experts as it uses.

    Not counted: the embeddings, of which it reads a row, unless they are the head too; and the MTP head, which drafts.
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
    """For each depth, in rising order. What the rows say has no influence on their cost."""
    ids, n_times = _tokens(MOST_ROWS), N_TIMES * repetitions
    with _sessions(ours, max(depths) + n_times * (MOST_ROWS + 1), MOST_ROWS) as (plain, drafting):
        for depth in sorted(depths):
            for session in (plain, drafting):
                _fill(session, depth)
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
    """For each length, without and with a draft in turn."""
    with _sessions(ours, max(lengths), N_DRAFT) as sessions:
        for n in lengths:
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(repetitions):
                for session, mine in zip(sessions, times, strict=True):
                    session.reset()
                    mine.append(_timed(partial(session.eval, _tokens(n))))
            plain, draft = (n / median(mine) * 1e3 for mine in times)
            yield PromptCosts(n, plain, draft)


@contextmanager
def _sessions(ours: Ours, n_tokens: int, n_rows: int) -> Iterator[tuple[EagleSession, EagleSession]]:
    """One without a draft and one with it, each in a context of its own for `n_tokens`."""
    draft = ours.pair.draft
    options = dataclasses.replace(ours.job.context, n_ctx=n_tokens + MOST_ROWS + N_DRAFT + 1)
    longest = dataclasses.replace(ours.job.drafting(N_DRAFT), n_draft_max=n_rows)
    with (
        Context(ours.pair.target, options) as plain,
        Context(ours.pair.target, dataclasses.replace(options, n_rs_seq=n_rows)) as context,
        EagleSession(plain, None, SessionOptions(0)) as without,
        EagleSession(context, draft, session_options(draft.header if draft else None, longest)) as session,
    ):
        yield without, session


def _fill(session: EagleSession, depth: int) -> None:
    """What was measured at the depth before may have gone further than this one."""
    if session.n_past > depth:
        session.reset()
    session.eval(_tokens(depth - session.n_past))


def _tokens(n: int) -> list[int]:
    return [FIRST + i % N_WORDS for i in range(n)]


def _timed(call: Callable[[], object]) -> float:
    """ms."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
