"""The Hugging Face hub: files of a repository, and errors with a remedy."""

from __future__ import annotations

import errno
import fnmatch
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from llama_eagle import console
from llama_eagle.errors import ConfigError, EagleError, EnvironmentFailure, UsageError
from llama_eagle.files import require_room
from llama_eagle.progress import progress

TIMEOUT_S = 10.0
WEIGHTS = (".gguf", ".safetensors", ".bin")
HTTP_BYTES = 50_000_000_000  # larger files need the client's own protocol
WRONG_SIZE = "Consistency check failed"  # in the client's message
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STATUS = {
    401: "the hub does not accept the token. Run `hf auth login`",
    403: "the hub refuses access. Request access on the repository's page, then run `hf auth login`",
    429: "too many requests to the hub. Wait some minutes; `hf auth login` raises the limit",
}


@contextmanager
def hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Translate the errors of the hub's client: `ConfigError` for a wrong name, else `EnvironmentFailure`."""
    try:
        yield
    except EagleError:
        raise
    except Exception as error:
        raise _translated(repo, revision, error) from None


def _translated(repo: str, revision: str | None, error: Exception) -> EagleError:
    from huggingface_hub import errors

    causes = list(_causes(error))
    known = {
        errors.HFValidationError: ConfigError(
            f"{repo}: neither a local file or folder nor the name of a repository (OWNER/NAME)"
        ),
        errors.RevisionNotFoundError: ConfigError(f"{repo}: no revision {revision!r} on the hub"),
        errors.GatedRepoError: EnvironmentFailure(
            f"{repo}: gated; accept its terms on the hub, then run `hf auth login`"
        ),
        errors.RepositoryNotFoundError: ConfigError(
            f"{repo}: neither a local folder nor a repository on the hub. If it is private, run `hf auth login`"
        ),
        errors.RemoteEntryNotFoundError: ConfigError(f"{repo}: no such file on the hub. It may have changed."),
    }
    for kind, translation in known.items():
        if any(isinstance(cause, kind) for cause in causes):
            return translation
    for cause in causes:
        if isinstance(cause, errors.HfHubHTTPError):
            status = cause.response.status_code
            reason = STATUS.get(status, "the hub reports an error. Try again later")
            return EnvironmentFailure(f"{repo}: {reason} (HTTP status {status}).")
    return next(filter(None, (_of_disk(repo, cause) for cause in causes)), _unreachable(repo))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _of_disk(repo: str, error: BaseException) -> EnvironmentFailure | None:
    if not isinstance(error, OSError):
        return None
    if WRONG_SIZE in str(error):
        return EnvironmentFailure(f"{repo}: a downloaded file has the wrong size. Run the command again.")
    if error.errno is None or (error.filename is None and error.errno not in FULL):
        return None
    if error.errno in FULL:
        from huggingface_hub import constants

        where = error.filename or constants.HF_HUB_CACHE
        return EnvironmentFailure(
            f"{repo}: no space left in {where}. Free some space, or set HF_HOME to a folder on another disk."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        reason = error.strerror or error
        return EnvironmentFailure(
            f"{repo}: cannot write {error.filename} ({reason}). Set HF_HOME to a writable folder."
        )
    return None


def _unreachable(repo: str) -> EnvironmentFailure:
    from huggingface_hub import constants

    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub did not answer"
    return EnvironmentFailure(
        f"{repo}: not in the local cache, and {reason}; download it once with `hf download {repo}`, "
        "or name a local folder"
    )


def snapshot(repo: str, patterns: list[str], revision: str | None = None) -> Path:
    """Return the folder with the matching files of a repository; download those that the hub's cache lacks."""
    from huggingface_hub import snapshot_download

    with hub_errors(repo, revision), _without_bars():
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


def file_sizes(repo: str, cache_dir: Any = None) -> dict[str, int]:
    """Return the file names of a repository with sizes in bytes; if the hub cannot be reached, those in its cache."""
    from huggingface_hub import model_info

    with hub_errors(repo):
        try:
            found = model_info(repo, timeout=TIMEOUT_S, files_metadata=True).siblings or ()
            return {file.rfilename: file.size or 0 for file in sorted(found, key=lambda file: file.rfilename)}
        except Exception as error:
            if isinstance(_translated(repo, None, error), ConfigError):
                raise
            if sizes := cached_sizes(repo, cache_dir)[1]:
                return sizes
            raise


def revision_of(repo: str, timeout_s: float = 3.0) -> str | None:
    """Return the newest commit of a repository; None if the hub does not answer."""
    from huggingface_hub import model_info

    try:
        return model_info(repo, timeout=timeout_s).sha
    except Exception:
        return None


def list_files(repo: str, cache_dir: Any = None) -> list[str]:
    """Return the file names of a repository; if the hub cannot be reached, those in its cache."""
    return list(file_sizes(repo, cache_dir))


def download_files(repo: str, names: Sequence[str]) -> Path:
    """Download files of a repository unless they are in the hub's cache; return the path of the first."""
    from huggingface_hub import hf_hub_download

    with hub_errors(repo), _without_bars():
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
    names = fnmatch.filter(list_files(repo, where.get("cache_dir")), pattern)
    if len(names) != 1:
        found = ", ".join(names[:5]) or "none"
        raise UsageError(f"{repo}: {pattern!r} must match one file, it matches {len(names)} ({found}). Name one.")
    with hub_errors(repo):
        return str(hf_hub_download(repo, names[0], **where))


# --- weights: the disk is checked first, with progress, and an interrupted file is continued -----------------------


class Weights(NamedTuple):
    """Weight files of a repository with their sizes in bytes. missing: those that the hub's cache lacks."""

    revision: str | None
    sizes: dict[str, int]
    missing: dict[str, int]


def weights(repo: str, wanted: Callable[[str], bool], revision: str | None = None) -> Weights:
    """Return the wanted weight files of a repository; none if the hub cannot be reached."""
    from huggingface_hub import model_info, try_to_load_from_cache

    try:
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
    require_room(blobs, total - earlier, f"the download of {repo}")
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
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
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
        try:
            with part.open("ab") as file:
                http_get(url, file, resume_size=file.tell(), headers=build_hf_headers(), expected_size=about.size)
        except OSError as error:
            if WRONG_SIZE in str(error):
                part.unlink()
            raise
        part.replace(blob)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide the bars of the hub's client, unless its environment variable decides on them."""
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
