"""Comparison of the engine's tokens with those of a SentencePiece model."""

from __future__ import annotations

from pathlib import Path

from llama_eagle.errors import EnvironmentFailure
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.same_tokens import TEXTS, Difference
from llama_eagle.sessions.text import Tokenizer


def compare_pieces(vocabulary: Path, pieces: Path) -> list[str]:
    """Compare a GGUF's vocabulary with the tokenizer.model that it was made from; return a difference as a sentence.

    Texts without special tokens are compared, because SentencePiece has no rule for others. Raises
    `EnvironmentFailure` without the sentencepiece package.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise EnvironmentFailure("checking the tokens needs sentencepiece: pip install sentencepiece") from None
    processor = SentencePieceProcessor()
    processor.Load(str(pieces))
    with Model(vocabulary, LoadOptions(vocab_only=True)) as model:
        engine = Tokenizer(model)
        for text, expected in zip(TEXTS, processor.Encode(list(TEXTS)), strict=True):
            found = engine.encode(text, special=False, add_bos=False)
            if found != expected:
                return [str(Difference(text, tuple(found), tuple(expected))).replace("tokenizer.json", pieces.name)]
    return []
