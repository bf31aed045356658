"""Published boundaries of an architecture, each examined: it must be all that passes between two blocks.

    cd tests && python -m parity.architecture_worker llama qwen3moe     # one JSON object in each line
    cd tests && python -m parity.architecture_worker --write FOLDER llama     # writes FOLDER/llama.gguf too

A process of its own, because llama.cpp ends it where keys do not suit an architecture. The models are random and have
no files: llama.cpp lists their tensors, which are filled here. All nodes of a decode are seen through the evaluation
callback, and the graph that they form is examined.
"""

from __future__ import annotations

import ctypes as ct
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from fixtures.architectures import (
    NO_FLASH_ATTENTION,
    OPTIONAL,
    Architecture,
    every_architecture,
    weights,
    write_model,
)
from llama_eagle.gguf.pairing import check_models
from llama_eagle.native.calls import library

N_TOKENS, N_OUTPUTS = 24, 3
OUTPUT = 2  # GGML_TENSOR_FLAG_OUTPUT
AROUND_MLP = (b"ffn_inp-", b"l_out-")


class Tensor(ct.Structure):
    """ggml_tensor."""


Tensor._fields_ = [
    ("type", ct.c_int), ("buffer", ct.c_void_p), ("ne", ct.c_int64 * 4), ("nb", ct.c_size_t * 4), ("op", ct.c_int),
    ("op_params", ct.c_int32 * 16), ("flags", ct.c_int32), ("src", ct.c_void_p * 10), ("view_src", ct.c_void_p),
    ("view_offs", ct.c_size_t), ("data", ct.c_void_p), ("name", ct.c_char * 64), ("extra", ct.c_void_p),
    ("padding", ct.c_char * 8),
]  # fmt: skip
Fill = ct.CFUNCTYPE(None, ct.POINTER(Tensor), ct.c_void_p)


class InitParams(ct.Structure):
    _fields_ = (("no_alloc", ct.c_bool), ("ctx", ct.c_void_p))


filled: dict[str, tuple[tuple[int, ...], type]] = {}  # tensors of the model, as in its file


@Fill
def fill(pointer: Any, _: Any) -> None:
    tensor = pointer.contents
    name = tensor.name.decode()
    shape = np.trim_zeros(np.array(tensor.ne) - 1, "b") + 1  # without dimensions of 1 at the end
    filled[name] = tuple(map(int, shape[::-1])) or (1,), np.float32 if tensor.type == 0 else np.float16
    data = weights(name, filled[name][0]).astype(filled[name][1])
    ct.memmove(tensor.data, data.ctypes.data, data.nbytes)


class Graph:
    """The nodes of a decode in the order of their computation, and the values of those that are outputs."""

    def __init__(self, api: Any) -> None:
        self.names: list[str] = []
        self.sources: list[list[int]] = []
        self.values: dict[int, np.ndarray] = {}
        self.around_mlp: dict[
            str, np.ndarray
        ] = {}  # of the last block: what its MLP reads before the norm, and its end
        self._at: dict[int, int] = {}
        self.callback = api.ggml_backend_sched_eval_callback(self._see)

    def _see(self, pointer: Any, ask: bool, _: Any) -> bool:
        address = ct.cast(pointer, ct.c_void_p).value or 0
        tensor = Tensor.from_address(address)
        if ask:
            self._at[address] = len(self.names)
            self.names.append(tensor.name.decode("utf-8", "replace"))
            self.sources.append([self._at[p] for p in (*tensor.src, tensor.view_src) if p in self._at])
            is_output = bool(tensor.flags & OUTPUT) and list(tensor.ne[1:]) == [N_TOKENS, 1, 1]
            return is_output or tensor.name.startswith(AROUND_MLP)
        shape = tensor.ne[1], tensor.ne[0]
        found = np.ctypeslib.as_array(ct.cast(tensor.data, ct.POINTER(ct.c_float)), shape).copy()
        if tensor.flags & OUTPUT:
            self.values[self._at[address]] = found
        if tensor.name.startswith(AROUND_MLP):
            self.around_mlp[tensor.name.decode().partition("-")[0]] = found  # the last block's is the last one
        return True

    def above(self, node: int, without: int = -1) -> set[int]:
        """Return the nodes from which `node` is computed, except through the node `without`."""
        found: set[int] = set()
        todo = [node]
        while todo:
            new = [s for s in self.sources[todo.pop()] if s not in found and s != without]
            found.update(new)
            todo += new
        return found

    def block(self, node: int) -> int:
        found = re.search(r"-(\d+)( |$)", self.names[node])
        return int(found[1]) if found else -1

    def bypasses(self, node: int) -> list[str]:
        """Return names of nodes of earlier blocks that the result reads without passing through `node`."""
        above = self.above(node)
        of_blocks: set[int] = set()
        for at in sorted(above):
            if self.block(at) >= 0 or of_blocks.intersection(self.sources[at]):
                of_blocks.add(at)
        end = len(self.names) - 1
        later = {*self.above(end, node), end} - above
        return sorted({self.names[s] for at in later for s in self.sources[at] if s in of_blocks})

    def blocks_around(self, node: int) -> tuple[int, int]:
        """Return the last block from which a node is computed, and the first one that reads it."""
        above = self.above(node)
        readers = {at for at in range(node + 1, len(self.names)) if node in self.sources[at]}
        for at in range(node + 1, len(self.names)):
            if readers.intersection(self.sources[at]):
                readers.add(at)
        later = [self.block(at) for at in readers - above if self.block(at) >= 0]
        return max(map(self.block, above), default=-1), min(later, default=-1)


