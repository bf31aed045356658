"""Small parts of `EagleLlama`: its saved state, views of the parent's handles, a download."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from llama_cpp import LlamaState

from llama_eagle.errors import UsageError


class EagleLlamaState(LlamaState):
    """The parent's saved state and what the draft keeps beside it."""

    def __init__(self, state: LlamaState, draft_state: bytes) -> None:
        super().__init__(**vars(state))
        self.draft_state = draft_state


@dataclass(frozen=True)
class ContextView:
    """The parent's context, as sessions want it."""

    handle: Any
    n_ctx: int
    n_batch: int


@dataclass(frozen=True)
class ModelView:
    """The parent's model, likewise."""

    handle: Any


def is_plain_greedy(arguments: dict[str, Any]) -> bool:
    """Whether nothing but the largest logit decides."""
    neutral = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "temp": 0.0}
    return all(arguments[name] == value for name, value in neutral.items()) and not (
        arguments["grammar"] or arguments["logits_processor"]
    )


def download(repo_id: str, pattern: str, cache_dir: Any) -> str:
    """The one file of a hub repository that matches. Raises `UsageError` when none or several do."""
    from huggingface_hub import hf_hub_download, list_repo_files

    names = fnmatch.filter(list_repo_files(repo_id), pattern)
    if len(names) != 1:
        raise UsageError(f"{repo_id}: {len(names)} files match {pattern!r}. Give draft_filename for exactly one.")
    return str(hf_hub_download(repo_id, names[0], cache_dir=cache_dir))
