"""Models by name: found or downloaded, converted once, and kept in the user's cache until they are cleared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import EagleError, InputError, UsageError
from llama_eagle.files import cache_dir, read_json_or_yaml, typed
from llama_eagle.pairs import draft_of

MADE_OF = "made-of.json"  # beside the files of an entry


@dataclass(frozen=True)
class Ready:
    """Files to load. draft None: what the target brings decides."""

    target: Path
    draft: Path | None = None


@dataclass(frozen=True)
class Entry:
    """A model that is kept. made_of: what it was made from."""

    folder: Path
    made_of: str
    outtype: str

    @property
    def n_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def prepare(model: str, outtype: str) -> Ready:
    """The files of a GGUF, of a checkpoint's folder, or of a hub id; converted now unless that was done before.

    Raises the errors of the hub and of the converter, and `UsageError` for what is none of these.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return Ready(path, _beside(path))
    if not path.is_dir() and model.count("/") != 1:
        raise UsageError(f"{model}: no file, no folder and no hub id (OWNER/NAME). Name one of these.")
    folder = models_dir() / _key(str(path.resolve()) if path.is_dir() else model, outtype)
    target = folder / f"{path.name}-{outtype}.gguf"
    if path.is_dir() and target.is_file() and _is_newer(path, target):
        shutil.rmtree(folder)
    if not target.is_file():
        _make(model, target, outtype)
    draft = None if path.is_dir() else _known_draft(model, target)
    return Ready(target, draft)


def models_dir() -> Path:
    return cache_dir() / "models"


def entries() -> Iterator[Entry]:
    """All models that are kept; one whose description is damaged goes by the name of its folder."""
    for file in sorted(models_dir().glob(f"*/{MADE_OF}")):
        try:
            made_of = typed(file, read_json_or_yaml(file), {"source": str, "outtype": str})
        except EagleError as error:
            name = file.parent.name
            console.warn(f"{error} Or remove this model: llama-eagle run --clear {name}")
            made_of = {"source": name, "outtype": "?"}
        yield Entry(file.parent, made_of["source"], made_of["outtype"])


def clear(name: str) -> list[Entry]:
    """Delete the models that were made from `name`, or "all"; those that were there."""
    found = [entry for entry in entries() if name in ("all", entry.made_of)]
    for entry in found:
        shutil.rmtree(entry.folder)
    return found


def _key(source: str, outtype: str) -> str:
    return hashlib.sha256(f"{source} {outtype}".encode()).hexdigest()[:16]


def _is_newer(checkpoint: Path, target: Path) -> bool:
    """Whether something in the folder was written after `target` was made of it."""
    made = target.stat().st_mtime
    return any(file.stat().st_mtime > made for file in checkpoint.iterdir())


def _make(model: str, target: Path, outtype: str) -> None:
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.convert.targets import TargetOptions, convert_target
    from llama_eagle.hub import download, list_files

    target.parent.mkdir(parents=True, exist_ok=True)
    is_folder = Path(model).expanduser().is_dir()
    if not is_folder and "config.json" not in (files := list_files(model)):
        if not any(file.endswith(".gguf") for file in files):
            raise InputError(f"{model}: neither a checkpoint (config.json) nor GGUF files. Name another repository.")
        target.symlink_to(download(model, f"*[{outtype[0]}{outtype[0].upper()}]{_any_case(outtype[1:])}*.gguf"))
    else:
        checkpoint = open_checkpoint(model)
        with console.progress(f"converting to {outtype}") as on_progress:
            progress = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
            convert_target(checkpoint, target, TargetOptions(outtype=outtype, progress=progress))
    made_of = {"source": str(Path(model).expanduser().resolve()) if is_folder else model, "outtype": outtype}
    (target.parent / MADE_OF).write_text(json.dumps(made_of), "utf-8")


def _any_case(text: str) -> str:
    """A pattern of file names."""
    return "".join(f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter for letter in text)


def _known_draft(model: str, target: Path) -> Path | None:
    """The published draft of a hub id, unless the target has a head of its own."""
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model

    known = draft_of(model)
    if known is None or mtp.has_head(read_model(target)[1]):
        return None
    draft = target.parent / f"{known.replace('/', '_')}.gguf"
    if not draft.is_file():
        try:
            _make_draft(known, target, draft)
        except EagleError as error:
            console.warn(f"{known}, the draft of {model}, cannot be used: {error}")
            return None
    return draft


def _make_draft(source: str, target: Path, draft: Path) -> None:
    from llama_eagle.convert.drafts import DraftOptions, convert_draft

    with console.progress("converting the draft") as on_progress:
        meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
        convert_draft(source, target, draft, DraftOptions(outtype="q8_0"), meter)


def _beside(target: Path) -> Path | None:
    """An EAGLE-3 draft in the target's folder that fits it, where the target has no head of its own."""
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.pairing import DRAFT_ARCHITECTURE, find

    files = read_model(target)[1]
    if mtp.has_head(files):
        return None
    for path in sorted(target.parent.glob("*.gguf")):
        if path.samefile(target):
            continue
        try:
            draft = read_model(path)[1]
        except EagleError:
            continue
        is_draft = draft[0].architecture == DRAFT_ARCHITECTURE
        if is_draft and not any(finding.level == "error" for finding in find(files, draft)):
            return path
    return None


def estimate(target: Path, n_ctx: int, types: tuple[int, int]) -> dict[str, Any]:
    """n_bytes: memory for weights and context. tokens_per_second: of plain decoding on the CPU, at most: each token
    reads the weights once (a sparse model reads less)."""
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.size import kv_bytes

    first, files = read_model(target)
    weights = sum(file.file_size for file in files)
    return {
        "n_bytes": weights + kv_bytes(first, n_ctx, *types),
        "tokens_per_second": _bytes_per_second() / weights,
    }


def _bytes_per_second(n_bytes: int = 1 << 28) -> float:
    """What all cores read from memory together, the best of three."""
    import os
    import time
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    n = os.cpu_count() or 1
    parts = np.array_split(np.ones(n_bytes // 4, np.float32), n)
    times = []
    with ThreadPoolExecutor(n) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            times.append(time.perf_counter() - start)
    return n_bytes / min(times)
