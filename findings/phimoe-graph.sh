#!/usr/bin/env bash
# Phi-3.5-MoE (PhimoeForCausalLM) has LayerNorm and routes by SparseMixer in transformers 5.24.0. llama.cpp 0c1e57098
# converts it with code 0 and computes RMS norms and a softmax over the experts: its logits are those of transformers only
# if both are exchanged there. A Mixtral of the same sizes is right. Seen on 2026-12-01. llama.cpp is compiled: 10 minutes.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 sentencepiece==0.2.1 protobuf==6.33.1
install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
source=$(llama_cpp_source)
cat > "$work/models.py" << 'P'
import sys
from pathlib import Path
import numpy, sentencepiece, torch
from torch import nn
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM, PhimoeConfig, PhimoeForCausalLM
from transformers.models.phimoe import modeling_phimoe
work, made = Path(sys.argv[1]), sys.argv[2] == "make"
tokens = torch.randint(5, 290, (1, 30), generator=torch.Generator().manual_seed(1))
sizes = dict(
    hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=290, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=128, tie_word_embeddings=False)

def make(name, config, model):
    model(config).save_pretrained(work / name)
    config = work / name / "config.json"
    config.write_text(config.read_text().replace("PhimoeForCausalLM", "PhiMoEForCausalLM"))  # as it is published
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a few words of a text"] * 50), model_prefix=str(work / name / "tokenizer"),
        vocab_size=290, byte_fallback=True, hard_vocab_limit=False, minloglevel=2)

def relative(model, name):
    import llama_cpp
    engine = llama_cpp.Llama(str(work / f"{name}.gguf"), n_ctx=64, logits_all=True, verbose=False)
    engine.eval(tokens[0].tolist())
    with torch.no_grad():
        expected = model(tokens).logits[0].numpy()
    return numpy.abs(engine.scores[: len(expected), : expected.shape[1]] - expected).max() / numpy.abs(expected).max()

def rms_norm(module, states):
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + module.eps) * module.weight + module.bias

def by_softmax(scores, jitter_eps, training, top_k):
    weights, experts = torch.softmax(scores, -1).topk(top_k)
    return weights / weights.sum(-1, keepdim=True), experts

if made:
    torch.manual_seed(0)
    make("mixtral", MixtralConfig(**sizes), MixtralForCausalLM)
    phimoe = dict(attention_bias=True, lm_head_bias=True, original_max_position_embeddings=128)
    make("phimoe", PhimoeConfig(**sizes, **phimoe), PhimoeForCausalLM)
else:
    mixtral, phimoe = (AutoModelForCausalLM.from_pretrained(work / n, dtype=torch.float32) for n in ("mixtral", "phimoe"))
    found = [relative(mixtral, "mixtral"), relative(phimoe, "phimoe")]
    nn.LayerNorm.forward, modeling_phimoe.sparsemixer = rms_norm, by_softmax
    found.append(relative(phimoe, "phimoe"))
    print(found, file=sys.stderr)
    equal = ["equal" if each < 1e-3 else "different" for each in found]
    print("Mixtral: {}, Phi-3.5-MoE: {}, with RMS norms and softmax: {}".format(*equal))
P
"$work/env/bin/python" "$work/models.py" "$work" make > "$work/log" 2>&1
for name in mixtral phimoe; do
    PYTHONPATH="$source/gguf-py" "$work/env/bin/python" "$source/convert_hf_to_gguf.py" "$work/$name" \
        --outfile "$work/$name.gguf" --outtype f32 >> "$work/log" 2>&1 || { tail -5 "$work/log"; exit 1; }
done
expect "$("$work/env/bin/python" "$work/models.py" "$work" compare 2>> "$work/log")" \
    "Mixtral: equal, Phi-3.5-MoE: different, with RMS norms and softmax: equal"
