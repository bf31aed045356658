"""A target's own next-token-prediction head, laid out for training as `Eagle3Draft` is.

Row j pairs token t[j] with the target's state after its final norm at j - 1, zeros before the first, and predicts
t[j + 1]. At step k >= 1 the same row takes token t[j + k] with its own normed state of step k - 1. The embeddings and
the output matrix are the target's and stay as they are; parameters have the names of a checkpoint without `mtp.`, and
norms their whole gain, which Qwen3.5 stores less 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from llama_eagle.convert.source import open_checkpoint
from llama_eagle.errors import ConfigError, InputError
from llama_eagle.gguf.header import read_model
from llama_eagle.train.model import Memory, Mlp, RMSNorm, attend, rotate
from llama_eagle.train.mtp import gguf_head
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo, read_target
from llama_eagle.train.targets.engine import EngineTargetInfo, configuration
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

TARGETS = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")


@dataclass(frozen=True)
class MTPGeometry:
    """Sizes of a head: those of the target's blocks with attention. n_rot: rotated dimensions of an attention head."""

    hidden_size: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    ffn_size: int
    rms_eps: float
    rope_base: float


class Attention(nn.Module):
    def __init__(self, g: MTPGeometry) -> None:
        super().__init__()
        self.q_proj = nn.Linear(g.hidden_size, 2 * g.n_head * g.head_dim, bias=False)  # per head: query, then gate
        self.k_proj = nn.Linear(g.hidden_size, g.n_head_kv * g.head_dim, bias=False)
        self.v_proj = nn.Linear(g.hidden_size, g.n_head_kv * g.head_dim, bias=False)
        self.o_proj = nn.Linear(g.n_head * g.head_dim, g.hidden_size, bias=False)
        self.q_norm, self.k_norm = RMSNorm(g.head_dim, g.rms_eps), RMSNorm(g.head_dim, g.rms_eps)


class Block(nn.Module):
    def __init__(self, g: MTPGeometry) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_eps)
        self.mlp = Mlp(g.hidden_size, g.ffn_size)


class OutputRows(nn.Module):
    """Rows of the target's output matrix, [D, H]: no parameters."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)


class MTPHead(nn.Module):
    def __init__(self, geometry: MTPGeometry, output_rows: Tensor) -> None:
        super().__init__()
        g = self.geometry = geometry
        self.pre_fc_norm_embedding = RMSNorm(g.hidden_size, g.rms_eps)
        self.pre_fc_norm_hidden = RMSNorm(g.hidden_size, g.rms_eps)
        self.fc = nn.Linear(2 * g.hidden_size, g.hidden_size, bias=False)
        self.layers = nn.ModuleList([Block(g)])
        self.norm = RMSNorm(g.hidden_size, g.rms_eps)
        self.lm_head = OutputRows(output_rows)

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
        """Return, per step k, the states before the final norm of rows 1..S - 2 - k, [B, S - 2 - k, H].

        Same interface as `Eagle3Draft.unroll`. final: [B, S, H], the target's states after its final norm. features:
        not used; positions: None, for text.
        """
        assert positions is None
        n_rows = embedded.shape[1] - 1
        before = torch.cat([torch.zeros_like(final[:, :1]), final[:, : n_rows - 1]], dim=1)
        memory: Memory = ()
        steps: list[Tensor] = []
        for k in range(min(n_steps, n_rows - 1)):
            n = n_rows - k
            given = embedded[:, k : k + n], before[:, :n], k, memory
            if checkpointing and torch.is_grad_enabled():
                x, memory = recomputed(self._step, *given, use_reentrant=False)
            else:
                x, memory = self._step(*given)
            steps.append(x[:, 1:])  # row 0 precedes the text: nothing is drafted from it
            before = self.norm(x)
        return steps

    def _step(self, embedded: Tensor, before: Tensor, k: int, memory: Memory) -> tuple[Tensor, Memory]:
        """Compute rows 0..n-1 of step k.

        Returns their states before the final norm [B, n, H], and the memory with their K and V.
        """
        block: Any = self.layers[0]
        pair = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(before)], dim=-1)
        x = self.fc(pair)
        attended, memory = self._attend(block.self_attn, block.input_layernorm(x), k, memory)
        x = x + attended
        return x + block.mlp(block.post_attention_layernorm(x)), memory

    def _attend(self, attention: Attention, x: Tensor, k: int, memory: Memory) -> tuple[Tensor, Memory]:
        g = self.geometry
        batch, n, _ = x.shape
        query, gate = attention.q_proj(x).view(batch, n, g.n_head, 2 * g.head_dim).chunk(2, dim=-1)
        key = attention.k_proj(x).view(batch, n, g.n_head_kv, g.head_dim)
        value = attention.v_proj(x).view(batch, n, g.n_head_kv, g.head_dim)
        query, key = (self._rotate(y, k) for y in (attention.q_norm(query), attention.k_norm(key)))
        memory = (*memory, (key, value.transpose(1, 2)))
        y = attend(query, memory).transpose(1, 2) * gate.sigmoid()
        return attention.o_proj(y.flatten(2)), memory

    def _rotate(self, x: Tensor, first: int) -> Tensor:
        """Rotate [B, n, heads, d] to [B, heads, n, d], at positions from `first`.

        Text has the same in every M-RoPE section.
        """
        g = self.geometry
        exponents = torch.arange(0, g.n_rot, 2, device=x.device, dtype=torch.float32) / g.n_rot
        angles = torch.arange(first, first + x.shape[1], device=x.device)[:, None] * g.rope_base**-exponents
        x = x.transpose(1, 2)
        return torch.cat([rotate(x[..., : g.n_rot], angles.cos(), angles.sin()), x[..., g.n_rot :]], dim=-1)


def require_head_target(info: TargetInfo) -> None:
    """Raise ConfigError for a target whose head cannot be trained here."""
    if info.architecture not in TARGETS:
        raise ConfigError(
            f"--kind mtp: heads are trained for {' and '.join(TARGETS)}, not for {info.architecture}. Leave --kind mtp "
            "out: an EAGLE-3 draft fits it."
        )


def require_earlier_head(info: TargetInfo, earlier: Path) -> None:
    """Raise ConfigError if `earlier` has a head that computes unlike the target's, InputError if it has none."""
    with torch.device("meta"):
        own = dict(MTPHead(_geometry(info.text), torch.empty(0)).named_parameters())
    found = _earlier_head(earlier)
    reasons = [
        *(f"no mtp.{name}" for name in sorted(own.keys() - found.keys())),
        *(f"mtp.{name}, which the trainer does not support" for name in sorted(found.keys() - own.keys())),
    ]
    if not reasons:
        for name, parameter in own.items():
            _fitting(name, found[name], parameter)
        reasons = _differences(_earlier_text(earlier), info.text)
    if reasons:
        raise ConfigError(f"--init {earlier}: its head has {reasons[0]}. Start from another head, or from none.")


