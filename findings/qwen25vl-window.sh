#!/usr/bin/env bash
# Two Qwen2.5-VL checkpoints with equal weights and `window_size` 112 and 56 have different states in transformers 5.24.0.
# llama.cpp's converter (0c1e57098, --mmproj) writes the same file for both, with no key for the window, and ends with
# code 0. llama.cpp computes with a window of 112. Seen on 2026-11-30.
. "$(dirname "$0")/common.sh"
install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 sentencepiece==0.2.1 pillow==12.0.0
source=$(llama_cpp_source)
differ=$("$work/env/bin/python" - "$work" 2> "$work/log" << 'P'
import copy, json, sys
from pathlib import Path
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
torch.manual_seed(0)
text = dict(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=64, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]})
vision = dict(
    depth=4, hidden_size=64, intermediate_size=96, num_heads=4, out_hidden_size=64, patch_size=14, window_size=112,
    fullatt_block_indexes=[1, 3])
model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
patches, grid, states = torch.randn(144, 1176), torch.tensor([[1, 12, 12]]), []
for window in (112, 56):
    model.model.visual.window_size = model.config.vision_config.window_size = window
    with torch.no_grad():
        states.append(model.model.visual(patches, grid_thw=grid))
    folder = Path(sys.argv[1]) / str(window)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "min_pixels": 784, "max_pixels": 200704, "merge_size": 2, "patch_size": 14, "temporal_patch_size": 2,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
first, second = (s if torch.is_tensor(s) else s.pooler_output for s in states)
print("states differ" if (first - second).abs().max() > 1e-3 * first.abs().max() else "states are equal")
P
)
for window in 112 56; do
    PYTHONPATH="$source/gguf-py" "$work/env/bin/python" "$source/convert_hf_to_gguf.py" "$work/$window" --mmproj \
        --outfile "$work/mmproj-$window.gguf" --outtype f32 >> "$work/log" 2>&1 || { tail -5 "$work/log"; exit 1; }
done
files=$(PYTHONPATH="$source/gguf-py" "$work/env/bin/python" - "$work" << 'P'
import sys
from gguf import GGUFReader
def content(window):
    file = GGUFReader(f"{sys.argv[1]}/mmproj-{window}.gguf")
    fields = {name: field.contents() for name, field in file.fields.items() if not name.startswith(("GGUF.", "general."))}
    return fields, {tensor.name: tensor.data.tobytes() for tensor in file.tensors}
one, other = content(112), content(56)
print("equal" if one == other else "different", "with a window" if "clip.vision.window_size" in one[0] else "without a window")
P
)
expect "$differ; files: $files" "states differ; files: equal without a window"
