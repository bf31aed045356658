"""A plain DFlash, DFlash2 or DSpark draft in torch, float32, written from the formats of their makers.

It reads a checkpoint folder by itself and is the judge of what runs from the converted file: features of the target and
the last token in, logits over the draft vocabulary of every row of the block and the drafted tokens out.

The projected features of row p give K and V at position p in every layer. The block begins at the position after them:
the last token, then mask tokens, whose rows attend to the features, and to each other unless the draft is causal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity.eagle3_reference import _rope, ggml_gelu, mlp
from safetensors.torch import load_file
from torch.nn.functional import linear, pad, silu


@dataclass
class Drafted:
    """A block: logits [n, D] and hidden states [n, H] of the rows that propose tokens, and these tokens."""

    logits: torch.Tensor
    hidden: torch.Tensor
    tokens: list[int]


class DFlashReference:
    """embedding, head: the target's [V, H], for drafts that store none."""

    def __init__(self, folder: Path, *, embedding: torch.Tensor, head: torch.Tensor) -> None:
        self.w = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
        config = json.loads((folder / "config.json").read_text())
        self.geometry: dict[str, Any] = {**config, **config.get("transformer_layer_config", {})}
        self.settings: dict[str, Any] = {**self.geometry, **config.get("dflash_config", {})}
        self.is_speculators = "transformer_layer_config" in config
        self.n_head, self.n_kv = self.geometry["num_attention_heads"], self.geometry["num_key_value_heads"]
        self.head_dim, self.eps = self.geometry["head_dim"], self.geometry["rms_norm_eps"]
        self.n_layer = self.geometry["num_hidden_layers"]
        self.gemma = config["architectures"] == ["Gemma4DSparkModel"]
        if self.gemma:
            self.head_dim, self.n_kv = self.geometry["global_head_dim"], self.geometry["num_global_key_value_heads"]
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        if self.geometry.get("has_embed_tokens") is False:
            self.embedding = embedding
        self.is_markov = "markov_head.markov_w1.weight" in self.w
        self.head = self.w.get("lm_head.weight", head)
        if self.is_markov and "d2t" not in self.w:
            self.head = head  # a full-size head of DSpark is the target's
        ids = torch.arange(len(self.head))
        self.target_ids = ids + self.w["d2t"].long() if "d2t" in self.w else ids
        self.inv_freq, self.magnitude = _rope(self.geometry, self.head_dim)
        self.architecture = config["architectures"][0]
        is_dspark = "DSpark" in config["architectures"][0] or self.settings.get("projector_type") == "dspark"
        self.from_anchor = bool(config.get("sample_from_anchor", is_dspark and "dflash_config" in config))
        self.windows = [self._window(il) for il in range(self.n_layer)]
        self.causal = [self._causal(il, config) for il in range(self.n_layer)]
        self.markov = (self.settings.get("markov_head_type") or "vanilla").lower()

    def _window(self, il: int) -> int:
        if self.settings.get("use_swa"):
            return int(self.settings["swa_window_size"])
        kinds, size = self.geometry.get("layer_types") or [""] * self.n_layer, self.geometry.get("sliding_window")
        is_used = self.geometry.get(
            "use_sliding_window", self.is_speculators
        )  # a class of transformers clears the size
        return int(size) if is_used and size and kinds[il] == "sliding_attention" else 1 << 30

    def _causal(self, il: int, config: dict[str, Any]) -> bool:
        """True if rows of a block do not attend to later ones: by default in layers with a window, as vLLM has it."""
        stated = [self.settings[key] for key in ("causal", "is_causal") if self.settings.get(key) is not None]
        if stated or self.windows[il] == 1 << 30:
            return bool(stated and stated[0])
        if self.is_speculators:
            return not config.get("sliding_window_non_causal", config["speculators_model_type"] == "dflash2")
        return not self.settings.get("use_swa") and self.architecture not in ("Qwen3DFlashDraftModel",)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.w[name]

    def block(self, features: torch.Tensor, token: int, n: int, first: int = 0) -> Drafted:
        """Draft n tokens after `token`, which follows features [rows, A * T]. Features before `first` are unknown."""
        fused = self.norm(linear(features, self.w["fc.weight"]), "hidden_norm.weight")[first:]
        ids = [token] + [self.settings["mask_token_id"]] * (n - 1 if self.from_anchor else n)
        scale = self.embedding.shape[1] ** 0.5 if self.gemma else self.settings.get("input_embedding_scale") or 1.0
        x = self.embedding[ids] * scale
        for il in range(self.n_layer):
            x = self._layer(il, x, fused, first)
        hidden = self.norm(x, "norm.weight")[-n:]
        logits = self._finish(linear(hidden, self.head))
        logits, picked = self._pick(logits, hidden, token)
        return Drafted(logits, hidden, picked)

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        if self.is_markov and not self.gemma:  # trained on the plain logits
            return logits
        logits = logits * (self.settings.get("output_multiplier") or 1.0)
        cap = self.settings.get("final_logit_softcapping")
        return torch.tanh(logits / cap) * cap if cap else logits

    def _pick(self, logits: torch.Tensor, hidden: torch.Tensor, token: int) -> tuple[torch.Tensor, list[int]]:
        """Choose the tokens, each with the one before it if there is a Markov head or a selector."""
        rows, picked = [], []
        cell = torch.zeros_like(self.w["markov_head.markov_w1.weight"][0]) if self.is_markov else torch.empty(0)
        for row, state in zip(logits, hidden, strict=True):
            if self.is_markov:
                code, cell = self._gate(self.w["markov_head.markov_w1.weight"][token], state, cell)
                row = row + linear(code, self.w["markov_head.markov_w2.weight"])
            best = int(row.argmax())
            if "candidate_selector.successor_codebook" in self.w:
                best = self._select(row, state, token)
            token = int(self.target_ids[best])
            rows.append(row)
            picked.append(token)
        return torch.stack(rows), picked

    def _gate(self, code: torch.Tensor, state: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what W2 projects, by the code of the token before, and the next state of a recurrent head."""
        if self.markov == "vanilla":
            return code, cell
        name, parts = ("gate", [state, code]) if self.markov == "gated" else ("joint", [cell, code, state])
        y = linear(torch.cat(parts), *(self.w[f"markov_head.{name}_proj.{part}"] for part in ("weight", "bias")))
        if self.markov == "gated":
            return y.sigmoid() * code, cell
        kept, fresh, out = y.chunk(3)
        return out.tanh(), kept.sigmoid() * cell + (1 - kept.sigmoid()) * fresh.tanh()

    def _select(self, row: torch.Tensor, state: torch.Tensor, token: int) -> int:
        prefix = "candidate_selector."
        candidates = row.topk(self.settings["selector_top_k"]).indices
        gate = linear(state, self.w[prefix + "hidden_projection.weight"])
        pair = self.w[prefix + "predecessor_codebook"][token] * gate
        scores = row[candidates] + self.w[prefix + "successor_codebook"][self.target_ids[candidates]] @ pair
        return int(candidates[int(scores.argmax())])

    def _layer(self, il: int, x: torch.Tensor, fused: torch.Tensor, first: int) -> torch.Tensor:
        at = f"layers.{il}."
        y = self.norm(x, at + "input_layernorm.weight")
        before, after = self._convolutions(at + "attention_conv", y)
        y = after(self._attention(il, before(y), fused, first))
        if self.gemma:
            x = x + self.norm(y, at + "post_attention_layernorm.weight")
            y = mlp(self.w, at, self.norm(x, at + "pre_feedforward_layernorm.weight"), ggml_gelu)
            return (x + self.norm(y, at + "post_feedforward_layernorm.weight")) * self.w[at + "layer_scalar"]
        x = x + y
        y = self.norm(x, at + "post_attention_layernorm.weight")
        before, after = self._convolutions(at + "mlp_conv", y)
        return x + after(mlp(self.w, at, before(y), silu))

    def _convolutions(self, at: str, y: torch.Tensor) -> Iterator[Any]:
        """Return the local convolutions before and after a part of a layer; without weights they do nothing."""
        if at + ".base_kernel" not in self.w:
            return iter((lambda values: values,) * 2)
        base = self.w[at + ".base_kernel"]  # [2, taps, H]
        groups = y.shape[-1] // self.settings["conv_group_size"]
        own = linear(y, self.w[at + ".kernel_projection.weight"]).view(len(y), *base.shape[:2], groups)
        weights = base + own.repeat_interleave(self.settings["conv_group_size"], -1)  # [rows, 2, taps, H]

        def convolve(side: int, values: torch.Tensor) -> torch.Tensor:
            padded = pad(values, (0, 0, base.shape[1] - 1, 0))
            taps = [padded[base.shape[1] - 1 - tap :][: len(values)] for tap in range(base.shape[1])]
            return sum(weights[:, side, tap] * taps[tap] for tap in range(base.shape[1]))  # type: ignore[return-value]

        return iter((lambda values: convolve(0, values), lambda values: convolve(1, values)))

    def _attention(self, il: int, y: torch.Tensor, fused: torch.Tensor, first: int) -> torch.Tensor:
        at = f"layers.{il}.self_attn."

        def project(x: torch.Tensor, name: str, heads: int) -> torch.Tensor:
            out = linear(x, self.w[at + f"{name}_proj.weight"]).view(len(x), heads, self.head_dim)
            return self.norm(out, at + f"{name}_norm.weight") if name in "qk" else out

        rows = torch.cat([fused, y])
        begin = first + len(fused)  # position of the block
        key_at, query_at = torch.arange(first, begin + len(y)), torch.arange(begin, begin + len(y))
        group = self.n_head // self.n_kv
        k = self._rotate(project(rows, "k", self.n_kv), key_at).repeat_interleave(group, 1)
        if self.gemma:
            v = linear(rows, self.w[at + "k_proj.weight"]).view(len(rows), self.n_kv, self.head_dim)
            v = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + self.eps)
        else:
            v = project(rows, "v", self.n_kv)
        v = v.repeat_interleave(group, 1)
        q = self._rotate(project(y, "q", self.n_head), query_at)
        scores = torch.einsum("ihd,jhd->hij", q, k)
        scores = scores if self.gemma else scores / self.head_dim**0.5
        ahead = key_at[None, :] - query_at[:, None]
        hidden = (ahead <= -self.windows[il]) | ((ahead > 0) & self.causal[il])
        scores = scores.masked_fill(hidden, -torch.inf)
        if at + "sinks" in self.w:
            sinks = self.w[at + "sinks"][:, None, None].expand(-1, len(y), 1)
            shares = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        out = torch.einsum("hij,jhd->ihd", shares, v).reshape(len(y), -1)
        return linear(out, self.w[at + "o_proj.weight"]) * (self.settings.get("attention_value_scale") or 1.0)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of x [rows, heads, head]: halves (NeoX), or neighbours; the rest is unchanged."""
        n_rot = 2 * len(self.inv_freq)
        angle = (positions[:, None] * self.inv_freq)[:, None, :]
        cos, sin = angle.cos() * self.magnitude, angle.sin() * self.magnitude
        if False in (self.geometry.get("is_neox_style"), self.geometry.get("rope_is_neox_style")):
            a, b = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot]
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned, x[..., n_rot:]], -1)
