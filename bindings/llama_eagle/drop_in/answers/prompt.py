"""Token ids of a prompt, as `llama_cpp.Llama._create_completion` builds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MARK = 0  # the parent's id for the start of prefix, suffix and middle
SPACER = "☺"  # keeps the tokenizer from adding a space before a suffix
SPACER_TOKENS = 2


def prompt_tokens(llm: Any, prompt: str | Sequence[int], suffix: str | None) -> list[int]:
    """Return the tokens of a text with the vocabulary's special tokens, or ids unchanged.

    `suffix`: the text after the gap. Unlike in the parent, a text without one gets no end token: it is continued.
    """
    is_complete = not isinstance(prompt, str) and suffix is None
    begin, end = ([], []) if is_complete else _special_tokens(llm)
    special = suffix is None and llm._options.parse_special
    if not isinstance(prompt, str):
        prefix = list(prompt)
    else:
        prefix = llm.tokenize(prompt.encode("utf-8"), add_bos=False, special=special) if prompt else []
    if suffix is None:
        return [*begin, *prefix]
    first, second = [MARK, *prefix], [MARK, *_suffix_tokens(llm, suffix)]
    return [*begin, *(second + first if llm.spm_infill else first + second), MARK, *end]


def _special_tokens(llm: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that the vocabulary requires before and after a text."""
    model = llm._model
    cls, sep = model.token_cls(), model.token_sep()
    bos = llm.token_bos() if cls == -1 else cls
    begin = [bos] if model.add_bos_token() and bos != -1 else []
    if sep != -1:
        return begin, [sep]
    return begin, [llm.token_eos()] if model.add_eos_token() else []


def _suffix_tokens(llm: Any, suffix: str) -> list[int]:
    if not suffix:
        return []
    adds_space = llm.metadata.get("tokenizer.ggml.add_space_prefix", "true") == "true"
    tokens = llm.tokenize(f"{SPACER if adds_space else ''}{suffix}".encode(), add_bos=False, special=False)
    return list(tokens[SPACER_TOKENS if adds_space else 0 :])


class ForHandler:
    """An `EagleLlama` for a chat handler. Subclasses replace what the handler calls."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)


class WithoutEnd(ForHandler):
    """A rendered template gets no end token from a vocabulary that appends one."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        tokens = list(self._llama.tokenize(text, add_bos=add_bos, special=special))
        return tokens[:-1] if add_bos and tokens[-1:] == [self._llama.token_eos()] else tokens
