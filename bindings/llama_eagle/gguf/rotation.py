"""Rotary positions: the context that a model was trained with, and the pairs of llama.cpp's interleaved M-RoPE."""

from __future__ import annotations

from llama_eagle.gguf.header import Header
from llama_eagle.native.limits import CHAT_CONTEXT

# llama.cpp does not rotate pairs 61 and 62 of Qwen3-VL's 64, which transformers rotates by the time. Every GGUF of the
# model has these sections. The two pairs turn by at most 0.1 radians within its context.
QWEN3VL_SECTIONS = [24, 20, 20]


def unassigned_pairs(sections: list[int], n_pairs: int) -> list[int]:
    """Return the pairs that llama.cpp rotates by the fourth part of a position, which is always 0.

    sections: four numbers with a positive sum. Source: ggml_mrope_cache_init (ggml-cpu/ops.cpp).
    """
    total = sum(sections)
    return [pair for pair in range(n_pairs) if pair % total >= 3 * sections[pair % total % 3]]


def trained_context(header: Header) -> int:
    """Return the tokens of the longest context that a model was made for, 0 if the file states none.

    With a RoPE scaling in the file this is its product, if config.json's own length was left as it was before.
    """
    stated = int(header.arch_key("context_length", 0))
    factor, original = (header.arch_key(f"rope.scaling.{name}", 0) for name in ("factor", "original_context_length"))
    return max(stated, int(factor * original))


def default_context(header: Header) -> int:
    """Return the default size of a conversation's context in tokens, which the model was trained with."""
    return min(CHAT_CONTEXT, trained_context(header) or CHAT_CONTEXT)


def beyond_training(header: Header, n_ctx: int) -> str | None:
    """Return a warning for a context of `n_ctx` tokens if that is longer than the model was trained with."""
    n_trained = trained_context(header)
    if not 0 < n_trained < n_ctx:
        return None
    return (
        f"the context of {n_ctx} tokens (n_ctx) is longer than the {n_trained} that the model was trained with"
        f"{scaling_included(header)}: answers to longer texts are likely to be wrong. Use at most n_ctx={n_trained}."
    )


def scaling_included(header: Header) -> str:
    """Return the end of a sentence about the trained context, which names the file's RoPE scaling if it has one."""
    kind, factor = (header.arch_key(f"rope.scaling.{name}") for name in ("type", "factor"))
    return f" (RoPE scaling {kind}{f' by {factor:g}' if factor else ''} included)" if kind not in (None, "none") else ""


def longer_text(n_trained: int, n_ctx: int) -> str:
    """Return the remedy for a text that is longer than the context, by the limit that it met."""
    if 0 < n_trained <= n_ctx:
        return f"The model was trained with {n_trained} tokens, so a larger n_ctx is no remedy. Shorten the text."
    return "Shorten the text or use a larger n_ctx."
