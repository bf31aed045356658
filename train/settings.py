"""Settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

FORMATS = ("specforge", "speculators")
DTYPES = ("auto", "f32", "bf16")
EAGLE3, DSPARK, MTP = KINDS = ("eagle3", "dspark", "mtp")
SELF = "self"  # data: the target writes it
AUTO, NONE = "auto", "none"  # features


@dataclass(frozen=True)
class Settings:
    """Settings of a run; lengths in tokens, periods in optimizer steps.

    Fields from `dtype` on shape the loss curve: a run can be resumed only with the same values.
    """

    output: Path
    target: str
    data: tuple[str, ...]
    features: str | Path = AUTO  # folder; none: the target runs in the loop; auto: see run.py
    format: str = "specforge"
    device: str = "auto"
    save_every: int | None = None  # None: same as eval_every, at most 1000
    log_every: int | None = None  # None: a hundredth of the run, at most 10
    resume: bool = False
    seconds: float | None = None  # for the whole run, data included; steps and learning rate follow from it
    checkpointing: bool = False
    dtype: str = "auto"
    kind: str = EAGLE3  # of KINDS
    init: str | None = None  # folder of a draft to start from; its vocabulary, width and aux_layers are used
    mrope: bool = False  # use M-RoPE image positions as the target does; with `init`, as that draft does
    aux_layers: tuple[int, ...] | None = None  # boundaries; None: [2, L // 2, L - 3], from 4 up with vision
    n_vocab_draft: int | None = None  # None: as many as the data needs
    ffn_size: int | None = None  # None: the target's
    window: int | None = None  # positions that a slot attends to; None: all
    n_steps: int = 5  # of test-time training
    max_length: int = 1024
    batch_size: int = 0  # sequences per forward pass; 0: 2 on a CPU, 8 on a GPU
    accumulate: int = 1  # forward passes per optimizer step
    epochs: int | None = None  # at most, with `seconds`; None: 3, or more, up to 10, until there are 1000 steps
    learning_rate: float | None = None  # None: by width
    warmup: float = 0.03  # fraction of all steps
    eval_share: float = 0.02  # fraction of the data that is held out
    eval_every: int | None = None  # None: a twentieth of the run
    patience: int = 5  # evaluations without improvement of the held-out acceptance before the run stops; 0: never
    seed: int = 0

    def after(self, seconds: float) -> Settings:
        """Return the settings for the rest of the run when `seconds` of its time are spent."""
        return self if self.seconds is None else replace(self, seconds=max(1.0, self.seconds - seconds))
