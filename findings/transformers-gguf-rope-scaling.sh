#!/usr/bin/env bash
# transformers 5.24.0 reads a GGUF's `rope.freq_base`, but not its `rope.scaling.*` keys, which llama.cpp's converter writes for
# every architecture with YaRN: the loaded Qwen3 or Llama has plain RoPE, without a warning, and other logits than in
# llama.cpp. Only gpt-oss's keys are read, as the lengths of their names (25 for rope.scaling.type), so that AutoConfig ends
# with a TypeError. Seen on 2026-12-01: the lines at the end, for YaRN with factor 32.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 gguf==0.19.0
found=$("$work/env/bin/python" - "$work" << 'P' 2> "$work/log"
import sys
from pathlib import Path
import gguf
from transformers import AutoConfig

folder = Path(sys.argv[1])
for name in ("qwen3", "llama", "gpt-oss"):
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", name)
    writer.add_block_count(2)
    writer.add_context_length(131072)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(150000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    if name == "gpt-oss":
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
        writer.add_sliding_window(128)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    try:
        rope = AutoConfig.from_pretrained(folder, gguf_file=f"{name}.gguf").rope_parameters
        print(f"{name}: theta {rope['rope_theta']:.0f}, {rope['rope_type']}")
    except TypeError as error:
        print(f"{name}: {type(error).__name__}")
P
)
expect "$found" "qwen3: theta 150000, default
llama: theta 150000, default
gpt-oss: TypeError"
