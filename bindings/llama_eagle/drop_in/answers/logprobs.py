"""Log-probabilities of tokens, in the form of OpenAI's completions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

from llama_cpp import Llama

NAMES = ("tokens", "text_offset", "token_logprobs", "top_logprobs")
LogProbs = dict[str, list[Any]]


class TokenLogProbs:
    """Log-probabilities of tokens, from the logits that `llm` keeps. n_top: alternatives per token."""

    def __init__(self, llm: Any, n_top: int, base: int) -> None:
        """Initialize it. base: number of characters before the text that `before` contains."""
        self._llm = llm
        self._n_top = n_top
        self._base = base

    def of(self, token: int, position: int, before: list[int]) -> LogProbs:
        """Return the entry of the token at `position` of the context, after the tokens `before` of the shown text.

        The first token of a context has no log-probability.
        """
        text = self._text([token], before)
        offset = self._base + len(self._text(before, []))
        if position == 0:
            return entry(text, offset, None, None)
        values = Llama.logits_to_logprobs(self._llm._scores[position - 1]).tolist()
        largest = heapq.nlargest(self._n_top, zip(values, range(len(values)), strict=True))
        top = {self._text([i], before): value for value, i in largest} | {text: values[token]}
        return entry(text, offset, values[token], top)

    def of_prompt(self, tokens: list[int]) -> Iterator[LogProbs]:
        """Yield the entries of an echoed prompt without BOS. The first has no log-probability, as in OpenAI's API."""
        start = 1 if tokens[:1] == [self._llm.token_bos()] else 0
        for position in range(start, len(tokens)):
            one = self.of(tokens[position], position, tokens[start:position])
            yield one if position > start else one | {"token_logprobs": [None], "top_logprobs": [None]}

    def _text(self, tokens: list[int], before: list[int]) -> str:
        return str(self._llm.detokenize(tokens, prev_tokens=before).decode("utf-8", "ignore"))


def entry(token: str, offset: int, logprob: float | None, top: dict[str, float] | None) -> LogProbs:
    return dict(zip(NAMES, ([token], [offset], [logprob], [top]), strict=True))


def joined(entries: Iterable[LogProbs]) -> LogProbs:
    """Merge several entries into one."""
    found = list(entries)
    return {name: [value for one in found for value in one[name]] for name in NAMES}
