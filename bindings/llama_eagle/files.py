"""Output files that appear complete or not at all; files of settings; the cache."""

from __future__ import annotations

import contextlib
import errno
import hashlib
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
UNUSABLE, UNUSABLE_TEXT = re.compile("[\0\ud800-\udfff]"), "a null character or a lone surrogate"
BYTE_ORDER_MARK = "\ufeff"  # at the beginning of texts that Windows programs write
MIN_AGE_S = 60.0  # of another output's temporary folder before it may be removed
ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGXCPU")  # signals that end a process and can be caught


def cache_dir() -> Path:
    """Return the folder for downloads, converted models and synthetic pairs: LLAMA_EAGLE_CACHE, or the user's cache."""
    base = os.environ.get("LLAMA_EAGLE_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(base or home() / ".cache") / "llama-eagle"


def kept_json(folder: str, files: Sequence[Path], *key: str) -> Path:
    """Return the file in the cache for a fact about `files`, by their paths, sizes and times, and by `key`.

    Raises `OSError` for a file that does not exist.
    """
    states = [(path.resolve(), path.stat()) for path in files]
    names = [*key, *(f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in states)]
    return cache_dir() / folder / f"{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]}.json"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of the cache, with its folder. Raises `EnvironmentFailure` or `OSError` if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda part: part.write_text(json.dumps(content), "utf-8"))


def home() -> Path:
    """Return the user's folder. Raises `EnvironmentFailure` for a process whose user has none."""
    try:
        return Path.home()
    except RuntimeError:
        raise EnvironmentFailure("this user has no home folder. Set HOME or LLAMA_EAGLE_CACHE.") from None


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.2f} MB"


def write_error(error: OSError, path: Path, need: int = 0) -> EnvironmentFailure:
    """Return the error for a failure to write `path`, which needs `need` bytes (0: unknown)."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        size = f" ({_size(need)})" if need else ""
        return EnvironmentFailure(f"no space left in {path.parent} for {path.name}{size}")
    return EnvironmentFailure(f"cannot write {path}: {error.strerror or error}")


def check_output(path: Path, need: int = 0) -> None:
    """Check that `path` can be written and that its disk has `need` bytes left.

    Raises `EnvironmentFailure`, `UsageError`.
    """
    folder = path.parent
    if not folder.is_dir():
        raise EnvironmentFailure(f"the folder {folder} does not exist: create it first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file, such as {path / 'model.gguf'}")
    if path.exists() and not path.is_file():  # a device or pipe would be replaced, not written to
        raise UsageError(f"{path} is not a regular file: name another output")
    if not os.access(folder, os.W_OK):
        raise EnvironmentFailure(f"the folder {folder} is not writable")
    require_room(folder, need, str(path))


def require_room(folder: Path, need: int, what: str, variable: str = "") -> None:
    """Raise `EnvironmentFailure` if the disk of `folder`, which need not exist, has no room for `need` bytes.

    variable: the environment variable that names another folder.
    """
    folder = _nearest(folder)
    free = shutil.disk_usage(folder).free
    if need > free:
        remedy = f". Free some space, or set {variable} to a folder on another disk." if variable else ""
        raise EnvironmentFailure(f"{what} needs {_size(need)}, but only {_size(free)} are free in {folder}{remedy}")


def is_same_disk(first: Path, second: Path) -> bool:
    """Return True if two folders, which need not exist, are on one disk."""
    disks = {_nearest(folder).stat().st_dev for folder in (first, second)}
    return len(disks) == 1


def _nearest(folder: Path) -> Path:
    """Return the folder or the nearest one above it that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def refuse_special(path: Path) -> None:
    """Raise `InputError` for a pipe, socket or device: opening one would wait for a writer."""
    with contextlib.suppress(OSError):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: not a regular file. Correct the path.")


def read_text(path: Path, remedy: str = "Give a text file.") -> str:
    """Return the text of a user's file. Raises `InputError` if it cannot be read or is not UTF-8."""
    try:
        return decoded(path.read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). {remedy}") from None


