"""One decode of a model in a child process, with all of its weights.

    python -m llama_eagle.native.trials.decode MODEL.gguf OUT.npy ID...    # writes {"problem": reason or ""}

Attention and its memory are in F32, so that logits can be compared with those of another implementation.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llama_eagle.errors import InputError
from llama_eagle.native import log
from llama_eagle.native.calls import library
from llama_eagle.native.trials.child import forbid_core_files, report, try_model

MAX_SECONDS = 3600  # a model larger than the memory is read from the disk
N_CTX = 256


def decode_logits(path: Path, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits of each token, [n_tokens, n_vocab]; an encoder without logits returns an empty array.

    Raises `InputError` with the reason if the model does not load, ends the process, or computes NaN,
    `EnvironmentFailure` if the child is killed or takes too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        if problem := try_model(__name__, [str(path), str(out), *map(str, tokens)], "at the first decode", MAX_SECONDS):
            raise InputError(problem)
        return np.load(out) if out.exists() else np.zeros((0, 0), np.float32)


def _decode(path: str, out: str, tokens: list[int]) -> str:
    """Write the logits of a decode; return why it failed, or ""."""
    library()
    from llama_eagle.native import llama_cpp as api

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
    forbid_core_files()
    report(_decode(sys.argv[1], sys.argv[2], [*map(int, sys.argv[3:])]))
