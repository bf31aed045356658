"""Assignment of rotary pairs to the parts of a position (time, height, width) by llama.cpp's interleaved M-RoPE."""

from __future__ import annotations

# llama.cpp does not rotate pairs 61 and 62 of Qwen3-VL's 64, which transformers rotates by the time. Every GGUF of the
# model has these sections. The two pairs turn by at most 0.1 radians within its context.
QWEN3VL_SECTIONS = [24, 20, 20]


def unassigned_pairs(sections: list[int], n_pairs: int) -> list[int]:
    """Return the pairs that llama.cpp rotates by the fourth part of a position, which is always 0.

    sections: four numbers with a positive sum. Source: ggml_mrope_cache_init (ggml-cpu/ops.cpp).
    """
    total = sum(sections)
    return [pair for pair in range(n_pairs) if pair % total >= 3 * sections[pair % total % 3]]