def decoded(data: bytes, where: object) -> str:
    """Return a user's text without a byte order mark.

    Raises `InputError` if it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start}). Convert it to UTF-8.") from None


def read_json_or_yaml(path: Path) -> Any:
    """Return the content of a file of settings.

    Raises `InputError` if it cannot be read or is not valid, `EnvironmentFailure` if PyYAML is missing.
    """
    text = read_text(path, "Correct the path.")
    try:
        found = (_yaml_loader() if path.suffix in (".yaml", ".yml") else json.loads)(text)
        place = unusable_text(found)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply. Use fewer levels.") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid: {' '.join(str(error).split())}") from None
    if place is not None:
        raise InputError(f"{path}: {place or 'it'} contains {UNUSABLE_TEXT}. Remove it.")
    return found


def unusable_text(data: Any, place: str = "") -> str | None:
    """Return the place of `UNUSABLE_TEXT` in a value of settings, as keys joined by dots; None if there is none.

    Paths, addresses and keys must not contain it: functions of the operating system end the string at a null character,
    and a lone surrogate cannot be encoded.
    """
    if isinstance(data, str):
        return place if UNUSABLE.search(data) else None
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, Mapping):
        pairs = data.items()
    elif isinstance(data, list):
        pairs = enumerate(data)
    for key, value in pairs:
        name = f"{place}.{key}" if place else f"{key}"
        if UNUSABLE.search(name):
            return place
        if (found := unusable_text(value, name)) is not None:
            return found
    return None


def typed(path: Path, data: Any, keys: Mapping[str, Any], *, where: str = "", others: bool = False) -> dict[str, Any]:
    """Return the entries of an object in a file of settings, checked against the types in `keys`.

    A type that includes None is optional. where: place of the object in the file. others: ignore unknown keys instead
    of refusing them. Raises `InputError` with the file, the key, the value and the allowed type.
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
            raise InputError(f"{path}: unknown key {name}; known keys: {', '.join(keys)}. Remove it.") from None
        raise InputError(invalid(path, error.errors(), where)) from None


def invalid(path: Path, faults: Sequence[Mapping[str, Any]], where: str = "") -> str:
    """Return the message for the first of pydantic's errors; a value with two allowed types has one error for each."""
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


def expand_home(name: str | Path) -> Path:
    """Return the path `name` with ~ and ~USER expanded. Raises `UsageError` if their folder is unknown."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UsageError(f"{name}: the home folder is unknown. Give the path without ~.") from None


def refuse_sources(output: Path, sources: Iterable[Path]) -> None:
    """Raise `UsageError` if `output` is one of the files that are read, under any name or link.

    For a folder in `sources` this means each of its files, except GGUFs, which may be earlier outputs.
    """
    if not output.exists():
        return
    for source in sources:
        for file in source.iterdir() if source.is_dir() else [source]:
            is_own = file == source or file.suffix.lower() != ".gguf"
            if is_own and file.is_file() and file.samefile(output):
                raise UsageError(f"{output} is the input file {file}: name another output.")


def refuse_existing(outputs: Iterable[Path], overwrite: bool) -> None:
    """Raise `UsageError` if one of `outputs`, or a part of a split one, exists, unless `overwrite` is set."""
    for output in () if overwrite else outputs:
        parts = re.compile(rf"{re.escape(output.name.removesuffix('.gguf'))}-\d{{5}}-of-\d{{5}}\.gguf")
        siblings = output.parent.iterdir() if output.parent.is_dir() else ()
        if found := [file for file in siblings if (file == output or parts.fullmatch(file.name)) and file.is_file()]:
            raise UsageError(f"{found[0]} exists: name another output, or replace it with --overwrite.")


@contextlib.contextmanager
def temporary_next_to(path: Path, count: int = 1) -> Iterator[list[Path]]:
    """Yield the names of `count` temporary files in a hidden folder next to `path`.

    The folder is removed at the end, also on signals that end the process. Folders left by killed processes are removed
    first.
    """
    check_output(path)
    clear_temporaries(path)
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with contextlib.ExitStack() as held:
        held.enter_context(_removed_when_ended(folder))
        held.callback(_remove, folder)  # while the signals are still caught
        try:
            folder.mkdir()
        except OSError as error:
            raise write_error(error, path) from None
        lock = _lock(folder)
        if lock is not None:
            held.callback(os.close, lock)
        yield [folder / f"{number}-{path.name}" if number else folder / path.name for number in range(count)]


def _remove(folder: Path) -> None:
    """Remove a folder completely, even if Ctrl-C interrupts the removal."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def clear_temporaries(path: Path) -> None:
    """Remove the temporary folders next to `path` that no living process holds.

    Those of other outputs are removed only after a minute, because their process may not hold them yet.
    """
    for folder in path.parent.iterdir():
        found = TEMPORARY.fullmatch(folder.name)
        if found is None or not folder.is_dir() or (found["output"] != path.name and _is_new(folder)):
            continue
        if (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_new(folder: Path) -> bool:
    try:
        return time.time() - folder.stat().st_mtime < MIN_AGE_S
    except OSError:  # its owner has removed it
        return True


def _lock(folder: Path) -> int | None:
    """Lock the folder until the returned file descriptor is closed or this process ends.

    Returns None if another process holds it, or if the system has no such locks: then nothing is cleared.
    """
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


_temporaries: list[Path] = []  # several if a conversion is followed by a quantization


@contextlib.contextmanager
def _removed_when_ended(folder: Path) -> Iterator[None]:
    """Remove `folder` before a signal ends the process. Handlers installed by the program are kept."""
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
    """Call `write` with a temporary file, then rename it to `path`: the file appears complete or not at all."""
    with temporary_next_to(path) as (temporary,):
        write(temporary)
        temporary.chmod(temporary.parent.stat().st_mode & 0o666)  # safetensors writes files for the owner only
        temporary.replace(path)
