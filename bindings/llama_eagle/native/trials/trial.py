"""Trial of a model in a child process: llama.cpp loads it without weights and builds its graphs.

    python -m llama_eagle.native.trials.trial MODEL.gguf    # writes {"problem": reason or ""}

llama.cpp asserts while it builds a graph from sizes that do not suit each other, which ends the process. The result is
kept in the cache by the files' sizes and times, and by the build.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import kept_json, write_json
from llama_eagle.native import log
from llama_eagle.native.build import build_info, find_library_folder
from llama_eagle.native.calls import library
from llama_eagle.native.trials.child import forbid_core_files, report, try_model

MAX_SECONDS = 60
N_CTX, N_UBATCH = 64, 32  # tokens: of the smallest graphs


def graph_problem(files: Sequence[Path]) -> str:
    """Return why llama.cpp cannot load a model or build its graphs, with a remedy; "" if it can, or without a library.

    files: all parts of the model in order.
    """
    if find_library_folder() is None:
        return ""
    kept = kept_json("trials", files, build_info().patch_hash)
    with contextlib.suppress(EnvironmentFailure, OSError, ValueError, KeyError):
        return str(json.loads(kept.read_bytes())["problem"])
    problem = _tried(files[0])
    if problem is None:
        return ""
    if problem and _tried(files[0], "off") == "":
        problem += " with flash attention. Run it with --flash-attn off"
    elif problem:
        problem += ". Convert or download it again"
    with contextlib.suppress(EnvironmentFailure, OSError):  # a cache that cannot be written costs another trial
        write_json(kept, {"problem": problem})
    return problem


def _tried(path: Path, *options: str) -> str | None:
    """Return the result of the child; None if it took too long or was killed. options: "off": no flash attention."""
    with contextlib.suppress(EnvironmentFailure):
        return try_model(__name__, [str(path), *options], "while it builds the model's graph", MAX_SECONDS)
    return None


def load_without_weights(path: str) -> Any:
    """Return a llama_model pointer, null if llama.cpp cannot load the file."""
    from llama_eagle.native import llama_cpp

    params = llama_cpp.llama_model_default_params()
    params.no_alloc, params.load_mode, params.n_gpu_layers = True, llama_cpp.LLAMA_LOAD_MODE_NONE, 0
    log.clear()
    return llama_cpp.llama_model_load_from_file(os.fsencode(path), params)


def _problem(path: str, *options: str) -> str:
    """Load the model without weights, and make a context, which reserves the graphs of a prompt and of a token."""
    library()
    from llama_eagle.native import llama_cpp

    model = load_without_weights(path)
    if not model:
        return f"llama.cpp could not load it: {log.first_error() or 'no reason given'}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = N_CTX, N_UBATCH, N_UBATCH
    params.n_threads = params.n_threads_batch = 1
    if options:
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, params)
    return "" if context else f"llama.cpp makes no context for it: {log.first_error() or 'no reason given'}"


if __name__ == "__main__":
    forbid_core_files()
    report(_problem(*sys.argv[1:]))
