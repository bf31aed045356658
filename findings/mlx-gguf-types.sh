#!/usr/bin/env bash
# mlx 0.32.4: mx.load() of a GGUF file ends at the first MXFP4 tensor without a word, so that this tensor and all after it
# are missing. A file with a Q5_0 or Q5_1 tensor raises RuntimeError "gguf_tensor_to_f16 failed"; BF16 becomes float16.
# Seen on 2026-11-29: the lines at the end.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' gguf==0.19.0
cat > "$work/see.py" <<'PYTHON'
import sys
import gguf
import mlx.core as mx
import numpy as np
from gguf.quants import quantize

VALUES = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)


def load(*types):
    writer = gguf.GGUFWriter(sys.argv[1], "llama")
    for name in types:
        kind = getattr(gguf.GGMLQuantizationType, name)
        writer.add_tensor(f"{name}.weight", quantize(VALUES, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    try:
        return ",".join(f"{n}:{str(a.dtype)[9:]}" for n, a in sorted(mx.load(sys.argv[1]).items())) or "nothing"
    except RuntimeError as error:
        return str(error)


for types in (("F32", "MXFP4", "F16"), ("Q5_0",), ("Q5_1",), ("BF16",)):
    print("+".join(types), "->", load(*types), end="; ")
PYTHON
expect "$("$work/env/bin/python" "$work/see.py" "$work/x.gguf")" "F32+MXFP4+F16 -> F32.weight:float32; \
Q5_0 -> [load_gguf] gguf_tensor_to_f16 failed; Q5_1 -> [load_gguf] gguf_tensor_to_f16 failed; \
BF16 -> BF16.weight:float16; "
