"""The network of an EAGLE-3 draft, laid out for training: all slots of a sequence at once, step after step.

Slot i pairs token t[i + 1] with the target's features at i and predicts t[i + 2]. At step k >= 1 the same slot takes
token t[i + 1 + k] with its own hidden state of step k - 1: what the draft will meet when it drafts k tokens ahead.
Parameters have the names and shapes of a published checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, rms_norm, silu
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Sections:
    """M-RoPE: how many rotary pairs turn by time, height and width; the rest turns by time. interleaved: the pairs of
    height and width are every third one, from the second and the third on, instead of after those of time."""

    sizes: tuple[int, int, int]
    interleaved: bool

    @staticmethod
    def read(rope: Mapping[str, Any] | None) -> Sections | None:
        """Read them from a configuration's `rope_parameters`; return None if it names no sections."""
        sizes = (rope or {}).get("mrope_section")
        interleaved = bool((rope or {}).get("mrope_interleaved"))
        return None if sizes is None else Sections((sizes[0], sizes[1], sizes[2]), interleaved)

    def parts(self, n_pairs: int) -> Tensor:
        """Return the index of the position component that rotates each pair, [n_pairs]."""
        found = torch.zeros(n_pairs, dtype=torch.long)
        time, height, width = self.sizes
        if self.interleaved:
            found[1 : 3 * height : 3], found[2 : 3 * width : 3] = 1, 2
        else:
            found[time : time + height], found[time + height : time + height + width] = 1, 2
        return found


@dataclass(frozen=True)
class Geometry:
    """Sizes of a draft. Its width is the target's, so that it shares the target's embeddings.

    rope_scaling: further RoPE parameters by the names of config.json. sections: None: a row has its index as position,
    also in and after an image. norm_before_residual: the residual starts from the normed state. norm_output: the next
    step takes the state after the final norm. qk_norm: queries and keys of a head are normed. fc_norm: each feature is
    normed before `fc`. window: positions that a slot attends to, its own included; None: all.
    """

    hidden_size: int
    n_head: int
    n_head_kv: int
    head_dim: int
    ffn_size: int
    n_vocab: int  # of the target
    n_vocab_draft: int
    n_aux: int
    n_ctx: int
    rms_eps: float
    rope_base: float
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    sections: Sections | None = None
    norm_before_residual: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    fc_norm: bool = False
    window: int | None = None

    def frequencies(self) -> tuple[Tensor, float]:
        """Return the angle of each rotary pair per position, [head_dim / 2], and the factor of rotated values."""
        if not self.rope_scaling:
            return self.rope_base ** -(torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim), 1.0
        from transformers import LlamaConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = LlamaConfig(
            hidden_size=self.n_head * self.head_dim,  # transformers requires a multiple, which a draft need not have
            num_attention_heads=self.n_head,
            head_dim=self.head_dim,
            max_position_embeddings=self.n_ctx,
            rope_parameters={**self.rope_scaling, "rope_theta": self.rope_base},
        )
        found, factor = ROPE_INIT_FUNCTIONS[self.rope_scaling["rope_type"]](config, torch.device("cpu"))
        return found.float(), float(factor)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def _linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


class Attention(nn.Module):
    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.q_proj = _linear(2 * g.hidden_size, g.n_head * g.head_dim)
        self.k_proj = _linear(2 * g.hidden_size, g.n_head_kv * g.head_dim)
        self.v_proj = _linear(2 * g.hidden_size, g.n_head_kv * g.head_dim)
        self.o_proj = _linear(g.n_head * g.head_dim, g.hidden_size)
        if g.qk_norm:
            self.q_norm, self.k_norm = RMSNorm(g.head_dim, g.rms_eps), RMSNorm(g.head_dim, g.rms_eps)


