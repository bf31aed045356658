#!/usr/bin/env bash
# SpecForge and ModelOpt write the layers that an EAGLE-3 draft reads into config.json's `eagle_config`, as the blocks whose
# outputs they are. llama.cpp's converter (0c1e57098) reads only the top level: it writes its default boundaries, 2, L / 2 and
# L - 3, and ends with code 0. The draft then reads other states than it was trained on. Seen on 2026-11-29: outputs of
# blocks 3, 10 and 17 of 24, which are boundaries 4, 11 and 18.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 sentencepiece==0.2.1
source=$(llama_cpp_source)
"$work/env/bin/python" - "$work" << 'P' > "$work/log" 2>&1
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
work = Path(sys.argv[1])
sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
         "vocab_size": 256, "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "head_dim": 16}
LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=24)).save_pretrained(work / "target")
tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(work / "target")
(work / "draft").mkdir()
config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, **sizes,
          "draft_vocab_size": 128, "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0,
          "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 10, 17], "use_aux_hidden_state": True}}
(work / "draft/config.json").write_text(json.dumps(config))
shapes = {"fc.weight": (64, 192), "midlayer.input_layernorm.weight": (64,), "midlayer.hidden_norm.weight": (64,),
          "midlayer.post_attention_layernorm.weight": (64,), "midlayer.self_attn.q_proj.weight": (64, 128),
          "midlayer.self_attn.k_proj.weight": (64, 128), "midlayer.self_attn.v_proj.weight": (64, 128),
          "midlayer.self_attn.o_proj.weight": (64, 64), "midlayer.mlp.gate_proj.weight": (64, 64),
          "midlayer.mlp.up_proj.weight": (64, 64), "midlayer.mlp.down_proj.weight": (64, 64), "norm.weight": (64,),
          "lm_head.weight": (128, 64)}
tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
tensors["d2t"], tensors["t2d"] = torch.zeros(128, dtype=torch.int64), torch.arange(256) < 128
save_file(tensors, work / "draft/model.safetensors", metadata={"format": "pt"})
P
# The converter knows vocabularies by a hash; that of a tiny one is passed.
PYTHONPATH="$source:$source/gguf-py" "$work/env/bin/python" - "$source" "$work" >> "$work/log" 2>&1 << 'P'
import runpy, sys
from conversion import base
source, work = sys.argv[1:]
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
sys.argv = ["convert", f"{work}/draft", "--target-model-dir", f"{work}/target", "--outfile", f"{work}/draft.gguf",
            "--outtype", "f32"]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
P
code=$?
found=$(PYTHONPATH="$source/gguf-py" "$work/env/bin/python" - "$work/draft.gguf" << 'P'
import sys
from gguf import GGUFReader
field = GGUFReader(sys.argv[1]).fields["eagle3.target_layers"]
print(*(int(field.parts[i][0]) for i in field.data))
P
)
expect "code $code; boundaries $found" "code 0; boundaries 2 12 21"
