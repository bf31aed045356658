"""Architectures whose layer inputs drafts can read, and those whose recurrent state can be rolled back."""

from __future__ import annotations

from llama_eagle.gguf.header import Header

# Architectures whose graph publishes the residual stream at every block, including those of our patch 0101.
FEATURE_TARGETS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2",
    "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen2", "qwen3", "qwen35", "qwen35moe",
    "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe",
})  # fmt: skip
# Architectures that publish the last boundary (after the last block) before the final norm.
LAST_BOUNDARY_TARGETS = frozenset({"deepseek4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe"})

# llm_arch_is_recurrent and llm_arch_is_hybrid of llama.cpp's src/llama-arch.cpp.
RECURRENT = frozenset({
    "arwkv7", "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear",
    "lfm2", "lfm2moe", "mamba", "mamba2", "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe",
    "qwen3next", "qwen4exp", "rwkv6", "rwkv6qwen2", "rwkv7",
})  # fmt: skip
REPLAYED = frozenset({"qwen35", "qwen35moe", "qwen3next"})  # keep small records of tokens: docs/round-state.md
# Keep a copy of the state for each token of the longest draft: llm_arch_supports_rs_rollback.
COPIED = frozenset({
    "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen4exp",
})  # fmt: skip


def rollback_problem(architecture: str) -> str:
    """Return the reason why a model of the architecture cannot undo rejected tokens; "" if it can."""
    if architecture not in RECURRENT - REPLAYED - COPIED:
        return ""
    return f"the recurrent state of {architecture} models cannot be rolled back in this build"


def copies_state(header: Header) -> bool:
    """Return True if a draft of N tokens takes N copies of a recurrent state."""
    return header.architecture in COPIED
