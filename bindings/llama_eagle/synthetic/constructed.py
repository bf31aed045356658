"""Constructed checkpoints: a Qwen3.5 target and its EAGLE-3 draft with known text and acceptance rate.

Every matrix has a real model's shape and is read and multiplied completely. The blocks of the target add almost nothing
to the residual stream, so the final hidden state is the token's embedding, and the head's row of the next id is aligned
with it. The draft's attention attends only to its own slot (queries and keys share their projection of the token's
embedding) and copies that embedding into the residual stream. Its head errs after chosen words. Embeddings are random
and nearly orthogonal: the right logit is 30, the others are normal with standard deviation 30 / sqrt(hidden). See
`cycle` for the text of such a pair.

    python -m llama_eagle.synthetic.constructed FOLDER --shape tiny --accept 0.7

A target with an MTP head drafts its own text, except after words for which it is made to err. The head uses the
target's output matrix, so its prediction must result from its block: eh_proj copies the token's embedding, which the
output matrix maps to the next word. The words of `Cycle.wrong` have a mark in their embeddings, and eh_proj maps the
mark to the component shared by all ids outside the cycle, which are followed by the start.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_eagle.synthetic.cycle import SPECIALS, Cycle
from llama_eagle.synthetic.shapes import SHAPES, Experts, Shape, draft_config, target_config
from llama_eagle.synthetic.tokenizer import write_tokenizer
from llama_eagle.synthetic.weights import Noise, Rows, Tensor, write_checkpoint

EMBEDDING_STRIDE = 64  # values between the slices of the noise pool for two neighbouring ids
EMBEDDING_RMS = 0.02
BLOCK_GAIN = 0.02  # output of each half of a target block, relative to the embedding: affects logits, not the text
PEAK_LOGIT = 30.0
SELF_SCORE = 40.0  # the draft's attention score of a slot with itself; other slots are near 0
FED_GAIN = 0.25  # share of the draft's fed-back hidden state in its residual stream
DRAFT_MLP_GAIN = 0.1
MTP_FED_GAIN = 0.1  # share of the fed-back state in an MTP head's input, relative to the embedding
MTP_BLOCK_GAIN = 0.1  # output of each half of its block
START_GAIN = 1.25  # size of the start's component for a marked embedding, relative to it: a logit of about 33, not 13


@dataclasses.dataclass(frozen=True)
class Pair:
    """A pair on disk and its known text."""

    target: Path
    draft: Path
    cycle: Cycle


def write_pair(folder: Path, shape: str | Shape = "tiny", accept: float = 0.7, seed: int = 0) -> Pair:
    """Write Hugging Face checkpoints in bfloat16 to `folder`/target and `folder`/draft.

    `accept`: probability that the draft's next token is the target's. Equal arguments give equal bytes.
    """
    shape = SHAPES[shape] if isinstance(shape, str) else shape
    cycle = Cycle(shape.n_vocab, shape.n_draft_vocab, accept, seed)
    target, draft = folder / "target", folder / "draft"
    write_target(target, shape, cycle, seed)
    write_draft(draft, shape, cycle, seed)
    return Pair(target, draft, cycle)


def write_target(
    folder: Path, shape: Shape, cycle: Cycle, seed: int, maker: Callable[[Shape, Any, int], Maker] | None = None
) -> None:
    """Write the target's checkpoint and tokenizer. It depends on the acceptance rate only if it has an MTP head.

    maker: of other tensors (blocks.py).
    """
    folder.mkdir(parents=True, exist_ok=True)
    generation = {"do_sample": False, "eos_token_id": cycle.special_ids[SPECIALS[2]]}
    (folder / "config.json").write_text(json.dumps(target_config(shape, cycle), indent=2))
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_tokenizer(folder, cycle)
    write_checkpoint(folder, (maker or Maker)(shape, cycle, seed).target())


def write_draft(folder: Path, shape: Shape, cycle: Cycle, seed: int) -> None:
    """Write the draft's checkpoint, which has neither embedding nor tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft_config(shape, cycle), indent=2))
    write_checkpoint(folder, Maker(shape, cycle, seed).draft())


