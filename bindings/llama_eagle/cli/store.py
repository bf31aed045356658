"""Models by name: found or downloaded, converted once, and kept in the user's cache until cleared."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle import console
from llama_eagle.errors import EagleError, EnvironmentFailure, InputError, UsageError
from llama_eagle.files import cache_dir, expand_home, home, read_json_or_yaml, typed, write_error
from llama_eagle.gguf import names
from llama_eagle.hub import download_files, file_sizes, revision_of
from llama_eagle.pairs import DRAFT_TYPE, KnownPair, find_pairs, kept_draft, model_folder, models_dir
from llama_eagle.progress import progress

if TYPE_CHECKING:
    from filelock import FileLock

MADE_OF = "made-of.json"  # description of an entry; written before the conversion
CONVERT_TO = "q4_k_m"
_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)((?:/[\w.-]+)*)(?::([\w.-]+))?")
_LM_STUDIO = (".lmstudio/models", ".cache/lm-studio/models")
_FILES_KEY = {"source": str, "outtype": str, "revision": str | None}


@dataclass(frozen=True)
class Entry:
    """A converted model in the cache. made_of: the hub id or folder of its checkpoint."""

    folder: Path
    made_of: str
    outtype: str
    revision: str | None = None

    @functools.cached_property
    def n_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    @property
    def is_complete(self) -> bool:
        return any(file.is_file() for file in self.folder.glob("*.gguf"))


def prepare(model: str, outtype: str | None = None, *, with_draft: bool = True) -> Path:
    """Return the GGUF file of a model: a file, a folder, or a hub id with an optional subfolder and type.

    Examples of ids: OWNER/NAME/full, OWNER/NAME-GGUF:Q4_K_M. A checkpoint is converted to `outtype` (default:
    CONVERT_TO) unless the cache has it; among several GGUF files, `outtype` selects one. with_draft: for a target
    without a drafter, also fetch one: from its repository, or a published one. Raises the errors of the hub and of the
    converter, and `UsageError` for any other `model`.
    """
    path = expand_home(model)
    if path.is_file():
        target = path
    elif path.is_dir():
        target = _in_folder(path, outtype)
    elif named := _REPOSITORY.fullmatch(model):
        target = _by_name(named[1], named[2].strip("/"), named[3] or outtype, with_draft)
    else:
        raise UsageError(f"{model}: neither a file, a folder nor a hub id (OWNER/NAME). Give one of these.")
    if with_draft:
        _fetch_draft(model, target)
    return target


def entries() -> Iterator[Entry]:
    """Yield all models in the cache, including unfinished ones.

    An entry without a valid description has the name of its folder.
    """
    for folder in sorted(path for path in models_dir().glob("*") if path.is_dir()):
        file = folder / MADE_OF
        made_of = {"source": folder.name, "outtype": "?"}
        try:
            made_of = typed(file, read_json_or_yaml(file), _FILES_KEY) if file.exists() else made_of
        except EagleError as error:
            console.warn(f"{error} Or remove this model: llama-eagle run --clear {folder.name}")
        yield Entry(folder, made_of["source"], made_of["outtype"], made_of.get("revision"))


def clear(name: str) -> list[Entry]:
    """Delete the models made from `name`, or "all", and return them.

    Raises `EnvironmentFailure` if another command is converting one of them.
    """
    from filelock import Timeout

    found = [entry for entry in entries() if name in ("all", entry.made_of, entry.folder.name)]
    for entry in found:
        _ = entry.n_bytes  # cached for the report
        try:
            with entry_lock(entry.folder).acquire(timeout=0):
                shutil.rmtree(entry.folder)
        except Timeout:
            raise EnvironmentFailure(
                f"another command is converting {entry.made_of}. Wait for its end, or stop it."
            ) from None
    return found


# --- GGUFs -------------------------------------------------------------------------------------------------------


def _in_folder(folder: Path, outtype: str | None) -> Path:
    """Return the GGUF of a checkpoint, of a repository in the hub's cache, or of a folder of GGUFs (LM Studio's)."""
    if (folder / "config.json").is_file() and not any(folder.glob("*.gguf")):
        return _converted(str(folder), outtype or CONVERT_TO)
    main = folder / "refs/main"
    if main.is_file() and (snapshot := folder / "snapshots" / main.read_text("utf-8").strip()).is_dir():
        return _in_folder(snapshot, outtype)
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*.gguf") if path.is_file()
    }
    found = [name for name in names.first_files(sizes) if not _is_draft(folder / name.path)]
    if not found:
        raise InputError(f"{folder}: neither a checkpoint (config.json) nor a GGUF model. Name another folder.")
    models = found if outtype is None or len(found) == 1 else [name for name in found if name.is_type(outtype)]
    listed = ", ".join(name.path for name in (models or found)[:8])
    if not models:
        raise UsageError(f"{folder}: --type {outtype}: no model of that type ({listed}).")
    if len(models) > 1:
        example = f"llama-eagle run {folder / models[0].path}"
        raise UsageError(f"{folder}: {len(models)} models ({listed}). Choose one: {example}")
    names.parts(models[0], sizes)
    return folder / models[0].path


def _is_draft(path: Path) -> bool:
    from llama_eagle.gguf.names import DRAFT_KINDS
    from llama_eagle.gguf.pairing import KNOWN_NON_TARGETS
    from llama_eagle.gguf.sidecars import peek_architecture

    return peek_architecture(path) in (*DRAFT_KINDS, *KNOWN_NON_TARGETS)


def _by_name(repo: str, subfolder: str, wanted: str | None, with_draft: bool) -> Path:
    """Return the GGUF of a repository: from LM Studio's folder, from our own cache, or from the hub."""
    for base in _LM_STUDIO:
        folder = home() / base / repo / subfolder
        if folder.is_dir() and any(folder.rglob("*.gguf")):
            return _in_folder(folder, wanted)
    source = f"{repo}/{subfolder}".rstrip("/")
    outtype = (wanted or CONVERT_TO).lower()
    if _target_file(source, outtype).is_file():
        _note_changes(repo, source, outtype)
        return _target_file(source, outtype)
    prefix = f"{subfolder}/" if subfolder else ""
    sizes = {name: n for name, n in file_sizes(repo).items() if name.startswith(prefix) or name == subfolder}
    if f"{prefix}config.json" in sizes and any(name.endswith((".safetensors", ".bin")) for name in sizes):
        return _converted(source, outtype)
    if not any(name.endswith(".gguf") for name in sizes):
        raise InputError(f"{source}: neither a checkpoint (config.json) nor GGUF files. Name another repository.")
    return _of_repository(repo, source, sizes, wanted, with_draft)


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


