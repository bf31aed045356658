#!/usr/bin/env bash
# transformers 5.24.0 does not write `scoring_func` into a DeepSeek V3 checkpoint's config.json (its class always uses a
# sigmoid; the publisher's config.json has the key). llama.cpp's converter (0c1e57098) takes the gating function from that
# key: without it the GGUF has none, and llama.cpp routes by softmax. Conversion ends with code 0. Seen on 2026-11-29.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 sentencepiece==0.2.1
source=$(llama_cpp_source)
"$work/env/bin/python" - "$work/model" << 'P' > "$work/log" 2>&1
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedTokenizerFast
folder = Path(sys.argv[1])
config = DeepseekV3Config(
    hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
    kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, vocab_size=256)
DeepseekV3ForCausalLM(config).save_pretrained(folder)
tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
P
# The converter knows vocabularies by a hash; that of a tiny one is passed.
PYTHONPATH="$source:$source/gguf-py" "$work/env/bin/python" - "$source" "$work" >> "$work/log" 2>&1 << 'P'
import runpy, sys
from conversion import base
source, work = sys.argv[1:]
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "deepseek-v3"
sys.argv = ["convert", f"{work}/model", "--outfile", f"{work}/model.gguf", "--outtype", "f32"]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
P
code=$?
found=$(PYTHONPATH="$source/gguf-py" "$work/env/bin/python" - "$work" << 'P'
import json, sys
from gguf import GGUFReader
config = json.load(open(f"{sys.argv[1]}/model/config.json"))
fields = GGUFReader(f"{sys.argv[1]}/model.gguf").fields
print("scoring_func" in config, any(name.endswith(".expert_gating_func") for name in fields))
P
)
expect "code $code; scoring_func in config.json, gating function in the GGUF: $found" \
    "code 0; scoring_func in config.json, gating function in the GGUF: False False"
