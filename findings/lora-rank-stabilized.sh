#!/usr/bin/env bash
# A rank-stabilized adapter (peft 0.21.2, use_rslora) multiplies by alpha / sqrt(r). GGUF stores alpha alone, and llama.cpp
# multiplies by alpha / r. convert_lora_to_gguf.py of llama.cpp 0c1e57098 ends with code 0 and writes peft's alpha as it is,
# so that the converted adapter acts with another strength: here 2 instead of 5.66. Seen on 2026-11-29.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 peft==0.21.2 numpy==2.4.6 sentencepiece==0.2.1
source=$(llama_cpp_source)
"$work/env/bin/python" - "$work" << 'P' 2> /dev/null
import sys
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
work = sys.argv[1]
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
model = LlamaForCausalLM(LlamaConfig(**sizes, architectures=["LlamaForCausalLM"]))
model.save_pretrained(f"{work}/base")
lora = LoraConfig(r=8, lora_alpha=16, use_rslora=True, target_modules=["q_proj"], init_lora_weights=False)
adapted = get_peft_model(model, lora)
adapted.save_pretrained(f"{work}/adapter")
layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
open(f"{work}/scale", "w").write(f"{layer.scaling['default']:.2f}")
P
PYTHONPATH="$source/gguf-py" "$work/env/bin/python" "$source/convert_lora_to_gguf.py" --base "$work/base" \
    --outfile "$work/lora.gguf" "$work/adapter" > "$work/log" 2>&1
code=$?
found=$(PYTHONPATH="$source/gguf-py" "$work/env/bin/python" - "$work/lora.gguf" << 'P'
import sys
from gguf import GGUFReader
reader = GGUFReader(sys.argv[1])
alpha = float(reader.fields["adapter.lora.alpha"].parts[-1][0])
rank = next(int(t.shape[1]) for t in reader.tensors if t.name.endswith("lora_a"))
print(f"alpha {alpha:g}, rank {rank}, scale {alpha / rank:.2f}")
P
)
expect "code $code; GGUF: $found; peft: scale $(cat "$work/scale")" \
    "code 0; GGUF: alpha 16, rank 8, scale 2.00; peft: scale 5.66"
