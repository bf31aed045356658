"""Output files, which are checked before work begins and appear whole or not at all; files of settings; the cache."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import signal
import threading
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_eagle.errors import EnvironmentFailure, InputError, UsageError

TEMPORARY = re.compile(r"\.(?P<output>.+)\.[0-9a-f]{8}\.tmp")
YOUNG = 60.0  # seconds
ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGXCPU")  # signals that end a process, and that it can catch


def cache_dir() -> Path:
    """Return the folder for downloads, converted models and synthetic pairs: LLAMA_EAGLE_CACHE, or the user's cache."""
    base = os.environ.get("LLAMA_EAGLE_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(base or Path.home() / ".cache") / "llama-eagle"


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


def read_json_or_yaml(path: Path) -> Any:
    """What a file of settings holds. Raises `InputError` when it cannot be read or is not valid, `EnvironmentFailure`
    where YAML cannot be read."""
    try:
        text = path.read_text("utf-8")
        found = (_yaml_loader() if path.suffix in (".yaml", ".yml") else json.loads)(text)
        place = null_character(found)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from None
    except RecursionError:
        raise InputError(f"{path}: it is nested too deeply. Write it flatter.") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid: {' '.join(str(error).split())}") from None
    if place is not None:
        raise InputError(f"{path}: {place or 'it'} holds a null character. Remove it.")
    return found


def null_character(data: Any, place: str = "") -> str | None:
    """Return the place of a null character in a value of settings, as keys with points between; None: there is none.

    No path, address or key may have one: the system's functions end there.
    """
    if isinstance(data, str):
        return place if "\0" in data else None
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, Mapping):
        pairs = data.items()
    elif isinstance(data, list):
        pairs = enumerate(data)
    for key, value in pairs:
        name = f"{place}.{key}" if place else f"{key}"
        if "\0" in name:
            return place
        if (found := null_character(value, name)) is not None:
            return found
    return None


def typed(path: Path, data: Any, keys: Mapping[str, Any], *, where: str = "", others: bool = False) -> dict[str, Any]:
    """The entries of an object in a file of settings, each of the type that `keys` gives it; what is optional is a type
    with None.

    where: of the object in the file. others: further keys are left out, not refused. Raises `InputError` with file,
    key, value and what is allowed.
    """
    from pydantic import ConfigDict, ValidationError, create_model

    fields: dict[str, Any] = {name: (kind, None if _takes_none(kind) else ...) for name, kind in keys.items()}
    config = ConfigDict(extra="ignore" if others else "forbid", strict=True, protected_namespaces=())
    if not isinstance(data, dict):
        place = f"{where} is {data!r:.60}, it" if where else "it"
        raise InputError(f"{path}: {place} must be an object with the keys {', '.join(keys)}. Correct it.")
    try:
        return create_model("Settings", __config__=config, **fields).model_validate(data).model_dump(exclude_unset=True)
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"] == "extra_forbidden":
            name = ".".join(map(str, (*filter(None, [where]), *fault["loc"])))
            raise InputError(f"{path}: {name} is not known; known: {', '.join(keys)}. Leave it out.") from None
        raise InputError(invalid(path, error.errors(), where)) from None


def invalid(path: Path, faults: Sequence[Mapping[str, Any]], where: str = "") -> str:
    """The message for the first of pydantic's faults; of a value that may be of two types there is one for each."""
    first = faults[0]
    same = [fault for fault in faults if fault["input"] is first["input"] and fault["loc"][:-1] == first["loc"][:-1]]
    place = first["loc"][:-1] if len(same) > 1 else first["loc"]
    name = ".".join(map(str, (*filter(None, [where]), *place)))
    if first["type"] == "missing":
        return f"{path}: {name} is missing. Add it."
    allowed = " or ".join(str(fault["msg"]).removeprefix("Input should be ") for fault in same or [first])
    return f"{path}: {name or 'it'} is {first['input']!r:.60}, it must be {allowed}. Correct it."


def _takes_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _yaml_loader() -> Callable[[str], Any]:
    try:
        import yaml
    except ImportError:
        raise EnvironmentFailure("a YAML file needs PyYAML: pip install pyyaml, or write it as JSON.") from None

    def load(text: str) -> Any:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from None

    return load


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


def refuse_existing(outputs: Iterable[Path], overwrite: bool) -> None:
    """Raises UsageError if one of `outputs`, or the parts of a split one, is a file already, unless that is wanted."""
    for output in () if overwrite else outputs:
        parts = re.compile(rf"{re.escape(output.name.removesuffix('.gguf'))}-\d{{5}}-of-\d{{5}}\.gguf")
        beside = output.parent.iterdir() if output.parent.is_dir() else ()
        if found := [file for file in beside if (file == output or parts.fullmatch(file.name)) and file.is_file()]:
            raise UsageError(f"{found[0]} exists: name another output, or --overwrite it.")


@contextlib.contextmanager
def temporary_beside(path: Path, count: int = 1) -> Iterator[list[Path]]:
    """Names of `count` temporary files in a hidden folder next to `path`. The folder goes at the end, as on signals
    that end the process; what killed runs have left there goes first."""
    check_output(path)
    clear_temporaries(path)
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with contextlib.ExitStack() as held:
        held.enter_context(_removed_when_ended(folder))
        held.callback(_remove, folder)  # while the signals are still heard
        try:
            folder.mkdir()
        except OSError as error:
            raise explain(error, path, 0) from None
        lock = _lock(folder)
        if lock is not None:
            held.callback(os.close, lock)
        yield [folder / f"{number}-{path.name}" if number else folder / path.name for number in range(count)]


def _remove(folder: Path) -> None:
    """Also where Ctrl-C comes meanwhile."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def clear_temporaries(path: Path) -> None:
    """Removes the temporary folders next to `path` that no living process holds: its own, and those of other outputs
    after a minute, which may not be held yet."""
    for folder in path.parent.iterdir():
        found = TEMPORARY.fullmatch(folder.name)
        if found is None or not folder.is_dir() or (found["output"] != path.name and _is_new(folder)):
            continue
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_new(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime < YOUNG
    except OSError:  # its owner has removed it
        return True


def _lock(folder: Path) -> int | None:
    """Holds the folder until the number is closed or this process ends, in whatever way. None where others hold it, or
    where the system has no such locks: nothing is cleared there."""
    try:
        import fcntl

        lock = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


_temporaries: list[Path] = []  # a quantization's lies beside that of the conversion before it


@contextlib.contextmanager
def _removed_when_ended(folder: Path) -> Iterator[None]:
    """Signals that end the process still do, after all such folders are gone. A program's own handlers stay."""
    names = ENDING if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    unhandled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    _temporaries.append(folder)
    for number in unhandled:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in unhandled:
            signal.signal(number, signal.SIG_DFL)
        _temporaries.remove(folder)


def _end(number: int, _frame: Any) -> None:
    for folder in _temporaries:
        shutil.rmtree(folder, ignore_errors=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """`write` fills a temporary file that then takes the name `path`: the file appears whole, or not at all."""
    with temporary_beside(path) as (temporary,):
        write(temporary)
        temporary.chmod(temporary.parent.stat().st_mode & 0o666)  # as of any file: safetensors' are the owner's alone
        temporary.replace(path)
