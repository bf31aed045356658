"""Control tokens in the texts of messages as plain text."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import llama_cpp


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
