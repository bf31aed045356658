"""Conversion of text to tokens and back."""

from __future__ import annotations

import codecs
import ctypes
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from llama_eagle.errors import InputError, NativeError, UsageError
from llama_eagle.sessions.chats.messages import render_chat
from llama_eagle.sessions.models import Model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIECE_BYTES = 256  # most tokens have a few bytes; llama.cpp returns the size of longer ones


def read_ids(tokens: Any, name: str = "tokens") -> list[int]:
    """Return token ids as ints. Raises `UsageError` unless `tokens` is a list of whole numbers."""
    is_listed = isinstance(tokens, Iterable) and not isinstance(tokens, str | bytes | Mapping)
    ids = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens) if is_listed else None
    try:
        if ids is None:
            raise TypeError
        return [operator.index(token) for token in ids]
    except TypeError:
        raise UsageError(f"{name}={tokens!r:.60} must be a list of token ids. Correct it.") from None


def require_ids(tokens: Sequence[int] | NDArray[np.intc], n_vocab: int) -> None:
    """Raise `InputError` for an id of `ids` [n] outside of the vocabulary: llama.cpp fails later, or ends."""
    outside = next((token for token in tokens if not 0 <= token < n_vocab), None)
    if outside is not None:
        raise InputError(f"token id {outside} is not in the vocabulary of {n_vocab} tokens. Correct it.")


class HasVocab(Protocol):
    @property
    def vocab(self) -> Any:
        """The llama_vocab pointer."""


class Tokenizer:
    """The tokenizer inside a loaded model."""

    def __init__(self, model: HasVocab) -> None:
        from llama_eagle.native import llama_cpp

        self._api: Any = llama_cpp
        self.vocab = model.vocab  # llama_vocab pointer
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(model.vocab))
        self._eos = int(llama_cpp.llama_vocab_eos(model.vocab))

    def encode(self, text: str, *, special: bool = True, add_bos: bool = True, add_eos: bool = False) -> list[int]:
        """Return the token ids of `text`. `special`: recognize control tokens such as <|im_start|>.

        add_eos: with `add_bos`, also the end token that some vocabularies append. A prompt to continue has none.
        """
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 8
        tokens = (ctypes.c_int32 * size)()
        n = self._api.llama_tokenize(self.vocab, data, len(data), tokens, size, add_bos, special)
        if n < 0:
            raise NativeError(f"llama_tokenize needs {-n} tokens for {len(data)} bytes", code=n, call="llama_tokenize")
        is_ended = add_bos and n > 0 and self._api.llama_vocab_get_add_eos(self.vocab) and tokens[n - 1] == self._eos
        return list(tokens[: n - 1 if is_ended and not add_eos else n])

    def encode_piece(self, text: str, is_first: bool) -> list[int]:
        """Return the token ids of a piece of a longer text."""
        return self.encode(text, add_bos=is_first)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of one token, which may be a part of a character. Control tokens are empty unless `special`.

        Raises `InputError` for an id outside of the vocabulary.
        """
        self.require_ids((token,))
        buffer = ctypes.create_string_buffer(PIECE_BYTES)  # of this call: other threads may read tokens, too
        n = self._api.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._api.llama_token_to_piece(self.vocab, token, buffer, -n, 0, special)
        return buffer.raw[: max(n, 0)]

    def is_end(self, token: int) -> bool:
        """Return True if the token ends the generation."""
        return bool(self._api.llama_vocab_is_eog(self.vocab, token))

    def require_ids(self, tokens: Sequence[int]) -> None:
        """Raise `InputError` for an id outside of the vocabulary."""
        require_ids(tokens, self.n_vocab)


class StopText:
    """Filter that ends a text at the first complete stop text. A possible beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_met = False

    def push(self, text: str) -> str:
        """Return the text that can be output now; after a stop text, ""."""
        if self.is_met or not self._stops:
            return "" if self.is_met else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self.is_met = bool(found)
        safe = min(found)[1] if found else len(text) - self._n_open(text)
        self._held = "" if found else text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """Return the held-back text, which was no stop text."""
        held, self._held = self._held, ""
        return held

    def _n_open(self, text: str) -> int:
        """Return the number of characters at the end that begin a stop text."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


class TextStream:
    """Decoder from tokens to text. Characters are returned when they are complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(self._tokenizer.piece(token) for token in tokens))

    def finish(self) -> str:
        """Return the rest: an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


def has_chat_template(model: Model) -> bool:
    return bool(model.header.keys.get("tokenizer.chat_template"))


def chat_text(model: Model, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Render messages (role, content) with the model's chat template, up to the start of the answer.

    options: variables of the template, such as enable_thinking=False. Raises `InputError` without a template, and the
    errors of `render_chat`.
    """
    template = model.header.keys.get("tokenizer.chat_template")
    if not template:
        raise InputError(f"{model.path} has no chat template. Give a complete prompt instead of messages.")
    bos, eos = (_token_text(model, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    tokens = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": True}
    return render_chat(str(template), {**tokens, "messages": list(messages), "tools": None, **options}, model.path)


def _token_text(model: Model, key: str) -> str:
    token = model.header.keys.get(key)
    return "" if token is None else Tokenizer(model).piece(int(token), special=True).decode("utf-8", "replace")
