"""Memory of a loaded model: weights that are rearranged are not held a second time, and it is freed in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures.tiny_gguf import write_target

WIDTH, FFN, LAYERS, VOCAB = 1024, 8192, 3, 1024

MEASURE = """
import json, sys
from llama_eagle.native.calls import library
from llama_cpp import llama_cpp as llama

def kib(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

library()
llama.llama_backend_init()
before = kib("VmRSS")
model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
assert model
print(json.dumps({"loaded": kib("VmRSS") - before, "peak": kib("VmHWM") - before}))
"""


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama target of about 95 MB in Q8_0, nearly all of it matrices that are rearranged."""
    path = tmp_path_factory.mktemp("memory") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    random = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), dtype=np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    matrix("token_embd.weight", VOCAB, WIDTH)
    matrix("output.weight", VOCAB, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        matrix(f"blk.{layer}.ffn_gate.weight", FFN, WIDTH)
        matrix(f"blk.{layer}.ffn_up.weight", FFN, WIDTH)
        matrix(f"blk.{layer}.ffn_down.weight", WIDTH, FFN)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_weights_are_held_once(large_file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE, large_file], capture_output=True, text=True, check=True)
    memory = json.loads(done.stdout)
    size = large_file.stat().st_size / 1024
    assert memory["loaded"] <= 1.15 * size
    assert memory["peak"] <= 1.3 * size


DROPPED = """
import gc, sys, weakref
from llama_eagle import EagleLlama

load = lambda: EagleLlama(sys.argv[1], draft="lookup", n_ctx=128, n_threads=1)
gc.disable()
alone = load()
alone("abc", max_tokens=4)
seen = weakref.ref(alone)
del alone
print(seen() is None)
kept = load()
for _ in range(3):
    other = load()
    other.own = other
    stream = other("abc", max_tokens=9, stream=True)
    other.stream, seen = stream, weakref.ref(other)
    next(stream)
    del other, stream
    gc.collect()
    print(seen() is None, kept("abc", max_tokens=4)["choices"][0]["text"])

class Given:
    begin = accept = lambda *_: None
    draft = lambda *_: []

given = Given()
given.llm = EagleLlama(sys.argv[1], drafter=given, n_ctx=128, n_threads=1)
seen = weakref.ref(given.llm)
del given
gc.collect()
print(seen() is None)
"""


def test_an_instance_that_is_not_closed(tmp_path: Path) -> None:
    """It is freed with its last reference, in a cycle by the garbage collector in the right order, and at exit."""
    command = [sys.executable, "-c", DROPPED, str(write_target(tmp_path / "target.gguf"))]
    filled = {**os.environ, "MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3"}  # glibc: use after free is noticed
    done = subprocess.run(command, env=filled, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")) == (0, ["True", *["True defg"] * 3, "True", ""]), done.stderr