# --- checkpoints -------------------------------------------------------------------------------------------------


def _target_file(source: str, outtype: str) -> Path:
    return model_folder(source, outtype) / f"{Path(source).name}-{outtype}.gguf"


def _converted(source: str, outtype: str) -> Path:
    """Return the GGUF of a checkpoint from our cache; convert it unless it is there and the folder has not changed."""
    from llama_eagle.convert.quantized import require_type

    path = expand_home(source)
    is_folder = path.is_dir()
    source, outtype = str(path.resolve()) if is_folder else source, outtype.lower()
    target = _target_file(source, outtype)
    if is_folder and target.is_file() and _is_newer(path, target):
        target.unlink()
    if not target.is_file():
        require_type(outtype)
        with _locked(target, source) as is_missing:
            if is_missing:
                with _entry(target.parent, source, outtype) as describe:
                    _convert(source, target, outtype, describe)
    return target


def entry_lock(folder: Path) -> FileLock:
    """Return the lock of a cache entry, which the command that makes or deletes the entry holds."""
    from filelock import FileLock

    path = cache_dir() / "locks" / f"{folder.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, path) from None
    return FileLock(path)


@contextlib.contextmanager
def _locked(target: Path, source: str) -> Iterator[bool]:
    """Hold the lock of an entry, after waiting for another command that makes it; yield True if `target` is missing."""
    from filelock import Timeout

    lock = entry_lock(target.parent)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.log(f"waiting for another command that is converting {source}")
        lock.acquire()
    try:
        yield not target.is_file()
    finally:
        lock.release()


