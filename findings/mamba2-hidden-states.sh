#!/usr/bin/env bash
# In most models of transformers, hidden_states[k] is the input of block k (here: of the Llama next to it). In Mamba 2
# (transformers 5.24.0) it is not: a list of features taken from output_hidden_states trains on other states than a hook on
# the blocks. Seen on 2026-11-29: the lines at the end, random models of three blocks.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0
found=$("$work/env/bin/python" - << 'P' 2> /dev/null
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

def differences(model, blocks):
    inputs = []
    def note(module, args, kwargs):
        inputs.append((args[0] if args else kwargs["hidden_states"]).clone())
    for block in blocks:
        block.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        states = model(torch.arange(20)[None], output_hidden_states=True).hidden_states
    return ["equal" if torch.equal(one, other) else "different" for one, other in zip(inputs, states)]

torch.manual_seed(0)
sizes = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 128}
llama = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=64, num_attention_heads=4)).eval()
mamba = Mamba2ForCausalLM(Mamba2Config(**sizes, num_heads=8, head_dim=16, state_size=16, n_groups=1)).eval()
print("Llama:", *differences(llama, llama.model.layers), "- Mamba 2:", *differences(mamba, mamba.backbone.layers))
P
)
expect "$found" "Llama: equal equal equal - Mamba 2: different different different"
