"""The vocabulary of a trimmed draft head, counted on a text with the checkpoint's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import CONTROL, TokenizerData
from llama_eagle.errors import EnvironmentFailure, InputError
from llama_eagle.files import refuse_special

KEY = "llama_eagle.draft_vocab"
MAX_TOKENS = 1 << 16  # far more rows than are useful
_CHUNK = 1 << 20  # characters tokenized at once, extended to the end of the line


def draft_vocabulary(checkpoint: Checkpoint, tokenizer: TokenizerData, text: Path) -> list[int]:
    """Return ids for a trimmed head: control and end tokens, then the text's tokens by descending frequency.

    Ties are ordered by id. Raises InputError for a text that is empty or not UTF-8, EnvironmentFailure without the
    tokenizers package.
    """
    counts = np.zeros(len(tokenizer.tokens), np.int64)
    encoder = _encoder(checkpoint, tokenizer)
    for part in _parts(text):
        ids = np.asarray(encoder.encode(part, add_special_tokens=False).ids, np.int64)
        counts += np.bincount(ids, minlength=len(counts))
    if not counts.any():
        raise InputError(f"{text}: contains no text. Use a text like those that the model will generate.")
    fixed = _fixed(checkpoint, tokenizer)
    counts[fixed] = 0
    order = np.argsort(-counts, kind="stable")
    return (fixed + order[counts[order] > 0].tolist())[:MAX_TOKENS]


def _fixed(checkpoint: Checkpoint, tokenizer: TokenizerData) -> list[int]:
    """Return the control tokens and the tokens that end a turn or a text."""
    ids = {i for i, kind in enumerate(tokenizer.types) if kind == CONTROL}
    ends = (checkpoint.json_file("generation_config.json") or {}).get("eos_token_id")
    stated = [*(ends if isinstance(ends, list) else [ends]), tokenizer.special_ids.get("eos")]
    return sorted(ids | {i for i in stated if type(i) is int and 0 <= i < len(tokenizer.tokens)})


def _encoder(checkpoint: Checkpoint, tokenizer: TokenizerData) -> Any:
    try:
        return tokenizer.encoder.get()
    except ImportError:
        raise EnvironmentFailure("Counting tokens needs the tokenizers package: pip install tokenizers") from None
    except Exception as error:  # the package raises nothing narrower
        raise InputError(f"{checkpoint.source}: tokenizer.json cannot be used: {str(error)[:160]}") from None


def require_text(text: Path) -> None:
    """Raise `InputError` for a file that cannot be read twice or begins with something else than UTF-8 text."""
    refuse_special(text)
    next(_parts(text), None)


def _parts(text: Path) -> Iterator[str]:
    """Yield the text in pieces of complete lines; only a line longer than a piece is split."""
    try:
        with text.open(encoding="utf-8-sig", newline="") as file:
            while part := file.read(_CHUNK):
                yield part + file.readline(_CHUNK)
    except UnicodeDecodeError:
        raise InputError(f"{text}: not UTF-8 text. Use a plain text file.") from None
    except OSError as error:
        raise InputError(f"{text}: cannot be read ({error.strerror}). Use a plain text file.") from None
