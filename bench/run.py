"""Benchmark run that alternates between all ways of decoding, so that drift of the machine affects all alike."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from llama_eagle.bench.measurement import Measurement, middle
from llama_eagle.bench.peer import LOOKUPS, Peer, PeerFailure, PeerJob
from llama_eagle.drafting.options import LOOKUP

if TYPE_CHECKING:
    from llama_eagle.bench.costs import PromptCosts, StepCosts

Length = int | str  # draft length in tokens, or "auto"
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The measurements to run. Without `peer`, only ours."""

    lengths: tuple[Length, ...]
    repetitions: int
    peer: Peer | None
    n_chat: int = 0  # tokens to stream as a chat in addition
    depths: tuple[int, ...] = (64,)  # context depths at which the cost of a step is measured
    prompts: tuple[int, ...] = ()  # prompt lengths to measure
    log: Callable[[str], None] = lambda text: None


@dataclasses.dataclass(frozen=True)
class Sampled:
    """The best length at common sampling settings, alternating with greedy decoding."""

    n_draft: Length
    sampled: Measurement
    greedy: Measurement

    def as_dict(self) -> dict[str, Any]:
        over_greedy = self.sampled.tps / self.greedy.tps
        return {"n_draft": self.n_draft, **dataclasses.asdict(self.sampled), "over_greedy": over_greedy}


@dataclasses.dataclass(frozen=True)
class Results:
    """Medians over the repetitions."""

    n_generated: int  # tokens of the greedy text: fewer than requested if it ends before
    plain: Measurement
    ours: dict[Length, Measurement]
    upstream: dict[Length, Measurement]
    upstream_plain: float | None
    sampled: Sampled
    chat: Measurement | None
    steps: list[StepCosts]
    prompts: list[PromptCosts]
    lookup: Measurement | None  # look-up alone with the automatic length; None: the job is look-up alone
    upstream_lookup: dict[Length, Measurement]  # by the name of llama.cpp's drafter
    upstream_failures: dict[str, str]  # by kind of run: why llama.cpp's tools could not do it
    memory: dict[
        str, float
    ]  # decode_bytes: bytes that a decode reads; read_rate, read_rate_of_one: bytes/s of all threads, of one

    @property
    def best_over_plain(self) -> float:
        return self._best_tps / self.plain.tps

    @property
    def best_over_upstream(self) -> float | None:
        upstream = {**self.upstream, **self.upstream_lookup}
        return self._best_tps / _best(upstream) if upstream else None

    @property
    def _best_tps(self) -> float:
        return max(_best(self.ours), 0.0 if self.lookup is None else self.lookup.tps)

    def as_dict(self) -> dict[str, Any]:
        return {
            "n_generated": self.n_generated,
            "plain_tps": self.plain.tps,
            "ours": _rows(self.ours),
            "upstream": _rows(self.upstream),
            "lookup": self.lookup and {"n_draft": "auto", **dataclasses.asdict(self.lookup)},
            "upstream_lookup": _rows(self.upstream_lookup),
            "upstream_plain_tps": self.upstream_plain,
            "upstream_failures": self.upstream_failures,
            "sampled": self.sampled.as_dict(),
            "chat": self.chat and {"n_draft": self.sampled.n_draft, **dataclasses.asdict(self.chat)},
            "best_over_plain": self.best_over_plain,
            "best_over_upstream": self.best_over_upstream,
            "steps": [costs.as_dict() for costs in self.steps],
            "prompts": [costs.as_dict() for costs in self.prompts],
            "memory": self.memory,
        }


@dataclasses.dataclass
class PeerRuns:
    """Runs of llama.cpp's tools. A kind of run that failed is not repeated: llama.cpp cannot run every pair."""

    peer: Peer | None
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    def measure(self, kind: str, run: Callable[[Peer], T]) -> list[T]:
        """Return the result as a list of one; an empty list without a peer, and if it cannot do this."""
        if self.peer is None or kind in self.failures:
            return []
        try:
            return [run(self.peer)]
        except PeerFailure as failure:
            self.failures[kind] = str(failure)
            return []


