"""Captured boundaries of many families against the inputs of transformers' blocks.

Random tiny checkpoints, converted by llama.cpp's own converter, with a tokenizer that is never used.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fixtures.native import NativeTarget
from fixtures.upstream import source_folder

pytestmark = [pytest.mark.native, pytest.mark.slow]

N_VOCAB, N_LAYER, N_TOKENS = 512, 6, 40
EXACT = 1e-5  # largest difference relative to the largest value
TABLE = 5e-3  # where llama.cpp computes GELU from a table of 16 bits, or experts with a swish of its own
BASE: dict[str, Any] = {
    "vocab_size": N_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": N_LAYER,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HEAD, TIED, WHOLE = {"head_dim": 32}, {"tie_word_embeddings": True}, {"sliding_window": None}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ALTERNATING = ["sliding_attention", "full_attention"] * 3
WINDOWS = {"sliding_window": 64, "layer_types": ALTERNATING}
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0625, "logits_scaling": 8.0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_n_groups": 1}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128, "mscale": 1.0,
    "llama_4_scaling_beta": 0.1, "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}

# Configuration without "Config", fields beyond BASE, largest difference.
FAMILIES: dict[str, tuple[dict[str, Any], float]] = {
    "Llama": ({}, EXACT),
    "SmolLM3": ({"no_rope_layers": [1, 1, 1, 0, 1, 1], "no_rope_layer_interval": 4}, EXACT),
    "Mistral": ({**HEAD, **WHOLE}, EXACT),
    "Ministral3": ({**HEAD, "rope_parameters": YARN}, EXACT),
    "Mixtral": ({**EXPERTS, **WHOLE}, EXACT),
    "Granite": ({**MULTIPLIERS, **TIED}, EXACT),
    "GraniteMoe": ({**EXPERTS, **MULTIPLIERS}, EXACT),
    "Phi3": ({**WHOLE, "original_max_position_embeddings": 512}, EXACT),
    "Olmo2": ({}, EXACT),
    "Olmo3": (WINDOWS, EXACT),
    "Olmoe": ({"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}, EXACT),
    "Glm4": ({**HEAD, "attention_bias": True}, EXACT),
    "Glm4Moe": (
        {**HEAD, **{key: LATENT[key] for key in LATENT if "expert" in key or "group" in key}, "use_qk_norm": True}
        | {"moe_intermediate_size": 48, "first_k_dense_replace": 1},
        EXACT,
    ),
    "Lfm2": (
        {**TIED, "layer_types": ["conv", "conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
        EXACT,
    ),
    "GraniteMoeHybrid": (
        {**EXPERTS, **MULTIPLIERS, **MAMBA, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 32}
        | {"layer_types": ["mamba", "mamba", "attention"] * 2, "shared_intermediate_size": 48}
        | {"position_embedding_type": None},
        EXACT,
    ),
    "FalconH1": (
        {**MAMBA, "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_rms_norm": False}
        | {"embedding_multiplier": 2.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.7, "ssm_in_multiplier": 1.2}
        | {"ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9], "mlp_multipliers": [0.8, 0.5], "ssm_out_multiplier": 0.6}
        | {"attention_out_multiplier": 0.9, "num_logits_to_keep": 1},
        EXACT,
    ),
    "Mamba2": (
        {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "expand": 2, "chunk_size": 32}
        | {"intermediate_size": 128},
        EXACT,
    ),
    "Nemotron": ({"partial_rotary_factor": 0.5}, EXACT),
    "Qwen2": ({}, EXACT),
    "Qwen2Moe": (
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        | {"shared_expert_intermediate_size": 48},
        EXACT,
    ),
    "Qwen3": (HEAD, EXACT),
    "Qwen3Moe": (
        {**HEAD, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True},
        EXACT,
    ),
    "HunYuanDenseV1": (
        {"head_dim": 128, "max_position_embeddings": 32768}
        | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 1000.0}},
        EXACT,
    ),
    "Ernie4_5": ({**HEAD, **TIED}, EXACT),
    "SeedOss": (HEAD, EXACT),
    "Cohere": ({**TIED, "logit_scale": 0.0625, "use_qk_norm": False}, EXACT),
    "Cohere2": (
        {**TIED, "head_dim": 16, "logit_scale": 0.25, "sliding_window": 64}
        | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 2},
        EXACT,
    ),
    "DeepseekV2": ({**LATENT, "topk_method": "greedy"}, EXACT),
    "DeepseekV3": ({**LATENT, "n_routed_experts": 8, "n_group": 2}, EXACT),
    "MiniMaxM2": ({**HEAD, **EXPERTS, "rotary_dim": 16}, EXACT),
    "StableLm": ({}, EXACT),
    "Apertus": ({}, EXACT),
    "Arcee": ({}, EXACT),
    "Gemma": ({**HEAD, **TIED}, TABLE),
    "Gemma2": ({**HEAD, **TIED, "query_pre_attn_scalar": 32, "sliding_window": 64}, TABLE),
    "Gemma3Text": (
        {**HEAD, **TIED, "query_pre_attn_scalar": 32, "sliding_window": 64}
        | {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
        TABLE,
    ),
    "Gemma4Text": (
        {**HEAD, **TIED, "global_head_dim": 64, "rope_parameters": ROPES, "hidden_size_per_layer_input": 32}
        | {"vocab_size_per_layer_input": N_VOCAB, "num_kv_shared_layers": 3, "sliding_window": 64}
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
        TABLE,
    ),
    "Starcoder2": ({**WHOLE, "use_bias": True}, TABLE),
    "Phi": ({"intermediate_size": 256, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}, TABLE),
    "Falcon": ({"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False, "bias": False}, TABLE),
    "GptOss": ({**EXPERTS, **HEAD, **WINDOWS}, TABLE),
}
# Keys of published configurations that transformers 5 does not write.
PUBLISHED = {
    "Cohere2": {"rotary_pct": 1.0}, "DeepseekV3": {"scoring_func": "sigmoid"}, "MiniMaxM2": {"scoring_func": "sigmoid"},
    "FalconH1": {"head_dim": 16}, "GraniteMoeHybrid": {"layer_types": ["mamba", "mamba", "attention"] * 2},
}  # fmt: skip

_DRIVER = """
import json, sys, traceback
root, pairs, n_vocab = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
sys.path[:0] = [root, root + "/gguf-py"]
import convert_hf_to_gguf, conversion
from conversion import base
def set_vocab(self):
    self.gguf_writer.add_tokenizer_model("gpt2")
    self.gguf_writer.add_tokenizer_pre("gpt-2")
    self.gguf_writer.add_token_list([f"<{i}>" for i in range(n_vocab)])
    self.gguf_writer.add_token_types([1] * n_vocab)
    self.gguf_writer.add_token_merges(["< 1"])
