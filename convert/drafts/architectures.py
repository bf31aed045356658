"""Target architectures by llama.cpp's name: which of them hand out the states a draft reads."""

from __future__ import annotations

# llama.cpp (native/UPSTREAM) sets the input of every block as a graph result for these; asking others aborts.
PUBLISHES_INPUTS = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "gemma4",
        "gpt-oss",
        "hunyuan_vl",
        "lfm2",
        "lfm2moe",
        "llama",
        "mimo2",
        "minimax-01",
        "minimax-m2",
        "muse-glimmer",
        "nanbeige",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
        "qwen4exp",
    }
)

# Of these, the state after the last block and before the final norm (boundary L) can be had too.
PUBLISHES_LAST = frozenset({"deepseek4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe"})

# model_type of config.json -> llama.cpp's name, where they differ by more than an underscore.
MODEL_TYPES = {
    "gpt_oss": "gpt-oss",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_text": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "qwen3_vl_moe_text": "qwen3vlmoe",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
}
