"""A draft before its first step."""

from __future__ import annotations

import torch
from llama_eagle.train.model import Eagle3Draft, Geometry
from llama_eagle.train.target import Frozen
from torch import Tensor


def make_draft(geometry: Geometry, frozen: Frozen, draft_ids: Tensor, seed: int) -> Eagle3Draft:
    """Random but for the head and its norm, which start as the target's: then a hidden state near the target's already
    means the right token."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = Eagle3Draft(geometry)
    with torch.no_grad():
        draft.lm_head.weight.copy_(frozen.head[draft_ids.to(frozen.head.device)])
        draft.norm.weight.copy_(frozen.norm_gain)
    return draft
