"""One decode of a model in a child process, with all of its weights.

    python -m llama_eagle.native.decode MODEL.gguf OUT.npy ID...    # writes {"problem": reason or ""}

Attention and its memory are in F32, so that logits can be compared with those of another implementation.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llama_eagle.errors import InputError
from llama_eagle.native import log
from llama_eagle.native.calls import library

MAX_SECONDS = 3600  # a model larger than the memory is read from the disk
N_CTX = 256


def decode_logits(path: Path, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits of each token, [n_tokens, n_vocab]; an encoder without logits returns an empty array.

    Raises `InputError` with the reason if the model does not load, ends the process, or computes NaN.
    """
    paths = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(path), str(out), *map(str, tokens)],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {done.returncode}"]
            reason = next((line for line in said if "GGML_ASSERT" in line), said[-1])
            raise InputError(f"llama.cpp ends the process at the first decode ({reason.rpartition(': ')[2]})")
        if problem := json.loads(lines[-1])["problem"]:
            raise InputError(problem)
        return np.load(out) if out.exists() else np.zeros((0, 0), np.float32)


def _decode(path: str, out: str, tokens: list[int]) -> str:
    """Write the logits of a decode; return why it failed, or ""."""
    library()
    import llama_cpp as api

    model_params = api.llama_model_default_params()
    model_params.n_gpu_layers, model_params.use_extra_bufts = 0, False
    log.clear()
    model = api.llama_model_load_from_file(os.fsencode(path), model_params)
    if not model:
        return f"llama.cpp cannot load it: {log.first_error() or 'no reason given'}"
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
    params.type_k = params.type_v = api.GGML_TYPE_F32
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = api.llama_init_from_model(model, params)
    if not context:
        return f"llama.cpp makes no context for it: {log.first_error() or 'no reason given'}"
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, True
    run = api.llama_encode if api.llama_model_has_encoder(model) else api.llama_decode
    if status := run(context, batch):
        return f"llama.cpp cannot decode with it ({log.first_error() or f'status {status}'})"
    logits = api.llama_get_logits(context)
    if logits:
        n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        found = np.ctypeslib.as_array(logits, (len(tokens), n_vocab))
        np.save(out, found)
        if not np.isfinite(found).all():
            return "its logits are not finite"
    return ""


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # Windows has none
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps({"problem": _decode(sys.argv[1], sys.argv[2], [*map(int, sys.argv[3:])])}), flush=True)
    os._exit(0)
