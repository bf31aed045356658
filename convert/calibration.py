"""Which tokens a trimmed draft head should know: counted on a text with the checkpoint's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.tokenizer import CONTROL, TokenizerData
from llama_eagle.errors import EnvironmentFailure, InputError

KEY = "llama_eagle.draft_vocab"
MAX_TOKENS = 1 << 16  # far more rows than pay
_CHUNK = 1 << 20  # characters tokenized at once, up to the next line


def draft_vocabulary(checkpoint: Checkpoint, tokenizer: TokenizerData, text: Path) -> list[int]:
    """Ids for a trimmed head: the control and end tokens, then those of the text by falling frequency, ties by id.

    Raises InputError for a text that is not UTF-8 or holds nothing, EnvironmentFailure without the tokenizers package.
    """
    counts = np.zeros(len(tokenizer.tokens), np.int64)
    encoder = _encoder(checkpoint)
    for part in _parts(text):
        ids = np.asarray(encoder.encode(part, add_special_tokens=False).ids, np.int64)
        counts += np.bincount(ids, minlength=len(counts))
    if not counts.any():
        raise InputError(f"{text}: holds no text to count tokens in")
    always = _always(checkpoint, tokenizer)
    counts[always] = 0
    order = np.argsort(-counts, kind="stable")
    return (always + order[counts[order] > 0].tolist())[:MAX_TOKENS]


def _always(checkpoint: Checkpoint, tokenizer: TokenizerData) -> list[int]:
    """Control tokens, and what ends a turn or a text."""
    ids = {i for i, kind in enumerate(tokenizer.types) if kind == CONTROL}
    ends = (checkpoint.json_file("generation_config.json") or {}).get("eos_token_id")
    stated = [*(ends if isinstance(ends, list) else [ends]), tokenizer.special_ids.get("eos")]
    return sorted(ids | {i for i in stated if type(i) is int and 0 <= i < len(tokenizer.tokens)})


def _encoder(checkpoint: Checkpoint) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EnvironmentFailure("Counting tokens needs the tokenizers package: pip install tokenizers") from None
    try:
        return Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
    except Exception as error:  # the package raises nothing narrower
        raise InputError(f"{checkpoint.source}: tokenizer.json cannot be used: {str(error)[:160]}") from None


def _parts(text: Path) -> Iterator[str]:
    """The text in pieces of whole lines; only a line longer than a piece is cut."""
    try:
        with text.open(encoding="utf-8", newline="") as file:
            while part := file.read(_CHUNK):
                yield part + file.readline(_CHUNK)
    except UnicodeDecodeError:
        raise InputError(f"{text}: not UTF-8 text. Give a plain text file of what the model will write.") from None
    except OSError as error:
        raise InputError(f"{text}: cannot be read ({error.strerror}). Give a plain text file.") from None