class Maker:
    """Maker of the tensors of both checkpoints.

    mark [hidden]: component of the embeddings after which an MTP head errs.
    """

    def __init__(self, shape: Shape, cycle: Cycle, seed: int) -> None:
        self.shape = shape
        self.cycle = cycle
        self.noise = Noise(seed, 2)
        self.embeddings = Noise(seed, 3, shape.n_vocab * EMBEDDING_STRIDE)
        self.outside = self.noise.rows("outside", np.zeros(1), shape.hidden)  # shared by all ids outside the cycle
        self.mark = self.noise.rows("mark", np.zeros(1), shape.hidden)[0]

    # -- rows of the two embedding-like tables ------------------------------------------------------------------

    def own(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the random vector of each id, with standard deviation 1: [n] -> [n, hidden]."""
        return self.embeddings.slices(ids * EMBEDDING_STRIDE, self.shape.hidden)

    def embedding(self, low: int, high: int) -> NDArray[np.float32]:
        values = self.own(np.arange(low, high))
        outside = self.cycle.position[low:high] < 0
        values = np.where(outside[:, None], (values + self.outside) * np.float32(0.5**0.5), values)
        if self.cycle.mtp:
            marked = np.isin(np.arange(low, high), self.cycle.ids[self.cycle.wrong])
            values = np.where(marked[:, None], (values + self.mark) * np.float32(0.5**0.5), values)
        return values * np.float32(EMBEDDING_RMS)

    def head(self, ids: NDArray[np.int64], successor: NDArray[np.int64], scale: float) -> NDArray[np.float32]:
        """Return output rows [len(ids), n_embd], each aligned with the embedding of the id that it follows."""
        predecessor = np.full(self.cycle.n_vocab, -1)
        predecessor[successor[self.cycle.ids]] = self.cycle.ids
        before = predecessor[ids]
        values = np.where(
            before[:, None] >= 0, self.own(np.maximum(before, 0)), self.noise.rows("head", ids, self.shape.hidden)
        )
        values[ids == self.cycle.start] += np.float32(2**0.5) * self.outside[0]
        return values * np.float32(scale)

    # -- kinds of tensors ---------------------------------------------------------------------------------------

    def matrix(self, name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        """Return a random matrix: inputs of mean square 1 give outputs of mean square gain * gain."""
        scale = np.float32(gain / columns**0.5)
        return Tensor(
            f"{name}.weight",
            (rows, columns),
            lambda low, high: self.noise.rows(name, np.arange(low, high), columns) * scale,
        )

    def vector(self, name: str, n: int, mean: float, deviation: float) -> Tensor:
        return Tensor(
            name, (n,), lambda low, high: mean + deviation * self.noise.rows(name, np.zeros(1), n)[0, low:high]
        )

    def norm(self, name: str, n: int, mean: float) -> Tensor:
        """Return a norm's weight that scales by about `mean` (1 + weight in Qwen3.5: pass 0)."""
        return self.vector(f"{name}.weight", n, mean, 0.1 * (mean or 1))

    # -- target -------------------------------------------------------------------------------------------------

    def target(self) -> list[Tensor]:
        s = self.shape
        blocks = [tensor for i in range(s.layers) for tensor in self.block(i)]
        scale = PEAK_LOGIT / s.hidden
        head: Rows = lambda low, high: self.head(np.arange(low, high), self.cycle.next_ids, scale)  # noqa: E731
        return [
            Tensor("model.embed_tokens.weight", (s.n_vocab, s.hidden), self.embedding),
            *blocks,
            self.norm("model.norm", s.hidden, 0),
            Tensor("lm_head.weight", (s.n_vocab, s.hidden), head),
            *(self.mtp() if self.cycle.mtp else ()),
        ]

    def block(self, i: int) -> list[Tensor]:
        name, s = f"model.layers.{i}", self.shape
        attention = self.full_attention(f"{name}.self_attn") if i % 4 == 3 else self.delta_net(f"{name}.linear_attn")
        return [
            self.norm(f"{name}.input_layernorm", s.hidden, 0),
            *attention,
            self.norm(f"{name}.post_attention_layernorm", s.hidden, 0),
            *self.mlp(f"{name}.mlp"),
        ]

    def into_residual(self, name: str, columns: int, gain: float = BLOCK_GAIN * EMBEDDING_RMS) -> Tensor:
        return self.matrix(name, self.shape.hidden, columns, gain / 0.6)  # inputs have rms 0.6

    def mlp(self, name: str, gain: float = BLOCK_GAIN * EMBEDDING_RMS) -> list[Tensor]:
        """Return a block's MLP: dense, or a mixture's experts with the shared one."""
        experts = self.shape.experts
        if experts is None:
            return self.dense_mlp(name, self.shape.ffn, gain)
        return [
            self.matrix(f"{name}.gate", experts.n, self.shape.hidden),
            *self.experts(f"{name}.experts", experts, gain),
            *self.dense_mlp(f"{name}.shared_expert", experts.shared_ffn, gain),
            self.matrix(f"{name}.shared_expert_gate", 1, self.shape.hidden),
        ]

    def dense_mlp(self, name: str, ffn: int, gain: float) -> list[Tensor]:
        hidden = self.shape.hidden
        return [
            self.matrix(f"{name}.gate_proj", ffn, hidden),
            self.matrix(f"{name}.up_proj", ffn, hidden),
            self.into_residual(f"{name}.down_proj", ffn, gain),
        ]

    def experts(self, name: str, experts: Experts, gain: float) -> list[Tensor]:
        """Return the two tensors that contain all experts of a block: [n, 2 ffn, hidden] and [n, hidden, ffn]."""

        def stacked(part: str, rows: int, columns: int, gain: float) -> Tensor:
            scale = np.float32(gain / columns**0.5)
            values: Rows = lambda low, high: (  # noqa: E731
                self.noise.rows(f"{name}.{part}", np.arange(low * rows, high * rows), columns) * scale
            )
            return Tensor(f"{name}.{part}", (experts.n, rows, columns), values)

        hidden = self.shape.hidden
        return [
            stacked("gate_up_proj", 2 * experts.ffn, hidden, 1.0),
            stacked("down_proj", hidden, experts.ffn, gain / 0.6),
        ]

    def full_attention(self, name: str, gain: float = BLOCK_GAIN * EMBEDDING_RMS) -> list[Tensor]:
        s = self.shape
        return [
            self.matrix(f"{name}.q_proj", 2 * s.heads * s.head_dim, s.hidden),  # queries and output gates
            self.matrix(f"{name}.k_proj", s.kv_heads * s.head_dim, s.hidden),
            self.matrix(f"{name}.v_proj", s.kv_heads * s.head_dim, s.hidden),
            self.into_residual(f"{name}.o_proj", s.heads * s.head_dim, gain),
            self.norm(f"{name}.q_norm", s.head_dim, 0),
            self.norm(f"{name}.k_norm", s.head_dim, 0),
        ]

    def delta_net(self, name: str) -> list[Tensor]:
        s = self.shape
        values = s.linear_v_heads * s.linear_head_dim
        channels = 2 * s.linear_k_heads * s.linear_head_dim + values
        convolution = self.matrix(f"{name}.conv1d", channels, s.conv_kernel)
        return [
            self.matrix(f"{name}.in_proj_qkv", channels, s.hidden),
            self.matrix(f"{name}.in_proj_z", values, s.hidden),
            self.matrix(f"{name}.in_proj_b", s.linear_v_heads, s.hidden),
            self.matrix(f"{name}.in_proj_a", s.linear_v_heads, s.hidden),
            dataclasses.replace(convolution, shape=(channels, 1, s.conv_kernel)),
            self.vector(f"{name}.A_log", s.linear_v_heads, 1.5, 0.7),
            self.vector(f"{name}.dt_bias", s.linear_v_heads, -4.0, 1.0),
            self.norm(f"{name}.norm", s.linear_head_dim, 1),
            self.into_residual(f"{name}.out_proj", values),
        ]

    # -- MTP head -----------------------------------------------------------------------------------------------

    def mtp(self) -> list[Tensor]:
        s, name = self.shape, "mtp.layers.0"
        return [
            Tensor("mtp.fc.weight", (s.hidden, 2 * s.hidden), self.mtp_projection),
            self.norm("mtp.pre_fc_norm_embedding", s.hidden, 0),
            self.norm("mtp.pre_fc_norm_hidden", s.hidden, 0),
            self.norm(f"{name}.input_layernorm", s.hidden, 0),
            *self.full_attention(f"{name}.self_attn", MTP_BLOCK_GAIN),
            self.norm(f"{name}.post_attention_layernorm", s.hidden, 0),
            *self.mlp(f"{name}.mlp", MTP_BLOCK_GAIN),
            self.norm("mtp.norm", s.hidden, 0),
        ]

    def mtp_projection(self, low: int, high: int) -> NDArray[np.float32]:
        """Return rows [n, 2 * n_embd] of eh_proj: left for the normed embedding, right for the normed state."""
        hidden, rows = self.shape.hidden, np.arange(low, high)
        embedding = np.eye(hidden, dtype=np.float32)[rows]
        gain = np.float32(START_GAIN * 2**0.5 / hidden)  # the mark is half of a marked embedding's square
        embedding += gain * self.outside[0, low:high, None] * self.mark
        state = self.noise.rows("mtp.fc", rows, hidden) * np.float32(MTP_FED_GAIN / hidden**0.5)
        return np.concatenate([embedding, state], 1)

    # -- draft --------------------------------------------------------------------------------------------------

    def draft(self) -> list[Tensor]:
        s, c, name = self.shape, self.cycle, "midlayer"
        rank = s.draft_kv_heads * s.draft_head_dim
        scale = PEAK_LOGIT / s.hidden / (rank / (rank + s.hidden)) ** 0.5  # only `rank` directions are copied
        head: Rows = lambda low, high: self.head(c.draft_ids[low:high], c.draft_next_ids, scale)  # noqa: E731
        return [
            self.matrix("fc", s.hidden, 3 * s.hidden),
            self.norm(f"{name}.input_layernorm", s.hidden, 1),
            self.norm(f"{name}.hidden_norm", s.hidden, FED_GAIN),
            *self.draft_attention(f"{name}.self_attn"),
            self.norm(f"{name}.post_attention_layernorm", s.hidden, 1),
            self.matrix(f"{name}.mlp.gate_proj", s.ffn, s.hidden),
            self.matrix(f"{name}.mlp.up_proj", s.ffn, s.hidden),
            self.matrix(f"{name}.mlp.down_proj", s.hidden, s.ffn, DRAFT_MLP_GAIN / 0.6),
            self.norm("norm", s.hidden, 1),
            Tensor("lm_head.weight", (s.n_draft_vocab, s.hidden), head),
            Tensor("d2t", (s.n_draft_vocab,), lambda low, high: c.draft_ids[low:high] - np.arange(low, high), "I64"),
            Tensor("t2d", (s.n_vocab,), lambda low, high: c.position[low:high] >= 0, "BOOL"),
        ]

    def draft_attention(self, name: str) -> list[Tensor]:
        """Return the draft's attention. Queries, keys and values read the embedding and a little of the hidden state.

        The input is [embedding ; hidden].
        """
        s = self.shape
        group, dim = s.draft_heads // s.draft_kv_heads, s.draft_head_dim
        gain = (SELF_SCORE / dim**0.5) ** 0.5
        rows = s.draft_kv_heads * dim

        def reads(kind: str, n_rows: int, gain: float) -> Tensor:
            def values(low: int, high: int) -> NDArray[np.float32]:
                r = np.arange(low, high)
                shared = r // dim // group * dim + r % dim if kind == "q" else r  # a query row equals this key row
                embedding = self.noise.rows("draft v" if kind == "v" else "draft k", shared, s.hidden)
                hidden = self.noise.rows(f"draft {kind} hidden", r, s.hidden) * np.float32(0.1 / FED_GAIN)
                return np.concatenate([embedding, hidden], axis=1) * np.float32(gain / s.hidden**0.5)

            return Tensor(f"{name}.{kind}_proj.weight", (n_rows, 2 * s.hidden), values)

        def copies(low: int, high: int) -> NDArray[np.float32]:
            heads = self.noise.rows("draft v", np.arange(rows), s.hidden)[:, low:high].T.reshape(
                -1, s.draft_kv_heads, dim
            )
            scale = 1 / group / (rows**2 / s.hidden + rows) ** 0.5  # the copy has rms 1
            return np.repeat(heads, group, axis=1) * np.float32(scale)

        return [
            reads("q", s.draft_heads * dim, gain),
            reads("k", rows, gain),
            reads("v", rows, 1.0),
            Tensor(f"{name}.o_proj.weight", (s.hidden, s.draft_heads * dim), copies),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a constructed target and draft as Hugging Face checkpoints.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--accept", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pair = write_pair(args.folder, args.shape, args.accept, args.seed)
    print(pair.target, pair.draft, sep="\n")


if __name__ == "__main__":
    main()
