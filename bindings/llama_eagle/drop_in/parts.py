"""Small parts of `EagleLlama`: views of the parent's handles, and checks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle.errors import EagleError, InputError
from llama_eagle.native import callbacks, calls, log, rpc


@dataclass(frozen=True)
class ContextView:
    """The parent's context with the attributes that sessions use."""

    handle: Any
    model_path: Path
    n_ctx: int
    n_batch: int
    n_trained: int


@dataclass(frozen=True)
class ModelView:
    """The parent's model with the attributes that sessions use."""

    handle: Any
    path: Path


@contextlib.contextmanager
def with_llama_cpp_reason(has_model: Callable[[], bool]) -> Iterator[None]:
    """Add llama.cpp's reason to the parent's ValueErrors about loading, as an `InputError`.

    has_model: returns True if the model is loaded, so that its context failed.
    """
    log.clear()
    try:
        yield
    except ValueError as error:
        callbacks.raise_noted()  # Ctrl-C during loading
        reason = log.first_error()
        if isinstance(error, EagleError) or not reason:
            raise
        rpc.require_servers_alive()
        remedy = "Correct the arguments or use a smaller n_ctx" if has_model() else "Convert it again"
        raise InputError(f"{error}: {reason}. {remedy}.") from None


def require_grammar(vocab: Any, grammar: Any) -> None:
    """Raise `UsageError` for a llama_cpp.LlamaGrammar that llama.cpp cannot parse, or that exceeds its limits."""
    if grammar is None:
        return
    calls.check_grammar(vocab, grammar._grammar, grammar._root)
