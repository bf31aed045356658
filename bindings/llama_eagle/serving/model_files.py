"""The model's files on disk. Weights are mapped from them, so a file that is overwritten in place changes the text.

A server that sleeps while it is idle reads its files again, but not the chat template, and does not check drafts again:
it needs the files that it has started with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from llama_eagle import console
from llama_eagle.gguf.header import read_model
from llama_eagle.serving.llama_server.extra_args import last_value, named_files
from llama_eagle.serving.llama_server.options import Checked

N_PLACES, N_BYTES = 64, 256  # of a file's sample
COPIED = ("none", "mlock", "dio")  # modes of loading that do not map the weights
Status = tuple[int, int, int]


class ModelFiles:
    """The state of files that must not change. are_read_again: nor be replaced by others."""

    def __init__(self, paths: Iterable[Path] = (), *, are_read_again: bool = False) -> None:
        self.are_read_again = are_read_again
        self._files = {path: (_status(path), _sample(path)) for path in paths}
        self._logged = ""

    def change(self) -> str:
        """Return the reason why these are no longer the files that were loaded; "" if they are. It is logged once.

        A copy over the same contents, or another time of change, is none.
        """
        for path, (status, sample) in self._files.items():
            found = _status(path)
            if found == status or (found[0] != status[0] and not self.are_read_again):
                continue  # a file in its place leaves the mapped one unchanged
            if found[1] != status[1] or _sample(path) != sample:
                return self._changed(path)
            self._files[path] = found, sample
        self._logged = ""
        return ""

    def _changed(self, path: Path) -> str:
        how = "replaced or overwritten" if self.are_read_again else "overwritten"
        reason = f"the model file {path} was {how} while this server ran: start the server again"
        if reason != self._logged:
            self._logged = reason
            console.warn(f"{reason} (requests get 503).")
        return reason


def model_files(served: Checked, environment: Mapping[str, str] = os.environ) -> ModelFiles:
    """Return the files on which the answers of a server depend."""
    options, extra = served.options, served.options.extra
    if sys.platform == "win32":  # mapped files cannot be overwritten there
        return ModelFiles()
    are_read_again = int(last_value(extra, "--sleep-idle-seconds", "-1")) > 0
    mode = last_value(extra, "-lm", last_value(extra, "--load-mode", environment.get("LLAMA_ARG_LOAD_MODE", "")))
    if mode in COPIED and not are_read_again:
        return ModelFiles()
    target = served.target
    paths = [each.path for each in (read_model(target.path)[1] if target.split_count > 1 else [target])]
    if are_read_again:
        others = (options.mmproj, options.load.lora and options.load.lora.path)
        paths += [Path(each) for each in others if each]
        paths += [*named_files(extra, "--lora"), *named_files(extra, "--control-vector")]
    return ModelFiles(paths, are_read_again=are_read_again)


def _status(path: Path) -> Status:
    """Return the inode, the size and the time of the last change; zeros for a file that is gone."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sample(path: Path) -> bytes:
    """Return bytes from many places of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            places = (file.seek(size // N_PLACES * i) for i in range(N_PLACES))
            return b"".join(file.read(min(N_BYTES, size // N_PLACES)) for _ in places)
    except OSError:
        return b""
