"""The one place that turns a MODEL argument into a GGUF file: a file, a folder, a hub id, or a name in the cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from llama_eagle import console
from llama_eagle.errors import EagleError, InputError, UsageError
from llama_eagle.files import expand_home, home
from llama_eagle.gguf import names
from llama_eagle.hub import cached_sizes, download_files, file_sizes, revision_of
from llama_eagle.store.kept import CONVERT_TO, Entry, kept_target
from llama_eagle.store.make import converted, fetch_draft, is_newer

if TYPE_CHECKING:
    from llama_eagle.gguf.header import Header

_ID = re.compile(r"(\w[\w.-]*/\w[\w.-]*)((?:/\w[\w.-]*)*)(?::([\w./-]+))?")
_TYPED = re.compile(r"(.+):([\w.-]+)")
_FILE = re.compile(r"(?i)\.(gguf|ggml|safetensors|bin|pth?|onnx|json|jsonl|ya?ml|txt|md|zip|gz|tar)$")
_LM_STUDIO = (".lmstudio/models", ".cache/lm-studio/models")


class NotFetched(InputError):
    """A model has to be downloaded or converted first, and the caller has not allowed that."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"{model}: {reason}: llama-eagle pull {model}")


def prepare(
    model: str | os.PathLike[str],
    outtype: str | None = None,
    *,
    with_draft: bool = True,
    fetch: bool = True,
    of_file: bool = False,
    update: bool = False,
) -> Path:
    """Return the GGUF file of a model: a file, a folder, a hub id, or a name that `llama-eagle list` shows.

    Examples of ids: OWNER/NAME, OWNER/NAME/full, OWNER/NAME-GGUF:Q4_K_M. FOLDER:TYPE works too. A checkpoint is
    converted to `outtype` unless the cache has it (default: the type that the cache has, else CONVERT_TO); among
    several GGUF files, `outtype` selects one. with_draft: for a target without a drafter, also fetch one: from its
    repository, or a published one; for a file only with `of_file`. fetch: download and convert what is missing; without
    it, nothing is requested from the network. update: convert again if the repository has changed. A path without a
    file is returned as it is: its reader reports it. Raises `NotFetched` for what has to be fetched first, and the
    errors of the hub and of the converter.
    """
    text = os.fspath(model)
    if not text:
        raise UsageError("the model's name is empty. Give a file, a folder or a hub id (OWNER/NAME).")
    path, wanted = _existing(text, outtype)
    is_file = path is not None and not _is_folder(path)
    if path is not None:
        target = path if is_file else _in_folder(path, wanted, fetch)
    elif named := _hub_id(text):
        target = _by_name(named[1], named[2].strip("/"), named[3] or outtype, with_draft, fetch, update)
    elif kept := _kept_by_name(text, outtype):
        target = kept
    elif re.fullmatch(r"[\w-]+", text):
        raise UsageError(f"{text}: neither a file, a folder nor a hub id (OWNER/NAME). Give one of these.")
    else:
        return expand_home(text)
    if with_draft and fetch and (of_file or not is_file):
        fetch_draft(text, target)
    return target


def is_name(model: str | os.PathLike[str]) -> bool:
    """Return True if `prepare` has to find the model's file: for a folder, a hub id, or a name in the cache.

    A `Path` without a folder is none.
    """
    text = os.fspath(model)
    path, _ = _existing(text, None) if text else (None, None)
    if not text or path is not None or not isinstance(model, str):
        return path is not None and _is_folder(path)
    return _hub_id(text) is not None or _kept_by_name(text, None) is not None


def is_checkpoint(model: str) -> bool:
    """Return True for a checkpoint's folder or hub id, without a type; reads the repository's list of files."""
    path, wanted = _existing(model, None)
    if path is not None:
        return wanted is None and _is_checkpoint_folder(path)
    named = _hub_id(model)
    return named is not None and named[3] is None and _has_checkpoint(file_sizes(named[1]), named[2].strip("/"))


def _existing(text: str, outtype: str | None) -> tuple[Path | None, str | None]:
    """Return the file or folder named by PATH or FOLDER:TYPE, and its type; None if there is none."""
    path = expand_home(text)
    try:
        if path.exists():
            return path, outtype
        if (typed := _TYPED.fullmatch(text)) and (folder := expand_home(typed[1])).is_dir():
            return folder, typed[2]
    except OSError:  # too long a name, no permission: opening it reports the reason
        return (None if _hub_id(text) else path), outtype
    return None, outtype


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # opening it reports the reason
        return False


def _hub_id(text: str) -> re.Match[str] | None:
    """Return the parts of OWNER/NAME[/SUBFOLDER][:TYPE]; None for a path, such as one that ends in .gguf."""
    named = _ID.fullmatch(text)
    return None if named is None or _FILE.search(named[1] + named[2]) else named


def _kept_by_name(text: str, outtype: str | None) -> Path | None:
    """Return the conversion of a folder that is gone, which the cache still has."""
    typed = _TYPED.fullmatch(text)
    tries = [(text, outtype), *([(typed[1], typed[2])] if typed else [])]
    found = (kept_target(str(expand_home(source).absolute()), wanted) for source, wanted in tries)
    return next((entry.file for entry in found if entry is not None), None)


# --- folders -----------------------------------------------------------------------------------------------------


