"""The way from a target's last state to its logits, read from its GGUF, and its comparison with the engine's logits.

logits = cap * tanh((head @ (scale * state) + bias) / cap), for the state after the last norm; without cap or bias where
a file has none. The scale is applied to states and to the norm's gain, so that the rest of training needs no scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from llama_eagle.errors import ConfigError, InputError
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.tensors import read_rows
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

EMBEDDING = "token_embd.weight"
HEADS = ("output.weight", EMBEDDING)  # the first that a file has
NORMS = ("output_norm.weight", "token_embd_norm.weight")  # the second is LFM2's name; without both, the gain is 1
BIAS = "output.bias"
# Architectures whose graphs divide by `logit_scale`, and those with a scale without the key, by the width.
DIVIDED = {"granite", "granite_swa", "granitehybrid", "granitemoe", "minicpm"}
UNNAMED: dict[str, Callable[[int], float]] = {
    "grok": lambda width: 0.5773502691896257,
    "minicpm": lambda width: 256 / width,
    "minicpm3": lambda width: 256 / width,
}
CAPS = dict.fromkeys(("gemma2", "gemma4", "muse-glimmer"), 30.0)  # without the key
# Architectures whose gated MLP is not SiLU's.
OTHER_GATES = {"gemma", "spark2_5"}
MLP_NORMS = ("ffn_norm", "post_attention_norm")  # the second is that of the hybrids
MLP = ("ffn_gate", "ffn_up", "ffn_down")
MORE = ("ffn_gate_inp.weight", "ffn_sub_norm.weight", "post_ffw_norm.weight")  # experts, and other norms

MOST_ROWS = 4096  # of the head, compared
TOLERANCE = 1e-3  # of the largest logit
ROUNDED = 0.1  # where the engine rounds states to 8 bits before it multiplies them by a quantized head
EXPLAINED = 5e-3  # largest share of that difference that a scale or a bias may explain
FLOATS = {"F32", "F16", "BF16"}


@dataclass(frozen=True)
class Output:
    """The output of a target: its files, the scale of its logits, and the cap (0: none)."""

    parts: Sequence[Header]
    scale: float
    cap: float

    @staticmethod
    def read(parts: Sequence[Header]) -> Output:
        first = parts[0]
        name, width = first.architecture, int(first.arch_key("embedding_length"))
        scale = float(first.arch_key("logit_scale", 0.0) or UNNAMED.get(name, lambda _: 1.0)(width))
        cap = float(first.arch_key("final_logit_softcapping", CAPS.get(name, 0.0)))
        return Output(parts, 1 / scale if name in DIVIDED else scale, cap)

    @property
    def head(self) -> str:
        """The name of the tensor of the output matrix."""
        return next((name for name in HEADS if self._has(name)), HEADS[0])

    def gain(self) -> Tensor:
        """Return the gain of the last norm, [T], multiplied by the scale."""
        name = next((name for name in NORMS if self._has(name)), None)
        width = int(self.parts[0].arch_key("embedding_length"))
        return (torch.ones(width) if name is None else self.tensor(name).flatten()) * self.scale

    def bias(self, rows: NDArray[np.int64] | slice = slice(None)) -> Tensor | None:
        """Return what is added to the logits, [V], or of some tokens alone; None without."""
        return self.tensor(BIAS).flatten()[rows] if self._has(BIAS) else None

    def tensor(self, name: str, rows: NDArray[np.int64] | slice = slice(None)) -> Tensor:
        """Read a tensor, or some rows. Raises `InputError` if it is missing or has a type that gguf cannot read."""
        found = read_rows(self.parts, name, rows)
        if found is None:
            raise InputError(f"{self.parts[0].path}: it has no {name}. Convert the model again.")
        return torch.tensor(found)

    def mlp(self, block: int) -> tuple[Tensor, ...]:
        """Return norm, gate, up and down of a block's MLP, if a draft's MLP can start from it; else nothing.

        The draft's is SiLU's, after an RMS norm, and added to the residual as it is.
        """
        first, prefix = self.parts[0], f"blk.{block}."
        norm = next((name for name in MLP_NORMS if self._has(f"{prefix}{name}.weight")), "")
        parts = (norm, *MLP)
        more = [f"{name}.{kind}" for name in parts for kind in ("bias", "scale")]
        is_rms = first.arch_key("attention.layer_norm_rms_epsilon") is not None
        if not is_rms or first.architecture in OTHER_GATES or any(self._has(prefix + name) for name in (*more, *MORE)):
            return ()
        if not all(self._has(f"{prefix}{name}.weight") for name in parts):
            return ()
        gain, gate, up, down = (self.tensor(f"{prefix}{name}.weight") for name in parts)
        return gain.flatten(), gate, up, down * self._residual()

    def _residual(self) -> float:
        """Return the factor of a block's MLP in the residual."""
        first = self.parts[0]
        default = 1.4 / first.arch_key("block_count") ** 0.5 if first.architecture.startswith("minicpm") else 1.0
        return float(first.arch_key("residual_scale", default))

    def require_equal(self, states: Tensor, logits: Callable[[NDArray[np.int64]], Tensor]) -> None:
        """Raise ConfigError if the states, [S, T], do not lead to the engine's logits.

        states: multiplied by the scale. logits: returns those of the tokens [D], as [S, D].
        """
        n_vocab = self._shape(self.head)[-1]
        rows = np.linspace(0, n_vocab - 1, min(n_vocab, MOST_ROWS)).astype(np.int64)
        ours = capped(linear(states, self.tensor(self.head, rows), self.bias(rows)), self.cap)
        is_exact = all(
            header.tensors[self.head].type_name in FLOATS for header in self.parts if self.head in header.tensors
        )
        if reason := difference(ours, logits(rows), 0.0 if is_exact else ROUNDED):
            raise ConfigError(f"{self.parts[0].path}: {reason}. Drafts for it cannot be trained.")

    def _has(self, name: str) -> bool:
        return any(name in header.tensors for header in self.parts)

    def _shape(self, name: str) -> tuple[int, ...]:
        return next((header.tensors[name].shape for header in self.parts if name in header.tensors), (0, 0))


