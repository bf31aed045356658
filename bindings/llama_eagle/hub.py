"""The Hugging Face hub: files of a repository, and errors with a remedy."""

from __future__ import annotations

import errno
import fnmatch
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from llama_eagle import console
from llama_eagle.errors import ConfigError, EagleError, EnvironmentFailure, UsageError
from llama_eagle.files import require_room
from llama_eagle.progress import progress, working

TIMEOUT_S = 10.0
MAX_REASON = 200  # characters of the hub's own words in a message
CHECKPOINT = ("*.json", "*.safetensors", "*.jinja", "tokenizer*")  # what a conversion reads
WEIGHTS = (".gguf", ".safetensors", ".bin")
PIECE = 256 << 10  # bytes of a download that are written at once; the client's 10 MiB take long on slow connections
HTTP_BYTES = 50_000_000_000  # larger files need the client's own protocol
WRONG_SIZE = "Consistency check failed"  # in the client's message
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STATUS = {
    401: "the hub does not accept the token. Run `hf auth login`",
    403: "the hub refuses access. Request access on the repository's page, then run `hf auth login`",
    429: "too many requests to the hub. Wait some minutes; `hf auth login` raises the limit",
}


@contextmanager
def hub_errors(repo: str, revision: str | None = None, command: str | None = None) -> Iterator[None]:
    """Translate the errors of the hub's client: `ConfigError` for a wrong name, else `EnvironmentFailure`.

    command: gets what is missing, once there is a connection. With LLAMA_EAGLE_DEBUG=1 the client's error is the cause.
    """
    try:
        yield
    except EagleError:
        raise
    except Exception as error:
        command = command or f"llama-eagle pull {repo}"
        raise _translated(repo, revision, error, command) from (error if console.shows_causes() else None)


def _translated(repo: str, revision: str | None, error: Exception, command: str) -> EagleError:
    from huggingface_hub import errors

    causes = list(_causes(error))
    reason = _reason(causes)
    no_file = getattr(
        errors, "RemoteEntryNotFoundError", errors.EntryNotFoundError
    )  # older clients have the second only
    known = {
        errors.HFValidationError: ConfigError(
            f"{repo}: neither a local file or folder nor the name of a repository (OWNER/NAME)"
        ),
        errors.RevisionNotFoundError: ConfigError(f"{repo}: no revision {revision!r} on the hub ({reason})"),
        errors.GatedRepoError: EnvironmentFailure(
            f"{repo}: gated; accept its terms on the hub, then run `hf auth login` ({reason})"
        ),
        errors.RepositoryNotFoundError: ConfigError(
            f"{repo}: neither a local folder nor a repository on the hub. If it is private, run `hf auth login` "
            f"({reason})"
        ),
        no_file: ConfigError(f"{repo}: no such file on the hub. It may have changed ({reason})"),
    }
    for kind, translation in known.items():
        if any(isinstance(cause, kind) and not isinstance(cause, errors.LocalEntryNotFoundError) for cause in causes):
            return translation
    if (answer := _http_error(causes)) is not None:
        advice = STATUS.get(answer.response.status_code, "the hub reports an error. Try again later")
        return EnvironmentFailure(f"{repo}: {advice} ({reason}).")
    return next(filter(None, (_of_disk(repo, cause) for cause in causes)), _unreachable(repo, reason, command))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(causes: Sequence[BaseException]) -> str:
    """Return the hub's own words, or those of the innermost error of the connection, in one line."""
    if (answer := _http_error(causes)) is not None:
        words = answer.server_message or answer.response.headers.get("X-Error-Message") or ""
        return _line(f"HTTP status {answer.response.status_code}: {words}").removesuffix(":")
    inner = next((cause for cause in reversed(causes) if isinstance(cause, OSError)), causes[-1])
    return _line(str(inner)) or type(inner).__name__


def _http_error(causes: Sequence[BaseException]) -> Any:
    """Return the first error with an answer of the hub; None without one."""
    from huggingface_hub.errors import HfHubHTTPError

    errors = (cause for cause in causes if isinstance(cause, HfHubHTTPError))
    return next((error for error in errors if getattr(error, "response", None) is not None), None)


def _line(text: str) -> str:
    return textwrap.shorten(text, MAX_REASON, placeholder=" ...")