def examine(of: Architecture, out: Path) -> dict[str, Any]:
    """Build the model in memory and examine its graph; write its file to a folder."""
    lib = library()
    from llama_cpp import llama_cpp as api

    base = ct.CDLL(str(Path(lib._name).with_name("libggml-base.so")))
    base.gguf_init_from_file.restype, base.gguf_init_from_file.argtypes = ct.c_void_p, [ct.c_char_p, InitParams]
    lib.llama_model_init_from_user.restype = ct.c_void_p
    lib.llama_model_init_from_user.argtypes = [ct.c_void_p, Fill, ct.c_void_p, api.llama_model_params]
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "keys.gguf", of)
        keys = base.gguf_init_from_file(str(path).encode(), InitParams(True, None))
    filled.clear()
    params = api.llama_model_default_params()
    params.use_extra_bufts, params.n_gpu_layers = False, 0
    model = lib.llama_model_init_from_user(keys, fill, None, params)
    if not model:
        return {"problem": "no model"}
    graph = Graph(api)
    options = api.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 64
    options.n_threads = options.n_threads_batch = 1
    if of.name not in NO_FLASH_ATTENTION:
        api.llama_free(api.llama_init_from_model(model, options))  # the graph that is built by default
    options.flash_attn_type, options.cb_eval = api.LLAMA_FLASH_ATTN_TYPE_DISABLED, graph.callback
    context = api.llama_init_from_model(model, options)
    if not context:
        return {"problem": "no context"}
    n_layer = api.llama_model_n_layer(model)
    found = decode(api, lib, context, graph, n_layer, api.llama_model_n_embd(model))
    np.savez(out / f"{of}.npz", **graph.around_mlp)
    api.llama_free(context)
    api.llama_model_free(model)
    return {"n_layer": n_layer, "refused": refused(of, out)} | found


def refused(of: Architecture, out: Path) -> list[str]:
    """Write the model's file, and return what `check` finds in it."""
    tensors = [(name, *about) for name, about in filled.items() if not is_optional(of, name)]
    path = write_model(out / f"{of}.gguf", of, tensors)
    return [finding.message for finding in check_models(path).findings]


def is_optional(of: Architecture, name: str) -> bool:
    """Return True for tensors that a file need not have: those of encoders, and some of an MLP."""
    is_gated = f"{name.rpartition('ffn_')[0]}ffn_gate.weight" in filled and of.name != "jais"
    return name.startswith("dense_") or (bool(OPTIONAL.fullmatch(name)) and (is_gated or not name.endswith("bias")))


def decode(api: Any, lib: Any, context: Any, graph: Graph, n_layer: int, n_embd: int) -> dict[str, Any]:
    """Decode with all published boundaries captured, and look each up in the graph."""
    published = [k for k in range(n_layer + 1) if lib.eagle_target_publishes_layer(context, k)]
    for k in published:
        assert lib.eagle_capture_layer(context, k, True) == 0
    batch = api.llama_batch_init(N_TOKENS, 0, 1)
    batch.n_tokens = N_TOKENS
    for i, token in enumerate(np.random.default_rng(1).integers(3, 120, N_TOKENS)):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = int(token), i, 1, 0
        batch.logits[i] = i >= N_TOKENS - N_OUTPUTS
    if published and api.llama_decode(context, batch):
        return {"problem": "decode"}
    faults = []
    for k in published:
        rows = np.ctypeslib.as_array(lib.eagle_layer_rows(context, k), (N_TOKENS, n_embd))
        node = next((node for node, values in graph.values.items() if np.array_equal(values, rows)), None)
        if node is None or not np.isfinite(rows).all():
            faults.append(f"{k}: other rows than the graph's, or no numbers")
        elif k > 0 and (names := graph.bypasses(node)):
            faults.append(f"{k}: bypassed by {', '.join(names)}")
        elif k > 0 and (around := graph.blocks_around(node)) != (k - 1, k if k < n_layer else -1):
            faults.append(f"{k}: {graph.names[node]} is between the blocks {around}")
    return {"published": published, "faults": faults}


if __name__ == "__main__":
    every = {str(of): of for of in every_architecture()}
    is_kept = sys.argv[1:2] == ["--write"]
    for name in sys.argv[3 if is_kept else 1 :] or every:
        with tempfile.TemporaryDirectory() as passing:
            found = examine(every[name], Path(sys.argv[2] if is_kept else passing))
        print(json.dumps({"name": name} | found), flush=True)
    os._exit(0)  # llama.cpp's own tear-down is no part of this
