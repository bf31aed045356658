"""Converted models in the user's cache: a folder for each, with a description and a lock."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle import console
from llama_eagle.errors import EagleError, EnvironmentFailure, UsageError
from llama_eagle.files import cache_dir, read_json_or_yaml, typed, write_error
from llama_eagle.pairs import PAIRS, kept_draft, model_folder, models_dir

if TYPE_CHECKING:
    from filelock import FileLock

MADE_OF = "made-of.json"  # description of an entry; written before the conversion
CONVERT_TO = "q4_k_m"
Describe = Callable[[str | None], None]
_KEYS = {"source": str, "outtype": str, "revision": str | None}


@dataclass(frozen=True)
class Entry:
    """A converted model. made_of: the hub id or folder of its checkpoint. problem: fault of its description, or ""."""

    folder: Path
    made_of: str
    outtype: str
    revision: str | None = None
    problem: str = ""

    @functools.cached_property
    def n_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    @property
    def file(self) -> Path | None:
        """The GGUF file; None for an unfinished entry."""
        return next((file for file in sorted(self.folder.glob("*.gguf")) if file.is_file()), None)

    @property
    def changed(self) -> float:
        """Time of the last change, in seconds since 1970."""
        return (self.file or self.folder).stat().st_mtime

    @property
    def is_complete(self) -> bool:
        return self.file is not None

    @property
    def name(self) -> str:
        """The name that commands take."""
        return self.made_of if self.outtype == "?" else f"{self.made_of}:{self.outtype}"

    @property
    def drafts_for(self) -> str | None:
        """The target of a published draft; None for a target."""
        return next((pair.target for pair in PAIRS if kept_draft(pair).parent == self.folder), None)

    def answers_to(self, name: str) -> bool:
        return name in ("all", self.made_of, self.name, self.folder.name)


def entries() -> Iterator[Entry]:
    """Yield all models in the cache, including unfinished ones.

    An entry without a valid description has the name of its folder.
    """
    for folder in sorted(path for path in models_dir().glob("*") if path.is_dir()):
        yield read_entry(folder)


def read_entry(folder: Path) -> Entry:
    """Return the entry of a folder, as far as its description can be read."""
    file = folder / MADE_OF
    try:
        made_of = typed(file, read_json_or_yaml(file), _KEYS) if file.exists() else {}
    except EagleError as error:
        return Entry(folder, folder.name, "?", problem=str(error))
    return Entry(folder, made_of.get("source", folder.name), made_of.get("outtype", "?"), made_of.get("revision"))


def target_file(source: str, outtype: str) -> Path:
    """Return the path of the model that is converted from `source`, whether it exists or not."""
    return model_folder(source, outtype) / f"{Path(source).name}-{outtype}.gguf"


def kept_target(source: str, wanted: str | None) -> Entry | None:
    """Return the model converted from `source`: of the type `wanted`, else of CONVERT_TO, else the only one.

    None if there is none. Raises `UsageError` if there are several of other types.
    """
    if (file := target_file(source, (wanted or CONVERT_TO).lower())).is_file():
        return read_entry(file.parent)
    found = [entry for entry in entries() if entry.made_of == source and entry.is_complete and not entry.drafts_for]
    if wanted is not None or not found:
        return None
    if len(found) > 1:
        listed = ", ".join(entry.name for entry in found)
        raise UsageError(f"{source}: converted to {len(found)} types ({listed}). Choose one: {found[0].name}")
    return found[0]


def clear(name: str) -> list[Entry]:
    """Delete the models made from `name`, or "all", and return them.

    Raises `EnvironmentFailure` if another command is converting one of them.
    """
    found = [entry for entry in entries() if entry.answers_to(name)]
    for entry in found:
        _ = entry.n_bytes  # cached for the report
        delete(entry)
    return found


def delete(entry: Entry) -> None:
    """Delete an entry. Raises `EnvironmentFailure` if that fails, or if another command is converting it."""
    from filelock import Timeout

    try:
        with entry_lock(entry.folder).acquire(timeout=0):
            shutil.rmtree(entry.folder)
    except Timeout:
        raise EnvironmentFailure(
            f"another command is converting {entry.made_of}. Wait for its end, or stop it."
        ) from None
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot delete {error.filename or entry.folder} ({error.strerror or error}). Check its permissions."
        ) from None


def entry_lock(folder: Path) -> FileLock:
    """Return the lock of a cache entry, which the command that makes or deletes the entry holds."""
    from filelock import FileLock

    path = cache_dir() / "locks" / f"{folder.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(error, path) from None
    return FileLock(path)


def _not_writable(error: OSError, path: Path) -> EnvironmentFailure:
    return EnvironmentFailure(f"{write_error(error, path)}. Set LLAMA_EAGLE_CACHE to a writable folder.")


@contextlib.contextmanager
def locked(folder: Path, source: str) -> Iterator[None]:
    """Hold the lock of an entry, after waiting for another command that makes or deletes it."""
    from filelock import Timeout

    lock = entry_lock(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.log(f"waiting for another command that is converting {source}")
        lock.acquire()
    except OSError as error:
        raise _not_writable(error, Path(lock.lock_file)) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def new_entry(folder: Path, source: str, outtype: str) -> Iterator[Describe]:
    """Create a cache entry with its description first, so that a killed conversion can be listed and removed.

    Yields the function that writes the description, which takes the revision. Removes the folder on an error. A
    complete entry is kept until the block ends, and on an error.
    """
    is_new = not read_entry(folder).is_complete
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)
    revisions: list[str | None] = []

    def describe(revision: str | None = None) -> None:
        revisions.append(revision)
        if is_new:
            _write_description(folder, source, outtype, revision)

    try:
        yield describe
        if not is_new and revisions:
            _write_description(folder, source, outtype, revisions[-1])
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_description(folder: Path, source: str, outtype: str, revision: str | None) -> None:
    made_of = {"source": source, "outtype": outtype, **({"revision": revision} if revision else {})}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MADE_OF).write_text(json.dumps(made_of), "utf-8")
    except OSError as error:
        raise _not_writable(error, folder / MADE_OF) from None
