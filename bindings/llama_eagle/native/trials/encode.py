"""One picture through an encoder in a child process, next to its text model without weights.

python -m llama_eagle.native.trials.encode MMPROJ.gguf MODEL.gguf    # writes {"problem": reason or ""}
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from llama_eagle.errors import InputError
from llama_eagle.native import log
from llama_eagle.native.calls import library
from llama_eagle.native.trials.child import forbid_core_files, report, try_model
from llama_eagle.native.trials.trial import load_without_weights

MAX_SECONDS = 3600  # some encoders enlarge every picture
SIDE = 112  # pixels


def require_encoder(encoder: Path, text: Path) -> None:
    """Raise `InputError` with the reason if the encoder does not load, ends the process, or computes NaN.

    Raises `EnvironmentFailure` if the child is killed or takes too long.
    """
    if problem := try_model(__name__, [str(encoder), str(text)], "at the first picture", MAX_SECONDS):
        raise InputError(problem)


def _encode(encoder: str, text: str) -> str:
    """Load both files and compute a grey picture; return why it failed, or ""."""
    library()
    import llama_cpp as api
    import llama_cpp.mtmd_cpp as mtmd

    model = load_without_weights(text)
    if not model:
        return f"llama.cpp cannot load its text model: {log.first_error() or 'no reason given'}"
    mtmd.mtmd_helper_log_set(log.callback(), ctypes.c_void_p(0))
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = params.print_timings = params.warmup = False
    context = mtmd.mtmd_init_from_file(os.fsencode(encoder), model, params)
    if not context:
        return f"libmtmd cannot load it: {log.first_error() or 'no reason given'}"
    return _compute(mtmd, context, api.llama_model_n_embd_inp(model)) if mtmd.mtmd_support_vision(context) else ""


def _compute(mtmd: Any, context: Any, width: int) -> str:
    """Compute the rows of a grey picture; return why it failed, or ""."""
    pixels = (ctypes.c_uint8 * (SIDE * SIDE * 3))(*[127] * (SIDE * SIDE * 3))
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(mtmd.mtmd_bitmap_init(SIDE, SIDE, pixels))
    marker = mtmd.mtmd_default_marker()
    prompt = mtmd.mtmd_input_text(marker, len(marker), False, True)
    chunks = mtmd.mtmd_input_chunks_init()
    if status := mtmd.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1):
        return f"libmtmd cannot prepare a picture ({log.first_error() or f'status {status}'})"
    for i in range(mtmd.mtmd_input_chunks_size(chunks)):
        chunk = mtmd.mtmd_input_chunks_get(chunks, i)
        if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            continue
        if status := mtmd.mtmd_encode_chunk(context, chunk):
            return f"libmtmd cannot compute a picture ({log.first_error() or f'status {status}'})"
        shape = (mtmd.mtmd_input_chunk_get_n_tokens(chunk), width)
        if not np.isfinite(np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(context), shape)).all():
            return "its rows of a picture are not finite"
        break
    return ""


if __name__ == "__main__":
    forbid_core_files()
    report(_encode(*sys.argv[1:]))
