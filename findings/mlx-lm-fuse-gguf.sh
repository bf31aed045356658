#!/usr/bin/env bash
# mlx-lm 0.32.2: the GGUF file of `mlx_lm.fuse --export-gguf` (mlx_lm/gguf.py) has a tokenizer of kind "llama" without
# merges for models whose tokenizer is byte-level BPE, such as Llama 3, and types of tokens as an array of u32, where
# llama.cpp's converter writes i32. The folder that the same command saves has the right tokenizer.
# Seen on 2026-11-29: the line at the end.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' mlx-lm==0.32.2 gguf==0.19.0
cat > "$work/see.py" <<'PYTHON'
import sys
from pathlib import Path

import gguf
import mlx.core as mx
from mlx_lm.gguf import convert_to_gguf
from mlx_lm.models import llama
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
ids = {text: i for i, text in enumerate([*pre_tokenizers.ByteLevel.alphabet(), "th", "the"])}
bpe = Tokenizer(models.BPE(ids, [("t", "h"), ("th", "e")]))
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>").save_pretrained(folder)
config = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "rms_norm_eps": 1e-5,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": len(ids) + 1, "tie_word_embeddings": False,
}
model = llama.Model(llama.ModelArgs.from_dict(config))
convert_to_gguf(folder, dict(tree_flatten(model.parameters())), config, str(folder / "x.gguf"))
fields = gguf.GGUFReader(folder / "x.gguf").fields
kind = fields["tokenizer.ggml.model"].contents()
types = fields["tokenizer.ggml.token_type"].types[-1].name
print(f"kind {kind}, merges {'tokenizer.ggml.merges' in fields}, token_type {types}")
PYTHON
mkdir "$work/model"
expect "$("$work/env/bin/python" "$work/see.py" "$work/model" 2> /dev/null | tail -1)" \
    "kind llama, merges False, token_type UINT32"
