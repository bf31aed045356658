"""Checks of a run before its first step, and before the target writes data for hours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from llama_eagle.errors import ConfigError, UsageError
from llama_eagle.train import metrics, state, store
from llama_eagle.train.data.self_written import FILE, PART, has_conversation
from llama_eagle.train.export import DRAFT_FILES, HEAD_TEXTS, head_name
from llama_eagle.train.initial import Earlier, choose_geometry, choose_ids, refuse_differing
from llama_eagle.train.mtp.head import require_earlier_head
from llama_eagle.train.settings import AUTO, EAGLE3, MTP, NONE, SELF, Settings
from llama_eagle.train.store import FEATURES
from llama_eagle.train.targets.checkpoint import TargetInfo


def check_output(settings: Settings) -> None:
    """Raise UsageError for an output folder that is of another run, or of no run."""
    if settings.output.exists() and not settings.output.is_dir():
        raise UsageError(f"{settings.output} is a file; -o names the folder of the draft.")
    own = (FEATURES, *DRAFT_FILES, *((*HEAD_TEXTS, head_name(Path(settings.target))) if settings.kind == MTP else ()))
    is_begun = any((settings.output / name).exists() for name in (FILE, PART, FEATURES))
    is_written = has_conversation(settings.output / PART) or any(
        (settings.output / name).exists() for name in (FILE, FEATURES)
    )
    if not is_begun:
        _refuse_foreign(settings.output, "-o", (state.FILE, metrics.METRICS, metrics.PLOT, *own))
    if settings.features not in (AUTO, NONE):
        files = (store.INDEX, store.ROWS, store.BEST, store.FROZEN)
        _refuse_foreign(Path(settings.features), "--features", files)
    has_state = (settings.output / state.FILE).exists()
    if settings.resume and not (has_state or is_begun):
        raise UsageError(f"--resume: {settings.output} has no {state.FILE}. Omit --resume to start a run.")
    if (has_state or is_written) and not settings.resume:
        raise UsageError(
            f"{settings.output} contains a training run. Continue it with --resume, or choose another -o to start over."
        )


def _refuse_foreign(folder: Path, option: str, own: tuple[str, ...]) -> None:
    """Refuse a folder with files that are not a run's, because it may be the target's.

    A run's folder contains the first of `own`, or only files of `own` including the second, which is written first.
    """
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not found or own[0] in found:
        return
    foreign = {name for name in found - set(own) if not (name.startswith(".") and name.endswith(".tmp"))}
    if foreign or own[1] not in found:
        raise UsageError(f"{option} {folder}: contains other files ({min(foreign or found)}). Choose another folder.")


def check_start(settings: Settings, info: TargetInfo, earlier: Earlier | None) -> None:
    """Raise EagleError for a draft or a folder that would be refused after the data is written."""
    if earlier is not None:
        refuse_differing(settings, info, earlier)
    ends = [token for token in info.end_tokens if token < info.n_vocab]  # which every draft vocabulary has
    ids = choose_ids(settings, np.ones(info.n_vocab, np.int64), ends, earlier)
    if settings.kind == MTP and settings.init is not None:
        require_earlier_head(info, Path(settings.init))
    if settings.kind == EAGLE3:
        choose_geometry(settings, info, len(ids), earlier)
    writes = SELF in settings.data and not (settings.output / FILE).exists()
    if writes and settings.features not in (AUTO, NONE) and (Path(settings.features) / store.INDEX).exists():
        raise ConfigError(
            f"--features {settings.features}: its features are of other data than the target will write. Name another "
            "folder, or remove it."
        )