class Mlp(nn.Module):
    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden_size, ffn_size)
        self.up_proj = _linear(hidden_size, ffn_size)
        self.down_proj = _linear(ffn_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_eps)
        self.hidden_norm = RMSNorm(g.hidden_size, g.rms_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_eps)
        self.mlp = Mlp(g.hidden_size, g.ffn_size)


@dataclass(frozen=True)
class Shared:
    """Tensors shared by all steps of a pass."""

    token_part: Tensor  # [B, S, Q + 2K]: the embedding's half of the q, k and v projections
    hidden_weight: Tensor  # [Q + 2K, H]: the other half's weights
    cos: Tensor  # [S, head_dim / 2], or [B, 1, S, head_dim / 2]
    sin: Tensor


Memory = tuple[tuple[Tensor, Tensor], ...]  # key and value of each step so far, [B, n_head_kv, slots, head_dim]


class Eagle3Draft(nn.Module):
    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        g = self.geometry = geometry
        if g.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(g.hidden_size, g.rms_eps) for _ in range(g.n_aux))
        self.fc = _linear(g.n_aux * g.hidden_size, g.hidden_size)
        self.midlayer = Block(g)
        self.norm = RMSNorm(g.hidden_size, g.rms_eps)
        self.lm_head = _linear(g.hidden_size, g.n_vocab_draft)

    @cached_property
    def _rotary(self) -> tuple[Tensor, float]:
        return self.geometry.frequencies()

    def unroll(
        self,
        embedded: Tensor,
        features: Tensor,
        final: Tensor,
        n_steps: int,
        *,
        positions: Tensor | None = None,
        checkpointing: bool = False,
    ) -> list[Tensor]:
        """Return the hidden states before the final norm: of step k, [B, S - 2 - k, H].

        embedded: [B, S, H], the tokens' embeddings; features: [B, S, A * T]; final: not used; positions: [B, S, 3],
        None: of a text without images. Slots whose token or prediction lies past the end are left out, so later steps
        have fewer.
        """
        n_slots = embedded.shape[1] - 2
        shared = self._share(embedded, positions)
        hidden = self.fc(self._normed(features[:, :n_slots]))
        memory: Memory = ()
        steps: list[Tensor] = []
        for k in range(min(n_steps, n_slots)):
            hidden = (self.norm(hidden) if k and self.geometry.norm_output else hidden)[:, : n_slots - k]
            if checkpointing and torch.is_grad_enabled():
                hidden, memory = checkpoint(self._step, hidden, k, shared, memory, use_reentrant=False)
            else:
                hidden, memory = self._step(hidden, k, shared, memory)
            steps.append(hidden)
        return steps

    def _normed(self, features: Tensor) -> Tensor:
        """Norm each of the features [B, S, A * T], if the draft has norms for them."""
        if not self.geometry.fc_norm:
            return features
        parts = features.chunk(self.geometry.n_aux, dim=-1)
        return torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)

    def _share(self, embedded: Tensor, positions: Tensor | None) -> Shared:
        """Project the embedding half of q, k and v once per token: several slots use the same embedding."""
        attention, block = self.midlayer.self_attn, self.midlayer
        weight = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        token_weight, hidden_weight = weight.split(self.geometry.hidden_size, dim=1)
        token_part = linear(block.input_layernorm(embedded), token_weight)
        cos, sin = self._rotation(embedded, positions)
        return Shared(token_part, hidden_weight, cos, sin)

    def _rotation(self, embedded: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        g, device = self.geometry, embedded.device
        frequencies, factor = self._rotary[0].to(device), self._rotary[1]
        places = torch.arange(embedded.shape[1], device=device)[:, None]
        if g.sections is not None and positions is not None:
            places = positions[:, None, :, g.sections.parts(len(frequencies))]
        angles = places * frequencies
        return angles.cos() * factor, angles.sin() * factor

    def _step(self, hidden: Tensor, k: int, shared: Shared, memory: Memory) -> tuple[Tensor, Memory]:
        """Compute slots 0..n-1 of step k.

        Returns the next hidden states [B, n, H], and the memory with this step's keys and values.
        """
        block, g = self.midlayer, self.geometry
        batch, n, _ = hidden.shape
        normed = block.hidden_norm(hidden)
        qkv = linear(normed, shared.hidden_weight) + shared.token_part[:, 1 + k : 1 + k + n]
        qkv = qkv.view(batch, n, -1, g.head_dim).transpose(1, 2)
        cos, sin = (table[..., k : k + n, :] for table in (shared.cos, shared.sin))
        q, key, value = qkv.split([g.n_head, g.n_head_kv, g.n_head_kv], dim=1)
        if g.qk_norm:
            q, key = block.self_attn.q_norm(q), block.self_attn.k_norm(key)
        q, key = rotate(q, cos, sin), rotate(key, cos, sin)
        memory = (*memory, (key, value))
        residual = normed if g.norm_before_residual else hidden
        x = residual + block.self_attn.o_proj(attend(q, memory, g.window).transpose(1, 2).flatten(2))
        return x + block.mlp(block.post_attention_layernorm(x)), memory


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding with halves against each other (NeoX). x: [..., n, d]; cos, sin: [..., n, d / 2]."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attend(q: Tensor, memory: Memory, window: int | None = None) -> Tensor:
    """Compute the attention of the last step's slots, [B, n_head, n, d].

    It covers the step-0 keys of slots <= i and slot i's own later keys, in one softmax. window: a slot attends to the
    last `window` positions, its own included; None: to all. Queries are grouped by blocks of a window, which see the
    keys of their block and of the one before, so that time and memory grow linearly with the text.
    """
    batch, n_head, n, size = q.shape
    span = n if window is None else min(window, n)
    first, *later = [tuple(_blocks(part[:, :, :n], span) for part in each) for each in memory]
    keys, values = (_with_block_before(part) for part in first)
    q = _blocks(q, span).view(batch, keys.shape[1], -1, *keys.shape[2:3], span, size) * size**-0.5
    scores = torch.einsum("bkgnid,bknjd->bkgnij", q, keys)
    scores = scores.masked_fill(_hidden(scores.shape[-3:], len(later), window, q.device), float("-inf"))
    own = [(q * key[:, :, None]).sum(-1, keepdim=True) for key, _ in later]
    weights = torch.cat([scores, *own], dim=-1).softmax(-1)
    over_first, *over_own = weights.split([keys.shape[-2], *[1] * len(own)], dim=-1)
    out = torch.einsum("bkgnij,bknjd->bkgnid", over_first, values.to(weights.dtype))
    for weight, (_, value) in zip(over_own, later, strict=True):
        out = out + weight * value[:, :, None]
    return out.reshape(batch, n_head, -1, size)[:, :, :n]


def _blocks(x: Tensor, span: int) -> Tensor:
    """Cut [B, heads, n, d] into blocks of `span` slots, padded at the end: [B, heads, blocks, span, d]."""
    return pad(x, (0, 0, 0, -x.shape[2] % span)).unflatten(2, (-1, span))


def _with_block_before(x: Tensor) -> Tensor:
    """Join each block with the one before, zeros before the first: [B, heads, blocks, 2 * span, d]."""
    return x if x.shape[2] == 1 else torch.cat([pad(x, (0, 0, 0, 0, 1, -1)), x], dim=3)


def _hidden(shape: Sequence[int], n_later: int, window: int | None, device: torch.device) -> Tensor:
    """Return the keys of step 0 that a slot does not attend to, as [blocks, span, keys]."""
    n_blocks, span, n_keys = shape
    slot = torch.arange(n_blocks * span, device=device).view(n_blocks, span, 1)
    key = torch.arange(span - n_keys, span, device=device) + torch.arange(n_blocks, device=device)[:, None, None] * span
    hidden = (key > slot) | (key < 0)
    return hidden if window is None else hidden | (key <= slot + n_later - window)