def _of_disk(repo: str, error: BaseException) -> EnvironmentFailure | None:
    if not isinstance(error, OSError):
        return None
    if WRONG_SIZE in str(error):
        return EnvironmentFailure(f"{repo}: a downloaded file has the wrong size. Run the command again.")
    if error.errno is None or (error.filename is None and error.errno not in FULL):
        return None
    if error.errno in FULL:
        where = error.filename or hub_cache()
        return EnvironmentFailure(
            f"{repo}: no space left in {where}. Free some space, or set HF_HOME to a folder on another disk."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST) or _is_above_cache(error):
        reason = error.strerror or error
        return EnvironmentFailure(
            f"{repo}: cannot write {error.filename} ({reason}). Set HF_HOME to a writable folder."
        )
    return None


def _is_above_cache(error: OSError) -> bool:
    """Return True if a folder above the cache is missing and cannot be made."""
    return error.errno == errno.ENOENT and hub_cache().is_relative_to(str(error.filename))


def _unreachable(repo: str, reason: str, command: str) -> EnvironmentFailure:
    why = "HF_HUB_OFFLINE is set" if _is_offline() else f"the hub did not answer ({reason})"
    return EnvironmentFailure(
        f"{repo}: not in the local cache, and {why}. Get it once with `{command}`, or name a local folder"
    )


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def snapshot(repo: str, patterns: list[str], revision: str | None = None) -> Path:
    """Return the folder with the matching files of a repository; download those that the hub's cache lacks."""
    from huggingface_hub import snapshot_download

    command = f"hf download {repo}" + "".join(f" --include {each!r}" for each in CHECKPOINT)
    with hub_errors(repo, revision, command), _quiet():
        if any(each.endswith(WEIGHTS) for each in patterns):
            _fetch_weights(repo, lambda name: any(fnmatch.fnmatchcase(name, each) for each in patterns), revision)
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))


def cached_sizes(repo: str, cache_dir: Any = None) -> tuple[Path, dict[str, int]]:
    """Return the folder of a repository in the hub's cache, and its files with sizes in bytes, without the network.

    They are those of the revision `main`; the folder is empty if there are none.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, cache_dir=cache_dir, local_files_only=True))
    except (OSError, ValueError):  # not cached; no valid name
        return Path(), {}
    names = sorted(path for path in folder.rglob("*") if path.is_file())
    return folder, {path.relative_to(folder).as_posix(): path.stat().st_size for path in names}


def file_sizes(repo: str, cache_dir: Any = None, command: str | None = None) -> dict[str, int]:
    """Return the file names of a repository with sizes in bytes; if the hub cannot be reached, those in its cache.

    command: as in `hub_errors`.
    """
    with hub_errors(repo, command=command):
        try:
            with working("requesting the list of files"):
                from huggingface_hub import model_info  # takes a second on a busy machine

                found = model_info(repo, timeout=TIMEOUT_S, files_metadata=True).siblings or ()
            return {file.rfilename: file.size or 0 for file in sorted(found, key=lambda file: file.rfilename)}
        except Exception as error:
            if isinstance(_translated(repo, None, error, ""), ConfigError):
                raise
            sizes = cached_sizes(repo, cache_dir)[1]
            if not sizes:
                raise
            if not _is_offline():
                reason = _reason(list(_causes(error)))
                console.warn(f"{repo}: the hub did not answer ({reason}), so its files in the cache are used.")
            return sizes


def revision_of(repo: str, timeout_s: float = 3.0) -> str | None:
    """Return the newest commit of a repository; None if the hub does not answer."""
    from huggingface_hub import model_info

    try:
        return model_info(repo, timeout=timeout_s).sha
    except Exception as error:
        console.trace(error)
        return None


def download_files(repo: str, names: Sequence[str]) -> Path:
    """Download files of a repository unless they are in the hub's cache; return the path of the first."""
    from huggingface_hub import hf_hub_download

    with hub_errors(repo, command=f"hf download {repo} {names[0]}"), _quiet():
        _fetch_weights(repo, names.__contains__)
        first, *_ = [Path(hf_hub_download(repo, name)) for name in names]
        return first


def download(repo: str, pattern: str | None, **where: Any) -> str:
    """Download the one matching file of a repository and return its path. `pattern` defaults to *.gguf.

    `where`: keyword arguments of hf_hub_download. Raises `UsageError` if none or several match, otherwise as
    `hub_errors`.
    """
    from huggingface_hub import hf_hub_download

    pattern = pattern or "*.gguf"
    is_name = not set(pattern) & set("*?[")
    command = f"hf download {repo} {pattern if is_name else 'FILE'}"
    names = fnmatch.filter(file_sizes(repo, where.get("cache_dir"), command), pattern)
    if len(names) != 1:
        found = ", ".join(names[:5]) or "none"
        raise UsageError(f"{repo}: {pattern!r} must match one file, it matches {len(names)} ({found}). Name one.")
    with hub_errors(repo, command=f"hf download {repo} {names[0]}"):
        return str(hf_hub_download(repo, names[0], **where))


