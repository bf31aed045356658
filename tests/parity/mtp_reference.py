"""A plain next-token-prediction (MTP) head in torch, float32, written from Hugging Face's modelling code.

It reads a checkpoint folder of Qwen3.5, Qwen3.5-MoE or Qwen3-Next by itself and is the judge of what runs from the
converted file: the target's hidden states and tokens in, logits over the draft vocabulary and next hidden states out.

Row p of a sequence pairs token x_p with h_{p-1}, the target's hidden state behind its final norm one row earlier, and
stands one position behind that row: in a text at RoPE position p. Row 0 has zeros for h.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from parity.eagle3_reference import position_parts
from safetensors.torch import load_file
from torch.nn.functional import linear, silu


@dataclass
class Step:
    """One draft step: logits [D], hidden [H] as the next step takes it, the target id drafted."""

    logits: torch.Tensor
    hidden: torch.Tensor
    token: int


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The head's tensors without `mtp.`, and the target's `embed_tokens.weight` and `lm_head.weight`; float32."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= {name: tensor.float() for name, tensor in load_file(path).items()}
    head = {name.removeprefix("mtp."): tensor for name, tensor in found.items() if name.startswith("mtp.")}
    (embedding,) = (tensor for name, tensor in found.items() if name.endswith("embed_tokens.weight"))
    return {**head, "embed_tokens.weight": embedding, "lm_head.weight": found.get("lm_head.weight", embedding)}


class MTPReference:
    """draft_ids: the target's ids in the order of a trimmed head's rows; None: the whole head.

    window: number of rows that a row attends to; 0: all. Positions begin at the first row that prefill() keeps.
    """

    window = 0

    def __init__(self, folder: str | Path, draft_ids: Sequence[int] | None = None) -> None:
        folder = Path(folder)
        self.w = load_tensors(folder)
        config = json.loads((folder / "config.json").read_text())
        self.config: dict[str, Any] = config.get("text_config", config)
        self.n_head, self.n_kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.head_dim = self.config["head_dim"]
        self.eps = self.config["rms_norm_eps"]
        head = self.w["lm_head.weight"]
        self.draft_ids = torch.arange(len(head)) if draft_ids is None else torch.tensor(list(draft_ids))
        self.head = head[self.draft_ids]
        rope = self.config.get("rope_parameters") or self.config
        n_rot = int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        self.inv_freq = rope["rope_theta"] ** -(torch.arange(0, n_rot, 2).float() / n_rot)
        self.parts = position_parts(rope, self.inv_freq)
        self.reset()

    @property
    def width(self) -> int:
        return self.head.shape[1]

    @property
    def n_rows(self) -> int:
        return len(self.keys)

    def reset(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def trim(self, n_rows: int) -> None:
        """Forgets all rows but the first n."""
        self.keys, self.values = self.keys[:n_rows], self.values[:n_rows]

    def prefill(self, tokens: Sequence[int], hidden: torch.Tensor) -> list[Step]:
        """Rows of a sequence's first tokens [n] with the target's states [n - 1 or more, H] after each of them."""
        assert self.n_rows == 0
        before = torch.cat([torch.zeros(1, self.width), hidden])
        first = max(0, len(tokens) - self.window) if self.window else 0
        return [self.row(tokens[i], before[i]) for i in range(first, len(tokens))]

    def chain(self, token: int, hidden: torch.Tensor, n_steps: int) -> list[Step]:
        """A greedy draft after `token`, with the target's state [H] before it. Its rows stay until they are trimmed."""
        steps = [self.row(token, hidden)]
        while len(steps) < n_steps:
            steps.append(self.row(steps[-1].token, steps[-1].hidden))
        return steps

    def row(self, token: int | torch.Tensor, hidden: torch.Tensor, position: int | torch.Tensor | None = None) -> Step:
        """Adds one row: a token, or a row [H] of an image, and the state [H] before it, the target's or the previous
        step's. position: one number, or with M-RoPE three; None: how many rows there are."""
        x = self.project(token, hidden)
        place = self.n_rows if position is None else position
        x = x + self._attention(self._norm(x, "layers.0.input_layernorm"), place)
        x = x + self._mlp(self._norm(x, "layers.0.post_attention_layernorm"))
        state = self._norm(x, "norm")
        logits = linear(state, self.head)
        return Step(logits, state, int(self.draft_ids[int(logits.argmax())]))

    def project(self, token: int | torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's input: the embedding comes first."""
        embedded = self.w["embed_tokens.weight"][token] if isinstance(token, int) else token
        embedding = self._norm(embedded, "pre_fc_norm_embedding")
        return linear(torch.cat([embedding, self._norm(hidden, "pre_fc_norm_hidden")]), self.w["fc.weight"])

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.w[f"{name}.weight"])

    def _attention(self, x: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
        at = "layers.0.self_attn."
        query_and_gate = linear(x, self.w[at + "q_proj.weight"]).view(self.n_head, 2 * self.head_dim)
        query, gate = query_and_gate.split(self.head_dim, dim=-1)
        key = linear(x, self.w[at + "k_proj.weight"]).view(self.n_kv, self.head_dim)
        query = self._rotate(self._norm(query, at + "q_norm"), position)
        self.keys.append(self._rotate(self._norm(key, at + "k_norm"), position))
        self.values.append(linear(x, self.w[at + "v_proj.weight"]).view(self.n_kv, self.head_dim))
        group = self.n_head // self.n_kv
        seen = (rows[-self.window :] for rows in (self.keys, self.values))
        keys, values = (torch.stack(rows).repeat_interleave(group, 1) for rows in seen)
        scores = torch.einsum("hd,rhd->hr", query, keys) / self.head_dim**0.5
        out = torch.einsum("hr,rhd->hd", scores.softmax(-1), values)
        return linear((out * gate.sigmoid()).reshape(-1), self.w[at + "o_proj.weight"])

    def _rotate(self, x: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
        """Halves of the rotary part against each other; text has the same position in every M-RoPE section."""
        angle = (position if isinstance(position, int) else position[self.parts]) * self.inv_freq
        half = len(self.inv_freq)
        a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        at = "layers.0.mlp."
        if at + "gate.weight" not in self.w:
            return self._swiglu(x, at)
        probs, chosen = linear(x, self.w[at + "gate.weight"]).softmax(-1).topk(self.config["num_experts_per_tok"])
        if self.config.get("norm_topk_prob", True):
            probs = probs / probs.sum()
        experts = [self._swiglu(x, f"{at}experts.{int(i)}.") for i in chosen]
        shared = linear(x, self.w[at + "shared_expert_gate.weight"]).sigmoid() * self._swiglu(x, at + "shared_expert.")
        return torch.stack(experts).T @ probs + shared

    def _swiglu(self, x: torch.Tensor, at: str) -> torch.Tensor:
        gate, up = (linear(x, self.w[f"{at}{name}_proj.weight"]) for name in ("gate", "up"))
        return linear(silu(gate) * up, self.w[f"{at}down_proj.weight"])


class TargetStates:
    """A target in transformers, float32: what an MTP head reads of it."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        make = getattr(transformers, config["architectures"][0])
        self.model = make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    def hidden(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n, H] behind the final norm."""
        decoder = self.model.get_decoder()
        with torch.no_grad():
            found: torch.Tensor = decoder(input_ids=torch.tensor([list(tokens)]), use_cache=False).last_hidden_state
        return found[0]
