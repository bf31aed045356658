"""A constructed target and its DFlash draft, with a known acceptance rate at every place of a block.

The embedding of the word at position p of the cycle has the values cos(w p) and sin(w p) for many frequencies w, so the
embedding of a later word is a rotation of it. Heads of the draft's first layer attend to the row at a fixed distance,
which RoPE makes possible: queries and keys read a component that all embeddings share, and the phases of a query select
the distance. Heads of distance `block_size` copy an earlier word, rotated to the word before the one to propose. The
other layers add almost nothing.

Errors: each word has a difficulty between 0 and 1, which is copied too. Heads of the distances 0, 1, ... see mask
tokens if the row is at a later place of the block, and each adds a little. Where the sum exceeds a threshold, the
start of the cycle gets the highest logit. So the place i is right after right ones with the probability `profile[i]`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llama_eagle.synthetic.constructed import EMBEDDING_RMS, Maker, write_target
from llama_eagle.synthetic.cycle import SPECIALS, Cycle
from llama_eagle.synthetic.shapes import BLOCK_ROPE, Shape, block_config
from llama_eagle.synthetic.weights import Tensor, write_checkpoint

DECLINE = 0.01  # of the rate from one place to the next, as published drafts show
BLOCK_SIZE = 16
N_LAYERS = 5

COMMON, DIFFICULTY, MASK, WRONG = (slice(-96, -80), slice(-80, -64), slice(-64, -32), slice(-32, None))
N_RESERVED = 96  # channels for these
N_PAIRS = 32  # RoPE's fastest pairs of a head, which select the distance
SHARPNESS = 8.0
THRESHOLD = 2.0  # of the wrong channels, at which the start is as probable as the right word
GAIN = 0.03  # output of everything that only costs time, relative to the residual stream


class BlockCycle(Cycle):
    """A cycle with a difficulty for every word.

    difficulty [n_draft_vocab]: uniform from 0 to 1. profile [BLOCK_SIZE - 1]: rate of right tokens at each place.
    """

    def __init__(self, shape: Shape, n_words: int, accept: float, seed: int) -> None:
        super().__init__(shape.n_vocab, n_words, accept, seed, mtp=True)  # the draft uses the target's head
        self.mtp = False
        n_heads = shape.draft_heads - shape.draft_kv_heads  # that can see masks: the rate declines once for each
        place = np.minimum(np.arange(BLOCK_SIZE - 1), n_heads - 1)
        self.profile = np.maximum(accept - DECLINE * place, 0.0)
        rng, n = np.random.default_rng([seed, 4]), 50
        strata = [(rng.permutation(n) + rng.random(n)) / n for _ in range(-(-n_words // n))]
        self.difficulty = np.concatenate(strata)[:n_words].astype(np.float32)

    @property
    def mask(self) -> int:
        return self.special_ids[SPECIALS[0]]

    def expected_emitted(self, n_draft: int) -> float:
        """Return the mean number of tokens of a round."""
        return float(1 + np.cumprod(self.profile[:n_draft]).sum())


class BlockMaker(Maker):
    """Maker of the tensors of a target with such embeddings, and of its DFlash draft."""

    def __init__(self, shape: Shape, cycle: BlockCycle, seed: int) -> None:
        super().__init__(shape, cycle, seed)
        self.blocks = cycle
        self.n_pairs = (shape.hidden - N_RESERVED) // 2
        self.frequencies = np.random.default_rng([seed, 5]).uniform(0, np.pi, self.n_pairs).astype(np.float32)

    def own(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        values = super().own(ids).copy()
        values[:, -N_RESERVED:] = 0
        values[:, COMMON] = 1
        at = self.cycle.position[ids]
        angles = at[:, None].astype(np.float32) * self.frequencies
        waves = np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(ids), -1) * np.float32(2**0.5)
        values[:, : 2 * self.n_pairs] = np.where(at[:, None] >= 0, waves, values[:, : 2 * self.n_pairs])
        values[:, DIFFICULTY] = np.where(at >= 0, self.blocks.difficulty[np.maximum(at, 0)], 0)[:, None]
        return values

    def embedding(self, low: int, high: int) -> NDArray[np.float32]:
        values = super().embedding(low, high)
        values[:, -N_RESERVED:] = self.own(np.arange(low, high))[:, -N_RESERVED:] * np.float32(EMBEDDING_RMS)
        if low <= self.blocks.mask < high:
            row = np.zeros(self.shape.hidden, np.float32)
            row[COMMON], row[MASK] = EMBEDDING_RMS, EMBEDDING_RMS
            values[self.blocks.mask - low] = row
        return values

    def head(self, ids: NDArray[np.int64], successor: NDArray[np.int64], scale: float) -> NDArray[np.float32]:
        values = super().head(ids, successor, scale)
        values[:, -N_RESERVED:] = 0
        values[ids == self.cycle.start, WRONG] = 2 * self.n_copied / 32 / THRESHOLD * scale
        return values

    # -- draft --------------------------------------------------------------------------------------------------

    @property
    def n_copied(self) -> int:
        """Number of frequencies that the values of all heads hold, next to a difficulty and a mark of masks."""
        return min(self.n_pairs, self.shape.draft_kv_heads * (self.shape.draft_head_dim // 2 - 1))

    def draft(self) -> list[Tensor]:
        s = self.shape
        layers = [tensor for i in range(N_LAYERS) for tensor in self.draft_layer(i)]
        return [
            Tensor("fc.weight", (s.hidden, len(s.block_layer_ids) * s.hidden), self.fusion),
            self.ones("hidden_norm", s.hidden),
            *layers,
            self.ones("norm", s.hidden),
        ]

    def ones(self, name: str, n: int, value: float = 1.0) -> Tensor:
        return Tensor(f"{name}.weight", (n,), lambda low, high: np.full(high - low, value, np.float32))

    def fusion(self, low: int, high: int) -> NDArray[np.float32]:
        rows, hidden = np.arange(low, high), self.shape.hidden
        n_others = (len(self.shape.block_layer_ids) - 1) * hidden
        noise = self.noise.rows("fusion", rows, n_others) * np.float32(GAIN / hidden**0.5)
        return np.concatenate([np.eye(hidden, dtype=np.float32)[rows], noise], 1)

    def draft_layer(self, i: int) -> list[Tensor]:
        s, name = self.shape, f"layers.{i}"
        values, queries = s.draft_kv_heads * s.draft_head_dim, s.draft_heads * s.draft_head_dim
        attention = [
            self.matrix(f"{name}.self_attn.q_proj", queries, s.hidden),
            self.matrix(f"{name}.self_attn.k_proj", values, s.hidden),
            self.matrix(f"{name}.self_attn.v_proj", values, s.hidden),
            self.matrix(f"{name}.self_attn.o_proj", s.hidden, queries, GAIN),
            self.ones(f"{name}.self_attn.q_norm", s.draft_head_dim),
        ]
        return [
            self.ones(f"{name}.input_layernorm", s.hidden),
            *(self.copying_attention(f"{name}.self_attn") if i == 0 else attention),
            self.ones(f"{name}.self_attn.k_norm", s.draft_head_dim),
            self.ones(f"{name}.post_attention_layernorm", s.hidden),
            self.matrix(f"{name}.mlp.gate_proj", s.ffn, s.hidden),
            self.matrix(f"{name}.mlp.up_proj", s.ffn, s.hidden),
            self.matrix(f"{name}.mlp.down_proj", s.hidden, s.ffn, GAIN),
        ]

    def copying_attention(self, name: str) -> list[Tensor]:
        s = self.shape
        parts = {"q": self.queries(), "k": self.keys(), "v": self.values(), "o": self.outputs()}
        found = [
            Tensor(f"{name}.{kind}_proj.weight", rows.shape, lambda low, high, rows=rows: rows[low:high])  # type: ignore[misc]
            for kind, rows in parts.items()
        ]
        return [*found, self.ones(f"{name}.q_norm", s.draft_head_dim, SHARPNESS)]

    def distances(self) -> list[int]:
        """Return the distance of each query head: the first of each group copies, the others look for masks."""
        group = self.shape.draft_heads // self.shape.draft_kv_heads
        marks = iter(range(BLOCK_SIZE - 1))
        return [BLOCK_SIZE if head % group == 0 else next(marks, -1) for head in range(self.shape.draft_heads)]

    def angles(self) -> NDArray[np.float32]:
        """Return the angles [n_pairs] of a head's selecting pairs for a distance of 1."""
        angles = BLOCK_ROPE ** (-2 * np.arange(N_PAIRS) / self.shape.draft_head_dim)
        return angles.astype(np.float32)

    def queries(self) -> NDArray[np.float32]:
        s, half = self.shape, self.shape.draft_head_dim // 2
        rows = np.zeros((s.draft_heads, s.draft_head_dim, s.hidden), np.float32)
        for head, distance in enumerate(self.distances()):
            angles = self.angles() * max(distance, 0)
            rows[head, :N_PAIRS, COMMON] = np.cos(angles)[:, None]
            rows[head, half : half + N_PAIRS, COMMON] = -np.sin(angles)[:, None]
        return rows.reshape(-1, s.hidden)

    def keys(self) -> NDArray[np.float32]:
        s = self.shape
        rows = np.zeros((s.draft_kv_heads, s.draft_head_dim, s.hidden), np.float32)
        rows[:, :N_PAIRS, COMMON] = 1
        return rows.reshape(-1, s.hidden)

    def values(self) -> NDArray[np.float32]:
        """Return rows [n_head_kv * head_dim, columns]: waves of some frequencies, the difficulty, the mark of masks."""
        s, n = self.shape, self.shape.draft_head_dim - 2
        rows = np.zeros((s.draft_kv_heads, s.draft_head_dim, s.hidden), np.float32)
        for head in range(s.draft_kv_heads):
            channels = np.arange(head * n, min((head + 1) * n, 2 * self.n_copied))
            rows[head, np.arange(len(channels)), channels] = 1
            rows[head, n, DIFFICULTY] = 1 / 16
            rows[head, n + 1, MASK] = 1 / 32
        return rows.reshape(-1, s.hidden)

    def outputs(self) -> NDArray[np.float32]:
        s, n = self.shape, self.shape.draft_head_dim - 2
        rows = np.zeros((s.hidden, s.draft_heads, s.draft_head_dim), np.float32)
        group = s.draft_heads // s.draft_kv_heads
        # A normed mask token has larger values than a normed word.
        masked = 1 / (48 / s.hidden) ** 0.5
        added = self.profile_steps() / masked
        for head, distance in enumerate(self.distances()):
            if distance == BLOCK_SIZE:
                pairs = np.arange(head // group * n // 2, min((head // group + 1) * n // 2, self.n_copied))
                place = 2 * (pairs - head // group * n // 2)
                turn = self.frequencies[pairs] * (BLOCK_SIZE - 1)
                cos, sin = np.cos(turn) / self.word_scale, np.sin(turn) / self.word_scale
                rows[2 * pairs, head, place], rows[2 * pairs, head, place + 1] = cos, -sin
                rows[2 * pairs + 1, head, place], rows[2 * pairs + 1, head, place + 1] = sin, cos
                rows[WRONG, head, n] = 1 / s.draft_kv_heads / self.word_scale
            elif distance >= 0:
                rows[WRONG, head, n + 1] = added[distance]
        return rows.reshape(s.hidden, -1)

    @property
    def word_scale(self) -> float:
        """Factor of the norm for a word's embedding, about 1: the waves have a mean square of 1."""
        return float(((2 * self.n_pairs + 16 + 16 / 3) / self.shape.hidden) ** -0.5)

    def profile_steps(self) -> NDArray[np.float64]:
        """Return [n_rows]: what a row adds to the wrong channels for a mask i rows before it.

        A word of difficulty d errs at a place if d plus the sum of these exceeds the threshold.
        """
        steps = -np.diff(self.blocks.profile, prepend=0.0)
        steps[0] = THRESHOLD - self.blocks.profile[0]
        return steps


def write_block_target(folder: Path, shape: Shape, cycle: BlockCycle, seed: int) -> None:
    """Write the target's checkpoint and tokenizer."""
    write_target(folder, shape, cycle, seed, BlockMaker)


def write_block_draft(folder: Path, shape: Shape, cycle: BlockCycle, seed: int) -> None:
    """Write the draft's checkpoint, which has neither embedding nor head."""
    folder.mkdir(parents=True, exist_ok=True)
    config = block_config(shape, cycle.mask, N_LAYERS, BLOCK_SIZE)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_checkpoint(folder, BlockMaker(shape, cycle, seed).draft())
