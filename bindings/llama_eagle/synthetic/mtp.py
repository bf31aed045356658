"""The MTP head of a constructed target: its own text, but for words after which it is made to err.

The head has the target's output matrix, so what it says after a token must come out of its block: eh_proj copies the
token's embedding, which the output matrix maps to the next word. The words of `Cycle.wrong` carry a mark in their
embeddings, and eh_proj turns the mark into what all ids outside the cycle have in common: after them comes the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_eagle.synthetic.weights import Tensor

if TYPE_CHECKING:
    from llama_eagle.synthetic.constructed import Maker

FED_GAIN = 0.1  # what the state fed back adds, relative to the embedding
BLOCK_GAIN = 0.1  # what each half of the block adds
START_GAIN = 1.25  # what a marked embedding turns into, relative to it: about 33 of the start's logit against 13


def mtp_tensors(maker: Maker) -> list[Tensor]:
    """The `mtp.` tensors of a checkpoint."""
    s, name = maker.shape, "mtp.layers.0"
    return [
        Tensor("mtp.fc.weight", (s.hidden, 2 * s.hidden), lambda low, high: _projection(maker, low, high)),
        maker.norm("mtp.pre_fc_norm_embedding", s.hidden, 0),
        maker.norm("mtp.pre_fc_norm_hidden", s.hidden, 0),
        maker.norm(f"{name}.input_layernorm", s.hidden, 0),
        *maker.full_attention(f"{name}.self_attn", BLOCK_GAIN),
        maker.norm(f"{name}.post_attention_layernorm", s.hidden, 0),
        *maker.mlp(f"{name}.mlp", BLOCK_GAIN),
        maker.norm("mtp.norm", s.hidden, 0),
    ]


def _projection(maker: Maker, low: int, high: int) -> NDArray[np.float32]:
    """Rows of eh_proj: on the left for the normed embedding, on the right for the normed state."""
    hidden = maker.shape.hidden
    rows = np.arange(low, high)
    embedding = np.eye(hidden, dtype=np.float32)[rows]
    gain = np.float32(START_GAIN * 2**0.5 / hidden)  # of a marked embedding, half of the square is the mark
    embedding += gain * maker.outside[0, low:high, None] * maker.mark
    return np.concatenate([embedding, maker.noise.rows("mtp.fc", rows, hidden) * np.float32(FED_GAIN / hidden**0.5)], 1)
