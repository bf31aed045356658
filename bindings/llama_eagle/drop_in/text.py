"""Texts and tokens: a text that grows by one token at a time, and control tokens in texts of messages."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import llama_cpp

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
        self._special = False
        self._lock = threading.Lock()

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> bytes:
        """Return the bytes of `tokens`. A space after a leading BOS is dropped, as in llama-cpp-python.

        Raises `UsageError` unless `tokens` is a list of ids, `InputError` for an id outside of the vocabulary.
        """
        tokens = tokens if isinstance(tokens, list) else read_ids(tokens)
        text = self._join(tokens, special) if len(tokens) < SHORT else self._extended(tokens, special)
        return text[1:] if tokens and tokens[0] == self._bos and text[:1] == b" " else text

    def _extended(self, tokens: list[int], special: bool) -> bytes:
        with self._lock:
            known = len(self._tokens)
            if special != self._special or tokens[:known] != self._tokens:
                self._text, self._tokens, known = b"", [], 0
            self._text += self._join(tokens[known:], special)
            self._tokens, self._special = list(tokens), special
            return self._text

    def _join(self, tokens: Sequence[int], special: bool) -> bytes:
        return b"".join([self._piece(token, special) for token in read_ids(tokens)])

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


def control_tokens(vocab: Any) -> tuple[str, ...]:
    """Return the texts of a vocabulary's control tokens, longest first as llama.cpp finds them."""
    kinds = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    ids = range(llama_cpp.llama_vocab_n_tokens(vocab))
    found = {
        llama_cpp.llama_vocab_get_text(vocab, token).decode("utf-8", "ignore")
        for token in ids
        if llama_cpp.llama_vocab_get_attr(vocab, token) & kinds
    }
    return tuple(sorted(found - {""}, key=len, reverse=True))


class LiteralTexts:
    """An `EagleLlama` for a chat handler, or a `Tokenizer`, for which control tokens in the texts of messages are text.

    They are hidden while the template is rendered. In the prompt, a part between two control tokens of the template is
    tokenized as plain text if it contains a hidden one.
    """

    def __init__(self, llama: Any, tokens: Sequence[str]) -> None:
        self._llama = llama
        self._texts = tokens
        self._control = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._mark = secrets.token_hex(8)
        self._hidden = re.compile(rf"{self._mark}_(\d+)_")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def hidden(self, messages: Any) -> Any:
        """Return messages with placeholders for control tokens in all texts."""
        if isinstance(messages, str):
            return self._control.sub(lambda found: f"{self._mark}_{self._texts.index(found[0])}_", messages)
        if hasattr(messages, "model_dump"):  # of OpenAI's client
            return self.hidden(messages.model_dump(exclude_none=True))
        if isinstance(messages, Mapping):
            return {key: self.hidden(value) for key, value in messages.items()}
        return [self.hidden(each) for each in messages] if isinstance(messages, list | tuple) else messages

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        def encode(part: str, **options: bool) -> list[int]:
            return list(self._llama.tokenize(part.encode(), **options))

        return self._joined(encode, text.decode("utf-8"), add_bos, special)

    def encode(self, text: str, *, add_bos: bool = True, special: bool = True) -> list[int]:
        return self._joined(self._llama.encode, text, add_bos, special)

    def _joined(self, encode: Callable[..., list[int]], text: str, add_bos: bool, special: bool) -> list[int]:
        tokens: list[int] = []
        for part, is_literal in self._parts(text):
            part = self._hidden.sub(lambda found: self._texts[int(found[1])], part)
            tokens += encode(part, add_bos=add_bos and not tokens, special=special and not is_literal)
        return tokens

    def _parts(self, prompt: str) -> Iterator[tuple[str, bool]]:
        """Yield a prompt's parts; the literal ones, which contain placeholders, are between control tokens."""
        start, at = 0, 0
        for end, after in [*(found.span() for found in self._control.finditer(prompt)), (len(prompt), len(prompt))]:
            if self._hidden.search(prompt, at, end):
                if at > start:
                    yield prompt[start:at], False
                yield prompt[at:end], True
                start = end
            at = after
        if start < len(prompt) or not prompt:
            yield prompt[start:], False