def replace_vocabulary(cls):
    cls.set_vocab = set_vocab
    for other in cls.__subclasses__():
        replace_vocabulary(other)
conversion.load_all_models()
replace_vocabulary(base.TextModel)
for folder, output in pairs:
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", output, "--outtype", "f32"]
    try:
        convert_hf_to_gguf.main()
    except BaseException:
        traceback.print_exc()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of all families, and their GGUF files."""
    found = tmp_path_factory.mktemp("families")
    for name in FAMILIES:
        make(name, found / name)
    pairs = [(str(found / name), str(found / f"{name}.gguf")) for name in FAMILIES]
    command = [sys.executable, "-c", _DRIVER, str(source_folder()), json.dumps(pairs), str(N_VOCAB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (found / "log").write_text(done.stdout + done.stderr)
    return found


def make(name: str, folder: Path) -> None:
    """Save a random model: matrices of unit gain, biases and gains of norms that show where they are left out."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**BASE | FAMILIES[name][0])
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).to(torch.float32)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim >= 2 and "norm" not in key:
                weight.copy_(torch.randn_like(weight) * (0.5 if "embed" in key else 1 / math.sqrt(weight.shape[-1])))
            else:
                weight.add_(torch.randn_like(weight) * (0.2 if "norm" in key else 0.1))
    model.tie_weights()
    model.save_pretrained(folder)
    vocabulary = {f"<{i}>": i for i in range(N_VOCAB)}  # which the converter counts for Gemma
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | PUBLISHED.get(name, {})))


def block_inputs(name: str, folder: Path, tokens: list[int]) -> list[np.ndarray]:
    """Return [n_tokens, n_embd] for each block, as transformers passes it."""
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM").from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    decoder = model.get_decoder()
    seen: list[np.ndarray] = []

    def note(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append((given[0] if given else named["hidden_states"])[0].detach().numpy().copy())

    for block in getattr(decoder, "layers", None) or decoder.h:
        block.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        model.eval()(input_ids=torch.tensor([tokens]), use_cache=False)
    return seen


@pytest.mark.parametrize("name", FAMILIES)
def test_boundaries_are_the_inputs_of_transformers_blocks(name: str, folder: Path) -> None:
    path = folder / f"{name}.gguf"
    assert path.exists(), (folder / "log").read_text()[-2000:]
    tokens = np.random.default_rng(3).integers(5, N_VOCAB, N_TOKENS).tolist()
    expected = block_inputs(name, folder / name, tokens)
    with NativeTarget(path, layers=range(1, N_LAYER)) as target:
        found = target.features(tokens)
    for il in range(1, N_LAYER):
        largest = np.abs(expected[il]).max()
        assert np.abs(found[il] - expected[il]).max() < FAMILIES[name][1] * largest, f"boundary {il}"
