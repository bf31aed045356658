"""Output files: checked before work begins, and whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from llama_eagle.errors import EnvironmentFailure, UsageError


def explain(error: OSError, path: Path, need: int) -> EnvironmentFailure:
    """Why `path`, of `need` bytes, could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFailure(f"no space left in {path.parent} for {path.name} ({need / 1e9:.2f} GB)")
    return EnvironmentFailure(f"cannot write {path}: {error.strerror or error}")


def check_output(path: Path, need: int = 0) -> None:
    """Raises EnvironmentFailure if `path` cannot be written, or if its disk has less than `need` bytes left."""
    folder = path.parent
    if not folder.is_dir():
        raise EnvironmentFailure(f"the folder {folder} does not exist: create it first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file, such as {path / 'model.gguf'}")
    if path.exists() and not path.is_file():  # a device or pipe would be replaced, not written to
        raise UsageError(f"{path} is not a regular file: name another output")
    if not os.access(folder, os.W_OK):
        raise EnvironmentFailure(f"the folder {folder} is not writable")
    free = shutil.disk_usage(folder).free
    if need > free:
        raise EnvironmentFailure(f"{path} needs {need / 1e9:.2f} GB, but only {free / 1e9:.2f} GB are free in {folder}")


def refuse_sources(output: Path, sources: Iterable[Path]) -> None:
    """Raises UsageError if `output` is one of the files that are read, by whatever name or link, or of a folder in
    `sources` one of its files (a GGUF that lies there may be an earlier output)."""
    if not output.exists():
        return
    for source in sources:
        for file in source.iterdir() if source.is_dir() else [source]:
            is_own = file == source or file.suffix.lower() != ".gguf"
            if is_own and file.is_file() and file.samefile(output):
                raise UsageError(f"{output} is {file}, which is read: name another output.")


@contextlib.contextmanager
def temporary_beside(path: Path, count: int = 1) -> Iterator[list[Path]]:
    """`count` empty temporary files in `path`'s folder, removed at the end if they still exist, as on SIGTERM and
    hang-up. What a killed run has left there for the same `path` is removed first."""
    check_output(path)
    clear_temporaries(path)
    names = [path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp") for _ in range(count)]
    with contextlib.ExitStack() as held:
        held.callback(_remove, names)
        held.enter_context(_removed_when_ended(names))
        try:
            for name in names:
                file = held.enter_context(name.open("xb"))
                if not _lock(file):
                    file.close()
        except OSError as error:
            raise explain(error, path, 0) from None
        yield names


def clear_temporaries(path: Path) -> None:
    """Removes the temporary files of `path` that no living process holds."""
    mine = re.compile(rf"\.+{re.escape(path.name)}(\.[0-9a-f]{{8}}\.tmp)+")
    for name in path.parent.iterdir():
        if mine.fullmatch(name.name) and name.is_file():
            with contextlib.suppress(OSError), name.open("rb") as file:
                if _lock(file):
                    name.unlink()


def _lock(file: Any) -> bool:
    """Holds the file until it is closed, or this process ends in whatever way; False where others hold it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # no such locks on this system: nothing is cleared
        return False
    return True


def _remove(names: list[Path]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            name.unlink()


@contextlib.contextmanager
def _removed_when_ended(names: list[Path]) -> Iterator[None]:
    """SIGTERM and hang-up end the process as ever, after the files are gone. A program's own handlers stay."""
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        signals = []
    before = {number: signal.getsignal(number) for number in signals}

    def end(number: int, _frame: Any) -> None:
        _remove(names)
        outer = before[number]
        if callable(outer):  # a temporary file around this one
            outer(number, None)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ours = [number for number in signals if before[number] is signal.SIG_DFL or _is_ours(before[number])]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _is_ours(handler: Any) -> bool:
    return getattr(handler, "__module__", None) == __name__


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a temporary file that then takes the name `path`: the file appears whole, or not at all."""
    with temporary_beside(path) as (temporary,):
        write(temporary)
        temporary.replace(path)
