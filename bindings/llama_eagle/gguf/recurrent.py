"""Architectures with a recurrent state, which a rejected draft has to be taken out of again."""

from __future__ import annotations

from llama_eagle.gguf.header import Header

# llm_arch_is_recurrent and llm_arch_is_hybrid of llama.cpp's src/llama-arch.cpp.
ARCHITECTURES = frozenset({
    "arwkv7", "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear",
    "lfm2", "lfm2moe", "mamba", "mamba2", "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe",
    "qwen3next", "qwen4exp", "rwkv6", "rwkv6qwen2", "rwkv7",
})  # fmt: skip
REPLAYED = frozenset({"qwen35", "qwen35moe", "qwen3next"})  # keep small records of tokens: docs/round-state.md


def copies_state(header: Header) -> bool:
    """Return true if a draft of N tokens takes N copies of a recurrent state, or the state cannot go back at all."""
    return header.architecture in ARCHITECTURES - REPLAYED
