"""A block draft with a Markov head (DSpark), laid out for training as `Eagle3Draft` is.

Slot i begins a block at token t[i + 1], with the target's features up to i in the memory of each layer. Row k of the
block is that token for k = 0 and the mask token after it; it attends to the features and to the rows up to its own, and
predicts t[i + 2 + k]. The Markov head adds to the logits of row k what follows from t[i + 1 + k] alone. Parameters have
the names and shapes of a published checkpoint.
"""

from __future__ import annotations

import torch
from llama_eagle.train.initial import start_from_target
from llama_eagle.train.model import Geometry, Mlp, RMSNorm, rotate
from llama_eagle.train.mtp.head import OutputRows
from llama_eagle.train.targets.checkpoint import Frozen, TargetInfo
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

N_LAYERS, RANK = 2, 64  # of a new draft


def _linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias=False)


class Attention(nn.Module):
    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.q_proj = _linear(g.hidden_size, g.n_head * g.head_dim)
        self.k_proj = _linear(g.hidden_size, g.n_head_kv * g.head_dim)
        self.v_proj = _linear(g.hidden_size, g.n_head_kv * g.head_dim)
        self.o_proj = _linear(g.n_head * g.head_dim, g.hidden_size)
        self.q_norm, self.k_norm = RMSNorm(g.head_dim, g.rms_eps), RMSNorm(g.head_dim, g.rms_eps)


class Layer(nn.Module):
    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.head_dim = g.head_dim
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_eps)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_eps)
        self.mlp = Mlp(g.hidden_size, g.ffn_size)

    def forward(self, x: Tensor, fused: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Compute blocks x [B, n, R, H] with features [B, n, H]. cos, sin: of positions 0..n + R - 1."""
        x = x + self._attend(self.input_layernorm(x), fused, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))

    def _attend(self, x: Tensor, fused: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attention, (n, n_rows) = self.self_attn, x.shape[1:3]
        own = torch.arange(1, n + 1, device=x.device)[:, None] + torch.arange(n_rows, device=x.device)  # positions
        at_features, at_rows = (cos[:n], sin[:n]), (cos[own], sin[own])

        def project(given: Tensor, name: str, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
            """Project [B, ..., H] to [B, heads, ..., d]."""
            out = getattr(attention, f"{name}_proj")(given).unflatten(-1, (-1, self.head_dim))
            out = out.movedim(-2, 1)
            return out if rotation is None else rotate(getattr(attention, f"{name}_norm")(out), *rotation)

        keys, values = project(fused, "k", at_features), project(fused, "v", None)
        own_keys, own_values = project(x, "k", at_rows), project(x, "v", None)
        q = project(x, "q", at_rows).unflatten(1, (keys.shape[1], -1)) * self.head_dim**-0.5  # [B, kv, group, n, R, d]
        to_features = torch.einsum("bkgnrd,bkmd->bkgnrm", q, keys)
        to_rows = torch.einsum("bkgnrd,bknsd->bkgnrs", q, own_keys)
        slot, row = torch.arange(n, device=x.device), torch.arange(n_rows, device=x.device)
        to_features = to_features.masked_fill(slot > slot[:, None, None], -torch.inf)
        to_rows = to_rows.masked_fill(row > row[:, None], -torch.inf)
        over_features, over_rows = torch.cat([to_features, to_rows], -1).softmax(-1).split([n, n_rows], -1)
        out = torch.einsum("bkgnrm,bkmd->bnrkgd", over_features.to(values.dtype), values)
        out = out + torch.einsum("bkgnrs,bknsd->bnrkgd", over_rows.to(values.dtype), own_values)
        return attention.o_proj(out.flatten(3))


class MarkovHead(nn.Module):
    def __init__(self, n_vocab: int, n_vocab_draft: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(n_vocab, rank)
        self.markov_w2 = _linear(rank, n_vocab_draft)


class BlockDraft(nn.Module):
    """mask: [H], the embedding of the mask token. output_rows: [D, H], of the target's head. They are not trained
    if the draft vocabulary is the target's, because the file of such a draft has no head.
    """

    mask: Tensor

    def __init__(self, geometry: Geometry, mask: Tensor, output_rows: Tensor, n_layers: int = N_LAYERS) -> None:
        super().__init__()
        g = self.geometry = geometry
        self.fc = _linear(g.n_aux * g.hidden_size, g.hidden_size)
        self.hidden_norm = RMSNorm(g.hidden_size, g.rms_eps)
        self.layers = nn.ModuleList(Layer(g) for _ in range(n_layers))
        self.norm = RMSNorm(g.hidden_size, g.rms_eps)
        self.markov_head = MarkovHead(g.n_vocab, g.n_vocab_draft, RANK)
        is_whole = g.n_vocab_draft == g.n_vocab
        self.lm_head: nn.Module = OutputRows(output_rows) if is_whole else _linear(g.hidden_size, g.n_vocab_draft)
        if not is_whole:
            self.lm_head.weight.data.copy_(output_rows)
        self.register_buffer("mask", mask, persistent=False)

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
        """Return the states before the final norm of row k, [B, S - 2 - k, H]: the interface of `Eagle3Draft.unroll`.

        final: not used; positions: None, for text.
        """
        assert positions is None
        n = embedded.shape[1] - 2
        fused = self.hidden_norm(self.fc(features[:, :n]))
        masks = self.mask.to(embedded.dtype).expand(len(embedded), n, n_steps - 1, -1)
        x = torch.cat([embedded[:, 1 : n + 1, None], masks], dim=2)
        frequencies, factor = self.geometry.frequencies()
        angles = torch.arange(n + n_steps, device=x.device)[:, None] * frequencies.to(x.device)
        given = fused, angles.cos() * factor, angles.sin() * factor
        for layer in self.layers:
            if checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, *given, use_reentrant=False)
            else:
                x = layer(x, *given)
        return [x[:, : n - k, k] for k in range(min(n_steps, n))]

    def with_markov(self, normed: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [M, H + rank] and weights [D, H + rank] whose product are the logits. before: [M], tokens."""
        code = self.markov_head.markov_w1(before).to(normed.dtype)
        weight = torch.cat([self.lm_head.weight, self.markov_head.markov_w2.weight], dim=1)
        return torch.cat([normed, code], dim=1), weight


def mask_token(info: TargetInfo) -> int:
    """Return the token of the rows after the first: one that no draft follows, if the target has an end token."""
    return info.end_tokens[0] if info.end_tokens else info.n_vocab - 1


def make_block_draft(geometry: Geometry, frozen: Frozen, draft_ids: Tensor, mask_token: int, seed: int) -> BlockDraft:
    """Return a new draft for `ids` [D]: head, last norm and last MLP are the target's.

    `fc` passes on the highest boundary; the codes of tokens are projections of their embeddings.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rows = frozen.head[draft_ids.to(frozen.head.device)].float()
        draft = BlockDraft(geometry, frozen.embedding[mask_token].float(), rows)
        projection = torch.randn(geometry.hidden_size, RANK) * geometry.hidden_size**-0.5
    with torch.no_grad():
        start_from_target(draft, draft.layers[-1], frozen)
        embedding = frozen.embedding.float().cpu()
        draft.markov_head.markov_w1.weight.copy_(embedding / embedding.std() @ projection)
        draft.markov_head.markov_w2.weight.zero_()
    return draft
