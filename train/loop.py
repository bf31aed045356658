"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from llama_eagle import console
from llama_eagle.errors import EagleError
from llama_eagle.native.callbacks import held
from llama_eagle.native.processor.adaptive import AdaptiveThreads
from llama_eagle.train.data.batches import BatchPlan, Split
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.features import FeatureSource
from llama_eagle.train.loss import TrainingPass
from llama_eagle.train.metrics import Journal, Totals
from llama_eagle.train.settings import Settings
from llama_eagle.train.state import Progress, State, save_state

BETAS, MAX_GRADIENT_NORM = (0.9, 0.95), 0.5
ENOUGH_STEPS = 1000
TIMED_STEPS = 10  # after which the speed is known


@dataclass(frozen=True)
class Lesson:
    """Training data: samples, the held-out ones among them, and the source of their features."""

    samples: list[Sample]
    split: Split
    source: FeatureSource


class Loop:
    """Trains until the last step, or until the held-out acceptance stops rising. export: writes the draft as it is,
    with its held-out acceptance rates by position (empty: unknown)."""

    def __init__(
        self,
        model: TrainingPass,
        lesson: Lesson,
        settings: Settings,
        accelerator: Any,
        export: Callable[[Sequence[float]], None],
    ) -> None:
        self.lesson, self.settings, self.accelerator, self.export = lesson, settings, accelerator, export
        self.per_step = settings.accumulate * accelerator.num_processes
        lengths = [len(lesson.samples[n].tokens) for n in lesson.split.train]
        self.plan = BatchPlan(lengths, settings.batch_size, self.per_step, settings.seed)
        self._set_steps((settings.epochs or default_epochs(self.plan.steps_per_epoch)) * self.plan.steps_per_epoch)
        self.bare = model
        self.rate = settings.learning_rate or default_rate(model.draft.geometry.hidden_size)
        optimizer = torch.optim.AdamW(model.draft.parameters(), lr=self.rate, betas=BETAS, weight_decay=0.0, fused=True)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.progress = Progress()
        self.totals = self._fresh_totals()
        self.threads = AdaptiveThreads(torch.get_num_threads(), torch.set_num_threads)
        self.norm = torch.zeros(())  # of the last step's gradient
        self.clock, self.n_tokens = time.perf_counter(), 0

    def _set_steps(self, n_steps: int) -> None:
        """Set the number of steps, and the periods that depend on it."""
        settings, self.n_steps = self.settings, n_steps
        self.log_every = settings.log_every or min(10, _period(n_steps, 100))
        self.eval_every = settings.eval_every or _period(n_steps, 20)
        self.save_every = settings.save_every or min(1000, self.eval_every)

    def restore(self, state: State) -> None:
        self.bare.draft.load_state_dict(state.model)
        self.optimizer.load_state_dict(state.optimizer)
        self.progress = state.progress
        if self.progress.n_steps:
            self._set_steps(self.progress.n_steps)

    def state(self, identity: dict[str, Any]) -> State:
        return State(identity, self.progress, self.bare.draft.state_dict(), self.optimizer.state_dict())

    def run(self, journal: Journal | None, identity: dict[str, Any]) -> None:
        """Train until done; `journal` is None in all processes but the first.

        Ctrl-C stores the state after the last complete step.
        """
        progress = self.progress
        self.clock = time.perf_counter()
        try:
            while not progress.done:
                start = time.perf_counter()
                if progress.seen == progress.step:
                    self._train_step(progress.step)
                self._after_step(journal, identity)
                self.threads.after_step()
                progress.seconds += time.perf_counter() - start
                self._fit_to_time()
        except KeyboardInterrupt:
            with held():
                if progress.seen < progress.step:
                    self._log(journal)
                self._save(identity)
            console.note(f"stopped after step {progress.step} of {self.n_steps}; continue with --resume")
            raise

    def _fit_to_time(self) -> None:
        """Plan the steps that fit into the rest of a time limit, after a few steps and after evaluations."""
        progress, limit = self.progress, self.settings.seconds
        is_first = progress.step == TIMED_STEPS
        if limit is None or progress.done or not (is_first or progress.step % self.eval_every == 0):
            return
        left = (limit - progress.seconds) / (progress.seconds / progress.step)
        n_steps = progress.step + max(1, int(left))
        if self.settings.epochs is not None:
            n_steps = min(n_steps, self.settings.epochs * self.plan.steps_per_epoch)
        progress.n_steps = n_steps
        if is_first:
            self._set_steps(n_steps)
            epochs = n_steps / self.plan.steps_per_epoch
            minutes = round(limit / 60, 1)
            console.note(f"about {n_steps} steps are planned within {minutes:g} minutes: {epochs:.1f} epochs")
        self.n_steps = n_steps

    @property
    def share_done(self) -> float:
        """The finished share of the run, which never falls: by time if that is limited, since the plan then changes."""
        progress, settings = self.progress, self.settings
        if settings.seconds is None:
            return progress.step / self.n_steps
        by_epochs = progress.step / (settings.epochs * self.plan.steps_per_epoch) if settings.epochs else 0.0
        return min(1.0, max(progress.seconds / settings.seconds, by_epochs))

    @property
    def _is_last(self) -> bool:
        """True if the run ends after this step: it is the last one, or the time is up."""
        limit = self.settings.seconds
        return self.progress.step >= self.n_steps or (limit is not None and self.progress.seconds >= limit)

    def _after_step(self, journal: Journal | None, identity: dict[str, Any]) -> None:
        """Log, evaluate and save after a step if each is due."""
        progress = self.progress
        if journal is not None:
            journal.advance(progress.step, self.n_steps, self.share_done)
        self._log(journal)
        trained = time.perf_counter()
        last = self._is_last
        is_due = last or progress.step % self.eval_every == 0
        summary = self._evaluate() if is_due and self.lesson.split.held_out else None
        with held():
            if is_due:
                self._judge(journal, summary)
            progress.stopped_early = progress.done and not last
            progress.seen, progress.done = progress.step, progress.done or last
            progress.ended = self._reason() if progress.done else ""
            if progress.done or progress.step % self.save_every == 0:
                self._save(identity)
        self.clock += time.perf_counter() - trained  # tokens_per_s is of training alone

    def _reason(self) -> str:
        if self.progress.stopped_early:
            return f"no gain in {self.settings.patience} evaluations"
        epochs = self.settings.epochs
        is_timed = self.settings.seconds is not None
        if is_timed and not (epochs and self.progress.step >= epochs * self.plan.steps_per_epoch):
            return "its time is up"
        n_epochs = round(self.progress.step / self.plan.steps_per_epoch)
        return f"{n_epochs} epoch{'s are' if n_epochs > 1 else ' is'} done"

    def _save(self, identity: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            save_state(self.state(identity), self.settings.output)

    def _train_step(self, step: int) -> None:
        """Perform one optimizer step, completely or not at all."""
        self.optimizer.zero_grad(set_to_none=True)
        mine = self.plan.batches(step)[self.accelerator.process_index :: self.accelerator.num_processes]
        for i, numbers in enumerate(mine):
            batch = self.lesson.source.batch([self.lesson.split.train[n] for n in numbers])
            self.n_tokens += batch.tokens.numel()
            is_last = i + 1 == len(mine)
            with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                outcome = self.model(*batch)
                self.accelerator.backward(outcome.loss / len(mine))
            self.totals.add(outcome.losses, outcome.counts)
        self.norm = torch.as_tensor(self.accelerator.clip_grad_norm_(self.bare.draft.parameters(), MAX_GRADIENT_NORM))
        rate = self.rate * schedule(step, self.n_steps, self.settings.warmup)
        with held():
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.progress.step += 1

    def _log(self, journal: Journal | None) -> None:
        """Write a line of metrics if one is due and was not written before an interruption."""
        is_due = self._is_last or self.progress.step % self.log_every == 0
        if not is_due or not self.totals.n:
            return
        summary = self.totals.summary(self.accelerator)
        self.totals = self._fresh_totals()
        if not math.isfinite(sum(summary["losses"])) or not math.isfinite(float(self.norm)):
            raise EagleError(f"the loss is no longer finite at step {self.progress.step}; use a smaller --lr.")
        now = time.perf_counter()
        speed = self.n_tokens * self.accelerator.num_processes / (now - self.clock)
        self.clock, self.n_tokens = now, 0
        rate = self.optimizer.param_groups[0]["lr"]
        self._write(journal, False, {**summary, "lr": rate, "gradient_norm": float(self.norm), "tokens_per_s": speed})

    def _judge(self, journal: Journal | None, summary: dict[str, Any] | None) -> None:
        """Evaluate held-out acceptance: export the best draft so far, and end the run after too many worse ones."""
        progress = self.progress
        if summary is None:
            if self._is_last:
                self._export([])
            return
        self._write(journal, True, summary)
        if summary["mean_emitted"] > progress.best:
            progress.best, progress.n_worse = summary["mean_emitted"], 0
            self._export(summary["accuracy"])
            return
        progress.n_worse += 1
        progress.done = 0 < self.settings.patience <= progress.n_worse

    @torch.no_grad()
    def _evaluate(self) -> dict[str, Any]:
        totals, size = self._fresh_totals(), self.settings.batch_size
        order = sorted(self.lesson.split.held_out, key=lambda n: len(self.lesson.samples[n].tokens))
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        for numbers in batches[self.accelerator.process_index :: self.accelerator.num_processes]:
            outcome = self.model(*self.lesson.source.batch(numbers))
            totals.add(outcome.losses, outcome.counts)
        return totals.summary(self.accelerator)

    def _export(self, acceptance: Sequence[float]) -> None:
        if self.accelerator.is_main_process:
            self.export(acceptance)

    def _write(self, journal: Journal | None, held_out: bool, values: dict[str, Any]) -> None:
        if journal is not None:
            journal.write({"step": self.progress.step, "held_out": held_out, **values})

    def _fresh_totals(self) -> Totals:
        return Totals(self.bare.n_steps, self.accelerator.device)


def _period(n_steps: int, n_times: int) -> int:
    """Return the number of steps between two of n_times events in a run."""
    return max(1, n_steps // n_times)


def schedule(step: int, n_steps: int, warmup: float) -> float:
    """Factor of the learning rate: a linear warm-up, then half a cosine down to 0."""
    n_warmup = max(1, round(warmup * n_steps))
    if step < n_warmup:
        return (step + 1) / n_warmup
    return 0.5 * (1 + math.cos(math.pi * (step - n_warmup) / max(1, n_steps - n_warmup)))


def default_epochs(steps_per_epoch: int) -> int:
    """Return 3, or up to 10 if the data is too small for the draft to leave its initial state."""
    return min(10, max(3, -(-ENOUGH_STEPS // steps_per_epoch)))


def default_rate(hidden_size: int) -> float:
    """Return 1e-4 at width 2560 (as for published drafts) and 3e-3 at width 256 (measured); a power law in between."""
    return min(3e-3, 1e-4 * (2560 / hidden_size) ** 1.5)
