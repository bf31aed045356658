"""Text that grows by one token at a time, and the text of an answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from llama_eagle.sessions.text import StopText, Tokenizer, read_ids

SHORT = 32  # tokens; a shorter list is joined again, a longer one is treated as the text so far


class GrowingText:
    """Detokenizer of lists of tokens. A list that extends the last long one costs only its new tokens."""

    def __init__(self, tokenizer: Tokenizer, bos: int, *, has_images: bool = False) -> None:
        """Initialize it. has_images: negative ids are rows of images, which have no text."""
        self._tokenizer = tokenizer
        self._bos = bos
        self._has_images = has_images
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._tokens: list[int] = []
        self._text = b""
        self._form: tuple[bool, frozenset[int]] = (False, frozenset())
        self._lock = threading.Lock()

    def detokenize(self, tokens: Sequence[int], *, special: bool, shown: frozenset[int] = frozenset()) -> bytes:
        """Return the bytes of `tokens`. A space after a leading BOS is dropped, as in llama-cpp-python.

        special: control tokens have a text. shown: those that have one even if the others have none.
        Raises `UsageError` unless `tokens` is a list of ids, `InputError` for an id outside of the vocabulary.
        """
        tokens = tokens if isinstance(tokens, list) else read_ids(tokens)
        text = self._join(tokens, special, shown) if len(tokens) < SHORT else self._extended(tokens, special, shown)
        return text[1:] if tokens and tokens[0] == self._bos and text[:1] == b" " else text

    def _extended(self, tokens: list[int], special: bool, shown: frozenset[int]) -> bytes:
        with self._lock:
            known = len(self._tokens)
            if (special, shown) != self._form or tokens[:known] != self._tokens:
                self._text, self._tokens, known = b"", [], 0
            self._text += self._join(tokens[known:], special, shown)
            self._tokens, self._form = list(tokens), (special, shown)
            return self._text

    def _join(self, tokens: Sequence[int], special: bool, shown: frozenset[int]) -> bytes:
        return b"".join([self._piece(token, special or token in shown) for token in read_ids(tokens)])

    def _piece(self, token: int, special: bool) -> bytes:
        if token < 0 and self._has_images:
            return b""
        piece = self._pieces.get((token, special))
        if piece is None:
            piece = self._pieces[token, special] = self._tokenizer.piece(token, special=special)
        return piece


class AnswerText:
    """The text of an answer while its bytes arrive: complete characters, up to the first stop text.

    Invalid bytes are dropped. `has_replacements`: the tokenizer writes U+FFFD for an incomplete character, so that one
    at the end is held back until the next token.
    """

    def __init__(self, stops: Sequence[str], *, has_replacements: bool = False) -> None:
        self._stop = StopText(stops)
        self._has_replacements = has_replacements
        self._text = ""
        self._n_read = 0

    @property
    def is_met(self) -> bool:
        """True if a stop text has been found."""
        return self._stop.is_met

    def push(self, data: bytes) -> str:
        """Return the new text that is final. `data`: all bytes so far."""
        self._text = data.decode("utf-8", "ignore")
        text = self._text.rstrip("\ufffd") if self._has_replacements else self._text
        piece, self._n_read = text[self._n_read :], max(self._n_read, len(text))
        return self._stop.push(piece)

    def finish(self) -> str:
        """Return the text that was held back."""
        return self._stop.push(self._text[self._n_read :]) + self._stop.finish()
