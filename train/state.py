"""State of a run on disk, and how tensors are written. A resumed run continues exactly as without the interruption."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from llama_eagle import console
from llama_eagle.errors import ConfigError, EnvironmentFailure, InputError
from llama_eagle.files import write_whole
from llama_eagle.train.settings import Settings
from safetensors import SafetensorError

FILE = "training_state.pt"


@dataclass
class Progress:
    """step: optimizer steps done. seen: the last of them after which the run was logged and judged, where that was due.
    best: the best held-out mean_emitted. n_worse: evaluations since. done: finished, or stopped early by `n_worse`.
    ended: the reason in words. seconds: of training. n_steps: planned for the time given, 0 without a limit, or before
    it is known."""

    step: int = 0
    seen: int = 0
    best: float = 0.0
    n_worse: int = 0
    done: bool = False
    stopped_early: bool = False
    ended: str = ""
    seconds: float = 0.0
    n_steps: int = 0


@dataclass
class State:
    """State of a run. identity: everything the loss curve depends on; a run continues only if it is the same."""

    identity: dict[str, Any]
    progress: Progress
    model: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)


def identity(settings: Settings, **more: Any) -> dict[str, Any]:
    """Return the settings and other properties that shape the loss curve."""
    given = asdict(settings)
    shaping = list(given)[list(given).index("dtype") :]
    return {name: given[name] for name in shaping} | more


def write_tensors(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write` with a temporary file and rename it to `path`. Raises `OSError`, `EnvironmentFailure`.

    torch and safetensors report a failed write, as on a full disk, by errors of their own.
    """
    try:
        write_whole(path, write)
    except (RuntimeError, SafetensorError) as error:
        free = console.size(shutil.disk_usage(path.parent).free)
        raise EnvironmentFailure(f"{path} cannot be written, {free} are free there: {error}") from None


def save_state(state: State, folder: Path) -> None:
    """Replace the state file atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / FILE, lambda path: torch.save(asdict(state), path))


def load_state(folder: Path, expected: dict[str, Any]) -> State:
    """Load the state.

    Raises ConfigError if the run was started with other settings or data, InputError for a damaged file.
    """
    path = folder / FILE
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        state = State(found["identity"], Progress(**found["progress"]), found["model"], found["optimizer"])
    except Exception as error:  # torch.load raises many types for damaged files
        raise InputError(
            f"{path}: not a state this version can resume ({type(error).__name__}); start again."
        ) from None
    for name in {**expected, **state.identity}:
        before, now = state.identity.get(name), expected.get(name)
        if before != now:
            raise ConfigError(
                f"{path}: started with {name} {before}, not {now}. Give what it was started with, or name "
                "another folder to start over."
            )
    return state
