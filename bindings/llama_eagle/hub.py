"""The Hugging Face hub: files of a repository, and errors with a remedy."""

from __future__ import annotations

import errno
import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llama_eagle.errors import ConfigError, EagleError, EnvironmentFailure, UsageError

TIMEOUT_S = 10.0
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
    if "Consistency check failed" in str(error):
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

    with hub_errors(repo, revision):
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

    with hub_errors(repo):
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
