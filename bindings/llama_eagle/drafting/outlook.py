"""The drafter that a target has now, and the draft that could be trained for it, with its hours or the obstacle."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llama_eagle.drafting.options import DraftingOptions
from llama_eagle.drafting.resolve import resolve
from llama_eagle.gguf.architectures import capture_problem, rollback_problem
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.reading import bytes_read
from llama_eagle.native.processor.threads import default_threads
from llama_eagle.sessions.options import MTP

# Of a training run with its defaults.
N_TOKENS = 250_000  # in 1,000 conversations, which the target writes and reads again
EPOCHS, STEPS, DRAFT_VOCAB = 3, 5, 8192
UNTRAINED = {  # architectures whose training is refused, although drafts can read them
    "chameleon": "llama.cpp excludes its image tokens from the logits, and training does not",
    "deepseek4": "training does not read the last state of its streams",
}
N_MEASURED = 768  # rows of the matrices whose product is timed


@dataclass(frozen=True)
class Outlook:
    """now: the drafter in a sentence. has_model: it is a draft model or MTP head.

    problem: the reason why no draft can be trained, or "". hours: of training on this processor; None with a problem.
    reads_states: published EAGLE-3 and DFlash drafts can run.
    """

    now: str
    has_model: bool
    problem: str
    hours: float | None
    reads_states: bool

    def lines(self, target: Path) -> list[str]:
        """Return sentences about both; a reason that they share is stated once."""
        if self.problem and self.problem in self.now:
            return [f"{self.now}. No draft can be trained, either."]
        return [self.now, self.training(target)]

    def training(self, target: Path) -> str:
        """Return a sentence about training."""
        if self.hours is None:
            others = "" if self.reads_states else ", and published EAGLE-3 and DFlash drafts do not run"
            return f"no draft can be trained{others}: {self.problem}"
        command = ("llama-eagle", "train", "--target", str(target), "-o", "my-draft", "--gguf", f"eagle3-{target.name}")
        return f"a draft can be trained in about {_rounded(self.hours)} on this processor: {shlex.join(command)}"


def outlook(files: Sequence[Header]) -> Outlook:
    """Return the outlook of a valid target. Its speed of computation is measured, which takes about 0.1 s."""
    name = files[0].architecture
    choice = resolve(files[0].path, DraftingOptions())
    has_model = choice.options.model is not None or choice.options.draft == MTP
    unread = rollback_problem(name) or capture_problem(name)
    problem = unread or UNTRAINED.get(name, "")
    return Outlook(choice.why, has_model, problem, None if problem else training_hours(files), not unread)


def training_hours(files: Sequence[Header]) -> float:
    """Return the hours of a run with its defaults: two passes of the target over the data, and training."""
    first = files[0]
    tensors = [tensor for file in files for tensor in file.tensors.values() if tensor.name.startswith("blk.")]
    active = sum(tensor.n_elements * bytes_read(first, tensor) / (tensor.n_bytes or 1) for tensor in tensors)
    width = int(first.number("embedding_length", 0))
    draft = width * (7 * width + 3 * max(first.number("feed_forward_length", 0), width) + DRAFT_VOCAB)
    n_operations = N_TOKENS * (2 * 2 * (active + width * first.n_vocab) + 6 * EPOCHS * STEPS * draft)
    return n_operations / _operations_per_second() / 3600


def _operations_per_second() -> float:
    """Measure the speed of products of matrices by processor time, which other programs do not lengthen."""
    matrix = np.ones((N_MEASURED, N_MEASURED), np.float32)
    matrix @ matrix
    start = time.process_time()
    matrix @ matrix
    return 2 * N_MEASURED**3 / max(time.process_time() - start, 1e-4) * default_threads()


def _rounded(hours: float) -> str:
    if hours < 1:
        return f"{max(5, 5 * round(hours * 12))} minutes"
    return f"{hours:.0f} hour{'s' * (round(hours) > 1)}"
