"""Token ids of a prompt, as `llama_cpp.Llama._create_completion` builds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp

from llama_eagle.errors import UsageError
from llama_eagle.sessions.infill import Gap, InfillTokens, infill_prompt

SPACER = "☺"  # keeps the tokenizer from adding a space before a suffix


def prompt_tokens(llm: Any, prompt: str | Sequence[int], suffix: str | None) -> list[int]:
    """Return the tokens of a text with the vocabulary's special tokens, or ids unchanged.

    `suffix`: the text after the gap, whose prompt has the vocabulary's own infill tokens (in the parent the token 0).
    Unlike in the parent, no prompt gets an end token: it is continued. Raises `UsageError` for a `suffix` that the
    vocabulary has no tokens for.
    """
    if suffix is not None:
        return _gap_tokens(llm, prompt, suffix)
    if not isinstance(prompt, str):
        return list(prompt)
    special = llm._options.parse_special
    return [*_bos(llm), *(llm.tokenize(prompt.encode(), add_bos=False, special=special) if prompt else [])]


def _gap_tokens(llm: Any, prompt: str | Sequence[int], suffix: str) -> list[int]:
    vocab = llm._model.vocab
    infill = InfillTokens.of(
        {name: getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab) for name in ("pre", "suf", "mid")}
    )
    if infill is None:
        raise UsageError("this model has no infill tokens, so it takes no suffix. Leave it out.")
    before = llm.tokenize(prompt.encode(), add_bos=False, special=False) if isinstance(prompt, str) else prompt
    gap = Gap(before, _suffix_tokens(llm, suffix))
    return infill_prompt(infill, gap, bos=_bos(llm), suffix_first=llm.spm_infill)


def _bos(llm: Any) -> list[int]:
    """Return the tokens that the vocabulary requires before a text."""
    model = llm._model
    cls = model.token_cls()
    bos = llm.token_bos() if cls == -1 else cls
    return [bos] if model.add_bos_token() and bos != -1 else []


def _suffix_tokens(llm: Any, suffix: str) -> list[int]:
    """Return the tokens of a text that follows another one."""
    spacer, both = (llm.tokenize(text.encode(), add_bos=False, special=False) for text in (SPACER, SPACER + suffix))
    if both[: len(spacer)] == spacer:
        return list(both[len(spacer) :])
    return list(llm.tokenize(suffix.encode(), add_bos=False, special=False)) if suffix else []


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