def _earlier_text(path: Path) -> Any:
    """Return the configuration of the blocks of a file or folder, by transformers' names."""
    return configuration(read_model(path)[0]) if path.suffix == ".gguf" else read_target(path, ()).text


def _differences(earlier: Any, target: Any) -> list[str]:
    """Return the settings that shapes do not show, with both values."""
    found, own = vars(_geometry(earlier)), vars(_geometry(target))
    return [f"{name} {found[name]}, the target has {own[name]}" for name in own if found[name] != own[name]]


def make_head(info: TargetInfo, frozen: Frozen, draft_ids: Tensor, seed: int, earlier: Path | None = None) -> MTPHead:
    """Return the head in `earlier`, else the one in the target's checkpoint, else a new one. ids: [D].

    `earlier` is a folder written by this trainer, or a GGUF. A new head passes the state into a copy of the target's
    last block with attention.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = MTPHead(_geometry(info.text), frozen.head[draft_ids.to(frozen.head.device)].float())
    stored = _stored_head(info) if earlier is None else _earlier_head(earlier)
    start = stored or _last_block(info)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name in start:
                parameter.copy_(_fitting(name, start[name], parameter))
        if not stored:
            head.norm.weight.copy_(frozen.norm_gain)
            head.fc.weight.mul_(0.1)[:, info.text.hidden_size :] += torch.eye(info.text.hidden_size)
    return head


def head_tensors(head: MTPHead) -> dict[str, Tensor]:
    """Return the tensors in a checkpoint's names and shapes: BF16, norms minus 1."""
    parameters = head.named_parameters()
    return {f"mtp.{name}": (p.detach().cpu().float() - _offset(name)).bfloat16() for name, p in parameters}


def _stored_head(info: TargetInfo) -> dict[str, Tensor]:
    """Return the target's head without the names' prefix, norms with their whole gain; empty if it has none."""
    if isinstance(info, EngineTargetInfo):
        return gguf_head.stored_head(info.parts)
    return _tensors(info.folder, "mtp.")


def _earlier_head(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".gguf":
        return gguf_head.earlier_head(path)
    found = _tensors(path, "mtp.")
    if not found:
        raise InputError(f"--init {path}: its checkpoint has no MTP head. Name an earlier folder of --kind mtp.")
    return found


def _last_block(info: TargetInfo) -> dict[str, Tensor]:
    if isinstance(info, EngineTargetInfo):
        return gguf_head.last_attention_block(info.parts)
    number = max(i for i, kind in enumerate(info.text.layer_types) if kind == "full_attention")
    found = _tensors(info.folder, f"layers.{number}.")
    return {f"layers.0.{name}": tensor for name, tensor in found.items()}


def _tensors(folder: Path, mark: str) -> dict[str, Tensor]:
    """Return the tensors with `mark` in their names, keyed by the rest of the name after it."""
    checkpoint = open_checkpoint(folder)
    names = [
        name
        for name in checkpoint.names()
        if mark in name and "visual." not in name and ("mtp." in name) == (mark == "mtp.")
    ]
    return {name.partition(mark)[2]: torch.tensor(checkpoint.read_f32(name)) + _offset(name) for name in names}


def _geometry(text: Any) -> MTPGeometry:
    rope = text.rope_parameters or {}
    return MTPGeometry(
        hidden_size=text.hidden_size,
        n_head=text.num_attention_heads,
        n_head_kv=text.num_key_value_heads,
        head_dim=text.head_dim,
        n_rot=int(text.head_dim * rope.get("partial_rotary_factor", 1.0)),
        ffn_size=text.intermediate_size,
        rms_eps=text.rms_norm_eps,
        rope_base=float(rope.get("rope_theta", 10000.0)),
    )


def _offset(name: str) -> float:
    """Return the value that is subtracted from a norm's gain when it is stored."""
    return float("norm" in name)


def _fitting(name: str, tensor: Tensor, parameter: Tensor) -> Tensor:
    if tensor.shape != parameter.shape:
        raise ConfigError(
            f"mtp.{name} is {list(tensor.shape)}, expected {list(parameter.shape)}. By --init, name a head for "
            "a target of this size."
        )
    return tensor