def _in_folder(folder: Path, outtype: str | None, fetch: bool) -> Path:
    """Return the GGUF of a checkpoint, of a repository in the hub's cache, or of a folder of GGUFs (LM Studio's)."""
    if _is_checkpoint_folder(folder):
        return _of_checkpoint(folder, outtype, fetch)
    main = folder / "refs/main"
    if main.is_file() and (snapshot := folder / "snapshots" / main.read_text("utf-8").strip()).is_dir():
        return _in_folder(snapshot, outtype, fetch)
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*.gguf") if path.is_file()
    }
    files = names.first_files(sizes)
    found = [name for name in files if is_model(folder / name.path)] or files[:1] * (len(files) == 1)
    if not found:
        raise InputError(f"{folder}: neither a checkpoint (config.json) nor a GGUF model. Name another folder.")
    models = found if outtype is None or len(found) == 1 else [name for name in found if name.is_type(outtype)]
    listed = ", ".join(name.path for name in (models or found)[:8])
    if not models:
        raise UsageError(f"{folder}: no model of type {outtype} ({listed}).")
    if len(models) > 1:
        raise UsageError(f"{folder}: {len(models)} models ({listed}). Choose one: {folder / models[0].path}")
    names.parts(models[0], sizes)
    return folder / models[0].path


def _of_checkpoint(folder: Path, outtype: str | None, fetch: bool) -> Path:
    kept = kept_target(str(folder.resolve()), outtype)
    if fetch:
        return converted(str(folder), outtype or (kept.outtype if kept else CONVERT_TO))
    if kept is None or kept.file is None:
        name = f"{folder}:{outtype}" if outtype else str(folder)
        raise NotFetched(name, "a checkpoint that has not been converted yet. Convert it first")
    if is_newer(folder, kept.file):
        console.warn(f"{folder} has changed since it was converted. To convert it again: llama-eagle pull {folder}")
    return kept.file


def _is_checkpoint_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file() and not any(map(is_model, folder.glob("*.gguf")))


def is_model(path: Path) -> bool:
    """Return True for a complete model, not a draft, an importance matrix, an adapter or a file of another program."""
    from llama_eagle.gguf.header import read_header

    try:
        return is_target(read_header(path))
    except EagleError:
        return False


def is_target(header: Header) -> bool:
    """Return True for the header of a model that generates text by itself."""
    from llama_eagle.gguf.pairing import require_target

    try:
        require_target(header)
    except EagleError:
        return False
    return True


# --- hub ids -----------------------------------------------------------------------------------------------------


def _by_name(repo: str, subfolder: str, wanted: str | None, with_draft: bool, fetch: bool, update: bool) -> Path:
    """Return the GGUF of a repository: from LM Studio's folder, from our own cache, or from the hub."""
    for base in _LM_STUDIO:
        folder = home() / base / repo / subfolder
        if folder.is_dir() and any(folder.rglob("*.gguf")):
            return _in_folder(folder, wanted, fetch)
    source = f"{repo}/{subfolder}".rstrip("/")
    if (kept := kept_target(source, wanted)) is not None and kept.file is not None:
        if not fetch or not _has_changed(repo, kept):
            return kept.file
        if update:
            return converted(source, kept.outtype, not_revision=kept.revision)
        console.warn(f"{repo} has changed since it was converted. To convert it again: llama-eagle pull {kept.name}")
        return kept.file
    if not fetch:
        return _downloaded(repo, source, subfolder, wanted)
    sizes = file_sizes(repo)
    if _has_checkpoint(sizes, subfolder):
        return converted(source, wanted or CONVERT_TO)
    sizes = _below(sizes, subfolder)
    if not any(name.endswith(".gguf") for name in sizes):
        raise InputError(f"{source}: neither a checkpoint (config.json) nor GGUF files. Name another repository.")
    return _of_repository(repo, source, sizes, wanted, with_draft)


def _below(sizes: dict[str, int], subfolder: str) -> dict[str, int]:
    prefix = f"{subfolder}/" if subfolder else ""
    return {name: n_bytes for name, n_bytes in sizes.items() if name.startswith(prefix)}


def _has_checkpoint(sizes: dict[str, int], subfolder: str) -> bool:
    prefix = f"{subfolder}/" if subfolder else ""
    found = _below(sizes, subfolder)
    return f"{prefix}config.json" in found and any(name.endswith((".safetensors", ".bin")) for name in found)


def _downloaded(repo: str, source: str, subfolder: str, wanted: str | None) -> Path:
    """Return a GGUF that the hub's cache has. Raises `NotFetched`."""
    from llama_eagle.gguf.size import available_bytes

    folder, sizes = cached_sizes(repo)
    models = {name: n for name, n in _below(sizes, subfolder).items() if name.endswith(".gguf")}
    found = [name for name in names.first_files(models) if wanted is None or name.fits(wanted)]
    if not found:
        name = f"{source}:{wanted}" if wanted else source
        raise NotFetched(name, "no such file or folder, and no model in the cache. If it is on the hub")
    model = names.choose(source, models, wanted, available_bytes())
    names.parts(model, models)
    return folder / model.path


def _of_repository(repo: str, source: str, sizes: dict[str, int], wanted: str | None, with_draft: bool) -> Path:
    """Download a GGUF into the hub's cache; with_draft: also a sidecar draft if the model has no MTP head."""
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.size import available_bytes

    model = names.choose(source, sizes, wanted, available_bytes())
    target = download_files(repo, names.parts(model, sizes))
    if with_draft and not mtp.has_head(read_model(target)[1]):
        for role in names.DRAFTS:
            if (sidecar := names.closest(names.first_files(sizes, role), model)) is not None:
                download_files(repo, [sidecar.path])
                break
    return target


def _has_changed(repo: str, kept: Entry) -> bool:
    """Return True if the hub has a newer revision of a repository than the one that was converted."""
    newest = revision_of(repo) if kept.revision else None
    return newest not in (None, kept.revision)
