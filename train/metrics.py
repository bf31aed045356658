"""Reports of a run: a progress bar, a file of JSON lines, and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from llama_eagle.files import write_whole
from llama_eagle.progress import Bar
from torch import Tensor

METRICS, PLOT = "metrics.jsonl", "training.png"


class Totals:
    """Sums of outcomes between two reports. They stay on the device, so that steps need no transfers."""

    def __init__(self, n_steps: int, device: torch.device) -> None:
        self.losses = torch.zeros(n_steps, dtype=torch.float64, device=device)
        self.counts = torch.zeros(n_steps, 2, dtype=torch.float64, device=device)
        self.n = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, losses: Tensor, counts: Tensor) -> None:
        self.losses[: len(losses)] += losses.detach()
        self.counts += counts
        self.n += 1

    def summary(self, accelerator: Any) -> dict[str, Any]:
        """Return means over all processes.

        accuracy: per depth, over the slots whose earlier drafts were all correct. mean_emitted: tokens per round at
        this draft length and these accuracies.
        """
        packed = torch.cat([self.losses, self.counts.flatten(), self.n[None]])
        packed = accelerator.reduce(packed.float(), "sum").double().cpu()
        k = len(self.losses)
        losses = packed[:k] / packed[-1].clamp(min=1)
        counts = packed[k : 3 * k].view(k, 2)
        accuracy = (counts[:, 1] / counts[:, 0].clamp(min=1)).tolist()
        return {"losses": losses.tolist(), "accuracy": accuracy, "mean_emitted": mean_emitted(accuracy)}


def mean_emitted(accuracy: Sequence[float]) -> float:
    """Return the tokens per round for drafts of len(accuracy) tokens.

    Each accuracy is conditional: the probability of a correct token if all previous ones are correct.
    """
    total, reached = 1.0, 1.0
    for share in accuracy:
        reached *= share
        total += reached
    return total


class Journal:
    """metrics.jsonl, written line by line; and progress on stderr. done: the share of the run before `first_step`."""

    def __init__(self, folder: Path, first_step: int = 0, done: float = 0.0) -> None:
        self.path = folder / METRICS
        folder.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_metrics(self.path) if line["step"] <= first_step] if first_step else []
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self.losses = self.held_out = ""
        self.bar = Bar("training", done)
        self.bar.start()

    def write(self, record: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        accuracy = " ".join(f"{share:.2f}" for share in record["accuracy"])
        if record["held_out"]:
            self.held_out = f"held out {accuracy}, {record['mean_emitted']:.2f} per round"
        else:
            self.losses = f"loss {sum(record['losses']):.3f}, accuracy {accuracy}"

    def advance(self, step: int, n_steps: int, done: float) -> None:
        parts = (f"step {step} of {n_steps}", self.losses, self.held_out)
        self.bar.note = ", ".join(part for part in parts if part)
        self.bar.show(done)

    def close(self) -> None:
        self.bar.stop()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines. The last one may be cut off."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def plot(folder: Path) -> Path:
    """Plot loss over steps and accuracy per depth from metrics.jsonl, as a PNG in the same folder."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    records = read_metrics(folder / METRICS)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for held_out, style in ((False, "-"), (True, "o--")):
        chosen = [record for record in records if record["held_out"] is held_out]
        if not chosen:
            continue
        label = "held out" if held_out else "training"
        left.plot([r["step"] for r in chosen], [r["losses"][0] for r in chosen], style, ms=3, label=label)
        for k in range(len(chosen[0]["accuracy"])):
            values = [record["accuracy"][k] for record in chosen]
            right.plot([r["step"] for r in chosen], values, style, ms=3, color=f"C{k}", label=f"depth {k + 1}, {label}")
    left.set(xlabel="step", ylabel="loss of the first draft")
    right.set(xlabel="step", ylabel="accuracy if all previous are correct", ylim=(0, 1))
    if records:  # a legend without lines is a warning
        left.legend()
        right.legend(fontsize="x-small", ncols=2)
    write_whole(folder / PLOT, lambda path: figure.savefig(path, format="png", dpi=110))
    pyplot.close(figure)
    return folder / PLOT
