"""A plain EAGLE-3 head in torch, float32, written from the description of the format and not from the converter.

It reads a Hugging Face draft folder by itself, whoever made it, and is the judge of converted files: same features and
tokens in, logits over the draft vocabulary and next hidden states out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, linear, silu
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every stored tensor under its plain name, floats as float32."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    for path in sorted(folder.glob("*.bin")):
        found |= torch.load(path, weights_only=True)
    for name in ("d2t", "t2d"):
        if (path := folder / f"{name}.npy").exists():
            found[name] = torch.from_numpy(np.load(path))
        if (path := folder / f"{name}.pt").exists():
            found[name] = torch.load(path, weights_only=True)
    plain = {}
    for name, tensor in found.items():
        for prefix in ("model.", "eagle_module.", "draft_model."):
            name = name.removeprefix(prefix)
        name = name.replace("midlayer.", "layers.0.")
        for i, place in enumerate(("low", "mid", "high")):
            name = name.replace(f"aux_norm_{place}.", f"fc_norm.{i}.")
        plain[name] = tensor.float() if tensor.is_floating_point() else tensor
    return plain


@dataclass
class Step:
    """One draft step: logits [D], hidden [H] as the next step takes it, the target id drafted."""

    logits: torch.Tensor
    hidden: torch.Tensor
    token: int


class Eagle3Reference:
    """embedding, head: the target's [V, H], for drafts that store none."""

    def __init__(
        self,
        folder: str | Path,
        *,
        embedding: torch.Tensor | None = None,
        head: torch.Tensor | None = None,
    ) -> None:
        folder = Path(folder)
        self.w = load_tensors(folder)
        config = json.loads((folder / "config.json").read_text())
        geometry = config.get("transformer_layer_config", config)
        flags = {**config, **config.get("eagle_config", {})}
        self.n_head = geometry["num_attention_heads"]
        self.n_kv = geometry.get("num_key_value_heads") or self.n_head
        self.head_dim = geometry.get("head_dim") or geometry["hidden_size"] // self.n_head
        self.gemma = geometry if config["architectures"] == ["Gemma4Eagle3Model"] else None
        if self.gemma:
            self.head_dim, self.n_kv = geometry["global_head_dim"], geometry["num_global_key_value_heads"]
        self.eps = geometry["rms_norm_eps"]
        self.norm_before_residual = flags.get("norm_before_residual", False)
        self.norm_output = flags.get("norm_output", False)
        self.mask_token = config.get("mask_token_id", -1)
        self.n_layer = len({name.split(".")[1] for name in self.w if name.startswith("layers.")})
        self.windows = _windows(geometry, self.n_layer)
        self.scale = config.get("logit_scale", 1.0)
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        self.head = self.w.get("lm_head.weight", head)
        self.target_ids = self._target_ids()
        self.inv_freq, self.magnitude = _rope(geometry, self.head_dim)
        self.parts = position_parts(
            geometry.get("rope_parameters") or geometry.get("rope_scaling") or {}, self.inv_freq
        )
        self.reset()

    def _target_ids(self) -> torch.Tensor:
        assert self.head is not None
        ids = torch.arange(len(self.head))
        return ids + self.w["d2t"].long() if "d2t" in self.w else ids

    def reset(self) -> None:
        self.kv: list[list[torch.Tensor]] = [[] for _ in range(2 * self.n_layer)]  # K then V of each layer, by slot

    def trim(self, n_slots: int) -> None:
        self.kv = [slots[:n_slots] for slots in self.kv]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.w[name]

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """g [H] of the concatenated aux features [A * T]."""
        if "input_norm.weight" in self.w:
            features = self.norm(features, "input_norm.weight")
        if "fc_norm.0.weight" in self.w:
            n_aux = sum(name.startswith("fc_norm.") for name in self.w)
            parts = features.chunk(n_aux)
            features = torch.cat([self.norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)])
        return linear(features, self.w["fc.weight"], self.w.get("fc.bias"))

    def slot(self, token: int | torch.Tensor, hidden: torch.Tensor, position: int | torch.Tensor) -> Step:
        """Adds one slot: (token, g or the previous step's hidden) at a RoPE position, one number or with M-RoPE three.

        token: its id, or the row [H] of an image.
        """
        assert self.embedding is not None and self.head is not None
        x = hidden
        for i in range(self.n_layer):
            at = f"layers.{i}."
            embedded = self.embedding[token] if isinstance(token, int) else token
            embedded = embedded * len(embedded) ** 0.5 if self.gemma else embedded
            residual, y = x, self.norm(embedded if i == 0 else x, at + "input_layernorm.weight")
            if i == 0:
                normed = self.norm(hidden, at + "hidden_norm.weight")
                y = torch.cat([y, normed])
                residual = normed if self.norm_before_residual else hidden
            x = self._block(i, residual, y, position)
        normed = self.norm(x, "norm.weight")
        logits = linear(normed, self.head) * self.scale
        if self.gemma:
            cap = self.gemma["final_logit_softcapping"]
            logits = torch.tanh(logits / cap) * cap
        token = int(self.target_ids[int(logits.argmax())])
        return Step(logits, normed if self.norm_output else x, token)

    def _block(self, layer: int, residual: torch.Tensor, y: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
        """Attention of y and MLP; Gemma 4 norms the result of each, too, and scales the sum."""
        at = f"layers.{layer}."
        attended, norm = self._attention(layer, y, position), at + "post_attention_layernorm.weight"
        if not self.gemma:
            x = residual + attended
            return x + mlp(self.w, at, self.norm(x, norm), silu)
        x = residual + self.norm(attended, norm)
        y = mlp(self.w, at, self.norm(x, at + "pre_feedforward_layernorm.weight"), ggml_gelu)
        return (x + self.norm(y, at + "post_feedforward_layernorm.weight")) * self.w[at + "layer_scalar"]

    def _attention(self, layer: int, y: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
        at = f"layers.{layer}.self_attn."

        def project(name: str, heads: int) -> torch.Tensor:
            out = linear(y, self.w[at + f"{name}_proj.weight"], self.w.get(at + f"{name}_proj.bias"))
            out = out.view(heads, self.head_dim)
            return self.norm(out, at + f"{name}_norm.weight") if at + f"{name}_norm.weight" in self.w else out

        q, k = project("q", self.n_head), project("k", self.n_kv)
        if self.gemma:
            own = "v" if at + "v_proj.weight" in self.w else "k"
            v = linear(y, self.w[at + f"{own}_proj.weight"]).view(self.n_kv, self.head_dim)
            v = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)
        else:
            v = project("v", self.n_kv)
        keys, values = self.kv[2 * layer], self.kv[2 * layer + 1]
        keys.append(self._rotate(k, position))
        values.append(v)
        seen = slice(-self.windows[layer], None)
        keys, values = keys[seen], values[seen]
        group = self.n_head // self.n_kv
        all_k = torch.stack(keys).repeat_interleave(group, 1)  # [slots, heads, head_dim]
        all_v = torch.stack(values).repeat_interleave(group, 1)
        scores = torch.einsum("hd,shd->hs", self._rotate(q, position), all_k)
        scores = scores if self.gemma else scores / self.head_dim**0.5
        out = torch.einsum("hs,shd->hd", scores.softmax(-1), all_v).reshape(-1)
        return linear(out, self.w[at + "o_proj.weight"], self.w.get(at + "o_proj.bias"))

    def _rotate(self, x: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
        """Halves rotated against each other (NeoX); what the frequencies do not cover stays."""
        n_rot = 2 * len(self.inv_freq)
        a, b, rest = x[:, : n_rot // 2], x[:, n_rot // 2 : n_rot], x[:, n_rot:]
        angle = (position if isinstance(position, int) else position[self.parts]) * self.inv_freq
        cos, sin = angle.cos() * self.magnitude, angle.sin() * self.magnitude
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def prefill(self, tokens: list[int], features: torch.Tensor, first: int = 0) -> list[Step]:
        """Slots first..first+n-1 of tokens [n + 1] and features [n, A * T]: slot P takes (tokens[P + 1], g[P])."""
        return [self.slot(tokens[i + 1], self.fuse(features[i]), first + i) for i in range(len(tokens) - 1)]

    def chain(self, token: int, features: torch.Tensor, position: int, n_steps: int) -> list[Step]:
        """A greedy draft: the root takes the sampled token and the last target features [A * T] at `position`."""
        steps = [self.slot(token, self.fuse(features), position)]
        while len(steps) < n_steps:
            position += 1
            steps.append(self.slot(steps[-1].token, steps[-1].hidden, position))
        return steps

    def masked(self, token: int, features: torch.Tensor, position: int, n_steps: int) -> list[Step]:
        """A greedy draft of P-EAGLE: mask rows, with learned features, follow the root."""
        root, mask = self.slot(token, self.fuse(features), position), self.fuse(self.w["mask_hidden"].flatten())
        return [root, *(self.slot(self.mask_token, mask, position + i) for i in range(1, n_steps))]


def mlp(
    weights: dict[str, torch.Tensor], at: str, y: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    gate, up, down = (weights[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return linear(activation(linear(y, gate)) * linear(y, up), down)


def ggml_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU as ggml's CPU backend reads it from a table of halves."""
    return gelu(x.half().float(), approximate="tanh").half().float()


def _windows(geometry: dict[str, Any], n_layer: int) -> list[int]:
    """Return the number of slots that each layer attends to, its own included (0: all)."""
    kinds = geometry.get("layer_types", ["full_attention"] * n_layer)
    return [geometry["sliding_window"] if kind == "sliding_attention" else 0 for kind in kinds]


def position_parts(params: dict[str, Any], inv_freq: torch.Tensor) -> torch.Tensor:
    """[n_rot / 2]: by which part of an M-RoPE position (time, height, width) each pair turns.

    As transformers' Qwen3-VL does interleaved (recomposition_frequencies), and its Qwen2-VL in blocks.
    """
    parts = torch.zeros(len(inv_freq), dtype=torch.long)
    time, height, width = params.get("mrope_section") or (len(inv_freq), 0, 0)
    if params.get("mrope_interleaved"):
        parts[1 : 3 * height : 3], parts[2 : 3 * width : 3] = 1, 2
    else:
        parts[time : time + height], parts[time + height : time + height + width] = 1, 2
    return parts


def _rope(geometry: dict[str, Any], head_dim: int) -> tuple[torch.Tensor, float]:
    """Frequencies [n_rot / 2] and magnitude, by transformers."""
    params = dict(geometry.get("rope_parameters") or geometry.get("rope_scaling") or {})
    params = params.get("full_attention", params)  # Gemma 4's draft has no window
    params.setdefault("rope_theta", geometry.get("rope_theta", 10000.0))
    params.setdefault("rope_type", params.pop("type", "default"))
    n_rot = int(head_dim * params.get("partial_rotary_factor", 1.0))
    if params["rope_type"] in ("default", "mrope"):
        return 1.0 / params["rope_theta"] ** (torch.arange(0, n_rot, 2).float() / n_rot), 1.0
    if params["rope_type"] == "proportional":
        n_rot = head_dim
    else:
        params.pop("partial_rotary_factor", None)
    config = LlamaConfig(
        hidden_size=geometry["hidden_size"],
        num_attention_heads=geometry["num_attention_heads"],
        head_dim=n_rot,
        max_position_embeddings=geometry["max_position_embeddings"],
        rope_parameters=params,
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[params["rope_type"]](config, torch.device("cpu"))
    return frequencies.float(), float(magnitude)