def capped(logits: Tensor, cap: float | Tensor | None) -> Tensor:
    """Return logits below a cap; unchanged without one."""
    return logits if not cap else cap * torch.tanh(logits / cap)


def difference(ours: Tensor, engine: Tensor, noise: float) -> str:
    """Name the difference of the trainer's logits from the engine's, [S, D]; "" if they are equal.

    What is added to all logits of a row changes no prediction. noise: largest difference by rounding, as a share of the
    largest logit; it neither scales logits nor shifts those of a token.
    """
    ours, engine = (logits.double() - logits.double().mean(-1, keepdim=True) for logits in (ours, engine))
    largest = max(float(engine.abs().max()), 1e-30)
    ratio = float((ours * engine).sum() / (ours * ours).sum().clamp(min=1e-30))
    added = (engine - ours).mean(0)
    found, scaled, shifted = (
        float(x.abs().max()) / largest for x in (ours - engine, ratio * ours - engine, ours + added - engine)
    )
    is_noise = abs(ratio - 1) <= EXPLAINED and float(added.abs().max()) <= EXPLAINED * largest
    if found <= TOLERANCE or (found <= noise and is_noise):
        return ""
    kind = "neither a scale nor a bias explains them"
    if min(scaled, shifted) <= max(TOLERANCE, noise):
        kind = f"the engine adds up to {float(added.abs().max()):.4g} to those of a token"
        kind = f"the engine's are {ratio:.4g} times as large" if scaled <= shifted else kind
    return f"the trainer's logits differ from the engine's by {found:.2g} of the largest: {kind}"
