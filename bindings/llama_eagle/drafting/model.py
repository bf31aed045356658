"""Adapter for llama-cpp-python's own draft models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llama_eagle.drafting.drafter import OwnDrafter
from llama_eagle.errors import UsageError


class ModelDrafter(OwnDrafter):
    """Drafter for llama-cpp-python's `draft_model=` objects, which map all tokens to an array of proposals."""

    name = "draft_model"

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tokens: list[int] = []

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens = [int(token) for token in tokens]

    def draft(self, id_last: int, n_max: int) -> list[int]:
        proposed = self._model(np.array([*self._tokens, id_last], dtype=np.intc))
        try:
            return [int(token) for token in proposed[:n_max]]
        except (TypeError, ValueError):
            raise UsageError(f"draft_model returned {proposed!r:.60} instead of token ids. Correct it.") from None

    def accept(self, tokens: Sequence[int]) -> None:
        self._tokens += [int(token) for token in tokens]