@contextlib.contextmanager
def _entry(folder: Path, source: str, outtype: str) -> Iterator[Any]:
    """Create a cache entry with its description first, so that a killed conversion can be listed and cleared.

    Removes the folder on an error. Yields the function that writes the description.
    """
    shutil.rmtree(folder, ignore_errors=True)

    def describe(revision: str | None = None) -> None:
        made_of = {"source": source, "outtype": outtype, **({"revision": revision} if revision else {})}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MADE_OF).write_text(json.dumps(made_of), "utf-8")
        except OSError as error:
            raise write_error(error, folder / MADE_OF) from None

    try:
        yield describe
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _convert(source: str, target: Path, outtype: str, describe: Any) -> None:
    from llama_eagle.convert.source import open_checkpoint
    from llama_eagle.convert.targets import TargetOptions, convert_target
    from llama_eagle.sessions.same_tokens import compare_tokens

    checkpoint = open_checkpoint(source)
    describe(checkpoint.revision)
    with progress(f"converting to {outtype}") as on_progress:
        meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
        options = TargetOptions(outtype=outtype, progress=meter, check_tokenizer=compare_tokens)
        convert_target(checkpoint, target, options)


def _is_newer(checkpoint: Path, target: Path) -> bool:
    """Return True if a file in the folder was written after `target` was made from it."""
    made = target.stat().st_mtime
    return any(file.stat().st_mtime > made for file in checkpoint.iterdir() if file.exists())


def _note_changes(repo: str, source: str, outtype: str) -> None:
    """Warn if a repository has changed since its conversion."""
    folder = model_folder(source, outtype)
    kept = next((entry.revision for entry in entries() if entry.folder == folder), None)
    newest = revision_of(repo) if kept else None
    if newest not in (None, kept):
        console.warn(
            f"{repo} has changed since it was converted. To convert it again: llama-eagle run --clear {source}"
        )


# --- published drafts --------------------------------------------------------------------------------------------


def _fetch_draft(model: str, target: Path) -> None:
    """Convert the published draft of a target that has neither an MTP head nor a draft next to it."""
    from llama_eagle.gguf import mtp
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.sidecars import find_sidecars

    files = read_model(target)[1]
    pairs = find_pairs([model.partition(":")[0], *names.names_of(files[0])])
    if not pairs or mtp.has_head(files) or any(kept_draft(pair).is_file() for pair in pairs):
        return
    if any(sidecar.files is not None for sidecar in find_sidecars(files)):
        return
    for pair in pairs:
        try:
            _convert_draft(pair, target)
        except EagleError as error:
            console.warn(f"{pair.draft}, the draft of {pair.target}, cannot be used: {error}")
            if isinstance(error, EnvironmentFailure):
                return
            continue
        if len(pairs) > 1:
            console.log(f"{pair.draft} drafts: of {len(pairs)} published drafts, its rounds read least")
        return


def _convert_draft(pair: KnownPair, target: Path) -> None:
    from llama_eagle.convert.drafts import DraftOptions, convert_draft
    from llama_eagle.convert.source import open_checkpoint

    draft = kept_draft(pair)
    with _locked(draft, pair.draft) as is_missing, contextlib.ExitStack() as entry:
        if not is_missing:
            return
        describe = entry.enter_context(_entry(draft.parent, pair.draft, DRAFT_TYPE))
        checkpoint = open_checkpoint(pair.draft)
        describe(checkpoint.revision)
        with progress("converting the draft") as on_progress:
            meter = lambda done, total, _name: on_progress(done / max(total, 1))  # noqa: E731
            convert_draft(checkpoint, target, draft, DraftOptions(outtype=DRAFT_TYPE), meter)


def estimate(target: Path, n_ctx: int, types: tuple[int, int]) -> dict[str, Any]:
    """Return `n_bytes`, the memory for weights and context, and `tokens_per_second`, an upper bound of plain decoding.

    The bound is for the CPU: each token reads the weights once. A sparse model reads less.
    """
    from llama_eagle.gguf.header import read_model
    from llama_eagle.gguf.size import kv_bytes
    from llama_eagle.native.processor.bandwidth import read_rates
    from llama_eagle.native.processor.threads import default_threads

    first, files = read_model(target)
    weights = sum(file.file_size for file in files)
    (rate,) = read_rates([default_threads()], n_bytes=1 << 28)
    return {
        "n_bytes": weights + kv_bytes(first, n_ctx, *types),
        "tokens_per_second": rate / weights,
    }