# --- weights: the disk is checked first, with progress, and an interrupted file is continued -----------------------


class Weights(NamedTuple):
    """Weight files of a repository with their sizes in bytes. missing: those that the hub's cache lacks."""

    revision: str | None
    sizes: dict[str, int]
    missing: dict[str, int]


def weights(repo: str, wanted: Callable[[str], bool], revision: str | None = None) -> Weights:
    """Return the wanted weight files of a repository; none if the hub cannot be reached."""
    try:
        with working("requesting the list of files"):
            from huggingface_hub import model_info, try_to_load_from_cache

            info = model_info(repo, revision=revision, timeout=TIMEOUT_S, files_metadata=True)
    except Exception as error:  # the download itself reports it, unless the cache has all files
        console.trace(error)
        return Weights(None, {}, {})
    names = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    sizes = {name: n for name, n in names.items() if name.endswith(WEIGHTS) and wanted(name)}
    is_kept = {name: isinstance(try_to_load_from_cache(repo, name, revision=info.sha), str) for name in sizes}
    return Weights(info.sha, sizes, {name: n for name, n in sizes.items() if not is_kept[name]})


def hub_cache() -> Path:
    """Return the folder of the hub's client with all downloads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _fetch_weights(repo: str, wanted: Callable[[str], bool], revision: str | None = None) -> None:
    """Download weight files into the hub's cache, from where its client takes them.

    The client itself deletes an unfinished file when it is interrupted.
    """
    from huggingface_hub.file_download import repo_folder_name

    found = weights(repo, wanted, revision)
    if not found.missing:
        return
    blobs = hub_cache() / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"
    total, earlier = sum(found.missing.values()), _n_bytes(blobs, "*.incomplete")
    require_room(blobs, total - earlier, f"the download of {repo}", "HF_HOME")
    base = _n_bytes(blobs) - earlier
    share = lambda n_bytes: min(n_bytes / max(total, 1), 0.999)  # noqa: E731
    with (
        progress(f"downloading {console.size(total)}", after_s=1.0, done=share(earlier)) as show,
        _polled(lambda: show(share(_n_bytes(blobs) - base))),
    ):
        for name in found.missing:
            _fetch(repo, name, found.revision, blobs)


def _n_bytes(folder: Path, pattern: str = "*") -> int:
    n_bytes = 0
    for file in folder.glob(pattern):
        with suppress(OSError):  # renamed meanwhile
            n_bytes += file.stat().st_size
    return n_bytes


@contextmanager
def _polled(show: Callable[[], None]) -> Iterator[None]:
    """Call `show` twice a second in another thread."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.5):
            show()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _fetch(repo: str, name: str, revision: str | None, blobs: Path) -> None:
    """Download one file as the blob that the hub's client looks for; continue an unfinished one."""
    from filelock import FileLock
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repo, name, revision=revision)
    about = get_hf_file_metadata(url)
    if about.etag is None or about.size is None or about.size > HTTP_BYTES:
        return  # left to the client
    blob, part = blobs / about.etag, blobs / f"{about.etag}.incomplete"
    lock = hub_cache() / ".locks" / blobs.parent.name / f"{about.etag}.lock"  # the client's own
    for folder in (blobs, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        if blob.exists():
            return
        if part.exists() and part.stat().st_size > about.size:
            part.unlink()
        usual = _usual_piece()
        try:
            if not getattr(constants, "HF_HUB_ENABLE_HF_TRANSFER", False):  # of older clients: it requests each piece
                constants.DOWNLOAD_CHUNK_SIZE = PIECE
            with part.open("ab") as file:
                http_get(url, file, resume_size=file.tell(), headers=build_hf_headers(), expected_size=about.size)
        except OSError as error:
            if WRONG_SIZE in str(error):
                part.unlink()
            raise
        finally:
            constants.DOWNLOAD_CHUNK_SIZE = usual
        part.replace(blob)


@cache
def _usual_piece() -> int:
    """Return the client's own size of a piece, as it was before the first of our downloads, which may overlap."""
    from huggingface_hub import constants

    return int(constants.DOWNLOAD_CHUNK_SIZE)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings of the hub's client, which our errors repeat, and its bars.

    Its own environment variable decides on the bars if it is set.
    """
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    if not console.shows_causes():
        logging.set_verbosity(max(before, logging.ERROR))
    try:
        with _without_bars():
            yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _without_bars() -> Iterator[None]:
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
