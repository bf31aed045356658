"""The Hugging Face hub: what a repository holds, its files, and errors that say what to do."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llama_eagle.errors import ConfigError, EnvironmentFailure, UsageError

TIMEOUT_S = 10.0


@contextmanager
def explained(repo: str, revision: str | None = None) -> Iterator[None]:
    """What the hub's client raises, as `ConfigError` for what was named and as `EnvironmentFailure` for the rest."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.HFValidationError:
        raise ConfigError(
            f"{repo}: neither a file or folder here nor a repository's name, which is OWNER/NAME"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{repo}: the hub has no revision {revision!r} of it") from None
    except errors.GatedRepoError:
        raise EnvironmentFailure(f"{repo}: gated; accept its terms on the hub, then run `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{repo}: neither a folder here nor a repository on the hub (private? `hf auth login`)"
        ) from None
    except Exception:
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub did not answer"
        raise EnvironmentFailure(
            f"{repo}: not in the local cache, and {reason}; download it once with `hf download {repo}`, "
            "or name a local folder"
        ) from None


def snapshot(repo: str, patterns: list[str], revision: str | None = None) -> Path:
    """The folder with a repository's files that match; downloaded unless they are in the hub's cache."""
    from huggingface_hub import snapshot_download

    with explained(repo, revision):
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))


def list_files(repo: str, cache_dir: Any = None) -> list[str]:
    """Names of a repository's files; where the hub cannot be reached, of those in its cache."""
    from huggingface_hub import errors, model_info, snapshot_download

    known = (errors.RepositoryNotFoundError, errors.GatedRepoError)
    with explained(repo):
        try:
            return sorted(file.rfilename for file in model_info(repo, timeout=TIMEOUT_S).siblings or ())
        except known:
            raise
        except Exception:
            folder = Path(snapshot_download(repo, cache_dir=cache_dir, local_files_only=True))
            return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def download(repo: str, pattern: str | None, **where: Any) -> str:
    """The one file of a repository that matches, a GGUF by default; `where`: as hf_hub_download takes it.

    Raises `UsageError` when none or several match, otherwise as `explained`.
    """
    from huggingface_hub import hf_hub_download

    pattern = pattern or "*.gguf"
    names = fnmatch.filter(list_files(repo, where.get("cache_dir")), pattern)
    if len(names) != 1:
        found = ", ".join(names[:5]) or "none"
        raise UsageError(f"{repo}: {pattern!r} must match one file, it matches {len(names)} ({found}). Name one.")
    with explained(repo):
        return str(hf_hub_download(repo, names[0], **where))
