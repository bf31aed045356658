"""Folder of the prompts that survive a restart: one for each model and each set of options."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle.files import cache_dir, write_error
from llama_eagle.native.build import build_info

if TYPE_CHECKING:
    from llama_eagle.serving.llama_server.options import Checked


def prompts_folder(served: Checked) -> Path:
    """Return the folder, which only this user reads. Raises `EnvironmentFailure` if it cannot be made.

    Another file, build or option may compute rows with other bits, so each combination has its own folder. llama-server
    compares what changes the rows' meaning once more.
    """
    options, load = served.options, served.options.load
    files = (served.target.path, served.drafts.draft_file, options.mmproj, load.lora and load.lora.path)
    states = [(Path(path).resolve(), Path(path).stat()) for path in files if path]
    key = (
        [(str(path), state.st_size, state.st_mtime_ns) for path, state in states],
        build_info(),
        options.context,
        load,
        options.extra,
        served.n_slot,
        served.drafts.exact,
        sorted(pair for pair in os.environ.items() if pair[0].startswith(("LLAMA_ARG_", "GGML_"))),
    )
    name = f"{served.target.path.stem[:40]}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
    folder = cache_dir() / "prompts" / name
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, folder) from None
    return folder
