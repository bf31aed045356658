"""Architectures whose layer inputs drafts can read, and those whose recurrent state can be rolled back."""

from __future__ import annotations

from llama_eagle.gguf.header import Header

# Architectures that publish the states between their blocks: one row [n_embd] for each token, which is all that a block
# reads of those before it, or the mean of its streams (deepseek4). tests/parity/test_every_architecture.py compares the
# table with the engine.
FEATURE_TARGETS = frozenset({
    "afmoe", "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bailingmoe3", "bitnet", "bloom",
    "chameleon", "chatglm", "codeshell", "cogvlm", "cohere2", "cohere2moe", "command-r", "dbrx", "deci", "deepseek",
    "deepseek2", "deepseek2-ocr", "deepseek32", "deepseek4", "dots1", "dots3note", "ernie4_5", "ernie4_5-moe", "exaone",
    "exaone-moe", "exaone4", "falcon", "falcon-h1", "gemma", "gemma2", "gemma3", "gemma4", "glm-dsa", "glm4", "glm4moe",
    "gpt-oss", "gpt2", "gptneox", "granite", "granite_swa", "granitehybrid", "granitemoe", "grok", "grovemoe",
    "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais", "jais2", "laguna", "lfm2", "lfm2moe",
    "llama", "llama4", "maincoder", "mamba2", "maple", "mellum", "mimo2", "minicpm", "minicpm3", "minimax-m2",
    "minimax-m3", "mistral3", "mistral4", "mpt", "muse-glimmer", "nanbeige", "nemotron", "nemotron_h", "nemotron_h_moe",
    "olmo", "olmo2", "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2", "phi3", "phimoe", "plamo",
    "plamo3", "plm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smallthinker", "smollm3", "spark2_5", "stablelm", "starcoder",
    "starcoder2", "step35", "talkie", "xverse",
})  # fmt: skip
# Of these, the ones that publish boundary 0, the embeddings, and those that publish the last one, after the last block
# and before the final norm. Other graphs compute the last block for output rows alone.
FIRST_BOUNDARY_TARGETS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
    "mimo2", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe",
    "qwen3moe", "qwen3next",
})  # fmt: skip
LAST_BOUNDARY_TARGETS = frozenset({
    "bailingmoe3", "cogvlm", "cohere2moe", "deepseek4", "gemma4", "gpt-oss", "hy_v3", "mimo2", "nemotron_h",
    "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
})  # fmt: skip

ENCODERS = frozenset({
    "bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert",
    "nomic-bert", "nomic-bert-moe", "t5", "t5encoder",
})  # fmt: skip
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
_STREAMS = "its blocks hand on several streams, not one state"
_BYPASSED = "its blocks read more of the blocks before than the state between them"
_OTHERS = {
    **dict.fromkeys(ENCODERS, "it generates no text token by token"),
    **dict.fromkeys(DIFFUSION, "it does not generate token by token"),
    **dict.fromkeys(("pockettts", "qwen3tts", "wavtokenizer-dec"), "it generates speech"),
    **dict.fromkeys(("gemma3n", "glm5-next", "hy_v4", "qwen4exp"), _STREAMS),
    **dict.fromkeys(("arwkv7", "graniteswitch", "hrm_text", "kimi-k3", "rwkv7"), _BYPASSED),
    "gptj": "llama.cpp does not run it",
}

# llm_arch_is_recurrent and llm_arch_is_hybrid of llama.cpp's src/llama-arch.cpp.
RECURRENT = frozenset({
    "arwkv7", "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear",
    "lfm2", "lfm2moe", "mamba", "mamba2", "minimax-01", "nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe",
    "qwen3next", "qwen4exp", "rwkv6", "rwkv6qwen2", "rwkv7",
})  # fmt: skip
# Keep small records of tokens, which they replay: docs/round-state.md.
REPLAYED = frozenset({
    "falcon-h1", "granitehybrid", "lfm2", "lfm2moe", "mamba2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",
    "qwen3next",
})  # fmt: skip
# Keep a copy of the state for each token of the longest draft: llm_arch_supports_rs_rollback.
COPIED = frozenset({"bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "qwen4exp"})


def capture_problem(architecture: str) -> str:
    """Return the reason why drafts cannot read the layer inputs of an architecture; "" if they can."""
    if architecture in FEATURE_TARGETS:
        return ""
    reason = _OTHERS.get(architecture, "nobody has compared them with the engine's")
    return f"this build does not publish the states between blocks of {architecture} models: {reason}"


def rollback_problem(architecture: str) -> str:
    """Return the reason why a model of the architecture cannot undo rejected tokens; "" if it can."""
    if architecture not in RECURRENT - REPLAYED - COPIED:
        return ""
    return f"the recurrent state of {architecture} models cannot be rolled back in this build"


def copies_state(header: Header) -> bool:
    """Return True if a draft of N tokens takes N copies of a recurrent state."""
    return header.architecture in COPIED