def run(job: Any, plan: Plan) -> Results:
    """Measure `job` (bench.ours.Job). The models stay loaded; each run has its own context."""
    from llama_eagle.bench.chat import stream_chat
    from llama_eagle.bench.costs import decode_bytes, step_costs
    from llama_eagle.bench.ours import loaded
    from llama_eagle.gguf.header import read_model
    from llama_eagle.native.processor.bandwidth import read_rates

    plain: list[Measurement] = []
    runs: dict[tuple[str, Length], list[Measurement]] = {}
    peer_plain: list[float] = []
    peers = PeerRuns(plan.peer)
    peer_job = PeerJob(job.target, job.n, job.threads, job.load.n_gpu_layers, job.type_k, job.type_v)
    with loaded(job) as ours:
        n_generated = ours.warm_up()
        for _ in range(plan.repetitions):
            plan.log("speed with each draft length")
            plain.append(ours.plain())
            if not job.looks_up:
                runs.setdefault(("ours", LOOKUP), []).append(ours.look_up("auto"))
            peer_plain += peers.measure("plain", lambda peer: peer.decode(peer_job))
            for length in plan.lengths:
                runs.setdefault(("ours", length), []).append(ours.speculate(length))
                if isinstance(length, int) and not job.looks_up:
                    options = {"draft": job.draft, "n_draft": length, "architecture": ours.draft_kind}
                    draft = functools.partial(Peer.speculate, job=peer_job, prompt=ours.text, **options)
                    measured = peers.measure("draft", draft)
                    runs.setdefault(("upstream", length), []).extend(measured)
            for kind in LOOKUPS:
                look_up = functools.partial(Peer.look_up, job=peer_job, prompt=ours.text, kind=kind)
                runs.setdefault((LOOKUP, kind), []).extend(peers.measure(kind, look_up))
        medians = {key: middle(values) for key, values in runs.items() if values}
        lookup = medians.pop(("ours", LOOKUP), None)
        mine = {length: m for (who, length), m in medians.items() if who == "ours"}
        plan.log("sampling, and what each step costs")
        fastest = max(mine, key=lambda length: mine[length].tps)
        sampled = _sampled(ours, fastest, plan.repetitions)
        steps = list(step_costs(ours, plan.depths, plan.repetitions))
        prompts = list(_prompts(ours, plan, peers, peer_job)) if plan.prompts else []
        rate, rate_of_one = read_rates((job.threads, 1))
        n_bytes = decode_bytes(read_model(job.target)[1])
        memory = {"decode_bytes": n_bytes, "read_rate": rate, "read_rate_of_one": rate_of_one}
    chat = [stream_chat(job, plan.n_chat, fastest) for _ in range(plan.repetitions if plan.n_chat else 0)]
    return Results(
        n_generated=n_generated,
        plain=middle(plain),
        ours=mine,
        upstream={length: m for (who, length), m in medians.items() if who == "upstream"},
        upstream_plain=median(peer_plain) if peer_plain else None,
        lookup=lookup,
        upstream_lookup={kind: m for (who, kind), m in medians.items() if who == LOOKUP},
        sampled=sampled,
        chat=middle(chat) if chat else None,
        steps=steps,
        prompts=prompts,
        upstream_failures=peers.failures,
        memory=memory,
    )


def _prompts(ours: Any, plan: Plan, peers: PeerRuns, peer_job: PeerJob) -> Iterator[PromptCosts]:
    from llama_eagle.bench.costs import prompt_costs

    for costs in prompt_costs(ours, plan.prompts, plan.repetitions):
        job = dataclasses.replace(peer_job, n=costs.n)
        upstream = peers.measure("plain", functools.partial(Peer.read, job=job))
        yield dataclasses.replace(costs, upstream_tps=upstream[0] if upstream else None)


def _sampled(ours: Any, length: Length, repetitions: int) -> Sampled:
    from llama_eagle.bench.ours import COMMON_SAMPLING

    sampled, greedy = [], []
    for _ in range(repetitions):
        greedy.append(ours.speculate(length))
        sampled.append(ours.speculate(length, COMMON_SAMPLING))
    return Sampled(length, middle(sampled), middle(greedy))


def _best(rows: dict[Length, Measurement]) -> float:
    return max(m.tps for m in rows.values())


def _rows(rows: dict[Length, Measurement]) -> list[dict[str, Any]]:
    return [{"n_draft": length, **dataclasses.asdict(m)} for length, m in rows.items()]
