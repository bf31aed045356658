"""Control tokens in the texts of messages as plain text."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.native import llama_cpp
from llama_eagle.sessions.chats.calls import read_json

LETTERS = "abcdefghijklmnop"
SHOWN = ("description", "title", "default", "examples")  # keys of tools that no grammar contains


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
    tokenized as plain text if it contains a hidden one. mark: the beginning of a placeholder, which llama-server knows
    for prompts with media.
    """

    def __init__(self, llama: Any, tokens: Sequence[str], mark: str = "") -> None:
        self._llama = llama
        self._control = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._mark = mark or f"eagle{secrets.token_hex(8)}_"
        self._hidden = re.compile(rf"{self._mark}(\d+):")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def hidden(self, messages: Any) -> Any:
        """Return messages with placeholders for control tokens in all texts."""
        if isinstance(messages, str):
            return self._control.sub(self._placeholder, messages)
        if hasattr(messages, "model_dump"):  # of OpenAI's client
            return self.hidden(messages.model_dump(exclude_none=True))
        if isinstance(messages, Mapping):
            return {
                self.hidden(key): self._hidden_arguments(value) if key == "arguments" else self.hidden(value)
                for key, value in messages.items()
            }
        return [self.hidden(each) for each in messages] if isinstance(messages, list | tuple) else messages

    def _placeholder(self, control: re.Match[str]) -> str:
        """Return the mark, the number of bytes, a colon, and each byte as two letters, which no template changes."""
        data = control[0].encode()
        letters = "".join(LETTERS[byte // 16] + LETTERS[byte % 16] for byte in data)
        return f"{self._mark}{len(data)}:{letters}"

    def _hidden_arguments(self, arguments: Any) -> Any:
        """Return the arguments of a call. Escapes of JSON hide a control token until a template prints the value."""
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):
                value = read_json(arguments)
                hidden = self.hidden(value)
                return arguments if hidden == value else json.dumps(hidden, ensure_ascii=False)
        return self.hidden(arguments)

    def hidden_tools(self, tools: Sequence[Any]) -> list[Any]:
        """Return tools with placeholders in their descriptions.

        Names and values are also in grammars: raises `UsageError` for one that contains a control token.
        """
        return [self._hidden_tool(tool, f"the tool {tool['function']['name']!r}") for tool in tools]

    def _hidden_tool(self, value: Any, where: str) -> Any:
        if isinstance(value, str) and self._control.search(value):
            raise UsageError(
                f"{where} has a control token in {value!r}, which with --no-parse-special only descriptions may have. "
                "Leave it out."
            )
        if isinstance(value, list | tuple):
            return [self._hidden_tool(each, where) for each in value]
        if not isinstance(value, Mapping):
            return value
        return {
            self._hidden_tool(key, where): self.hidden(each)
            if key in SHOWN and not isinstance(each, Mapping)
            else self._hidden_tool(each, where)
            for key, each in value.items()
        }

    def restored(self, text: str) -> str:
        """Return a text with the control tokens in place of their placeholders."""
        parts, at = [], 0
        while found := self._hidden.search(text, at):
            end = found.end() + 2 * int(found[1])
            digits = [LETTERS.index(letter) for letter in text[found.end() : end]]
            control = bytes(high * 16 + low for high, low in zip(digits[::2], digits[1::2], strict=True)).decode()
            parts += [text[at : found.start()], control]
            at = end
        return "".join([*parts, text[at:]])

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        def encode(part: str, **options: bool) -> list[int]:
            return list(self._llama.tokenize(part.encode(), **options))

        return self._joined(encode, text.decode("utf-8"), add_bos, special)

    def encode(self, text: str, *, add_bos: bool = True, special: bool = True) -> list[int]:
        return self._joined(self._llama.encode, text, add_bos, special)

    def _joined(self, encode: Callable[..., list[int]], text: str, add_bos: bool, special: bool) -> list[int]:
        tokens: list[int] = []
        for part, is_literal in self._parts(text):
            tokens += encode(self.restored(part), add_bos=add_bos and not tokens, special=special and not is_literal)
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
