"""The number of tokens of an answer's reasoning."""

from __future__ import annotations


def count_reasoning(text: str, reasoning: str, ends: list[int]) -> int:
    """Return the number of tokens of `reasoning`, which may have several parts in `text` with markup between them.

    ends: length of the text after each token.
    """
    spans = list(zip([0, *ends], ends, strict=False))
    n = at = token = 0
    while reasoning:
        begin, size = _longest_beginning(text, reasoning, at)
        reasoning = reasoning[max(1, size) :]  # a character that is not in the text was added by the parser
        if not size:
            continue
        at = begin + size
        while token < len(spans) and spans[token][1] <= begin:
            token += 1
        while token < len(spans) and spans[token][0] < at:
            n += _is_within(text, spans[token], begin, at)
            token += 1
    return n


def _longest_beginning(text: str, part: str, at: int) -> tuple[int, int]:
    """Return where the longest beginning of `part` that is in `text` behind `at` begins, and its length."""
    found, n_least, n_most = -1, 0, min(len(part), len(text) - at)
    n = n_most  # usually all of it
    while n_least < n_most:
        begin = text.find(part[:n], at)
        if begin < 0:
            n_most = n - 1
        else:
            found, n_least = begin, n
        n = n_least + (n_most - n_least + 1) // 2
    return found, n_least


def _is_within(text: str, span: tuple[int, int], begin: int, end: int) -> bool:
    """Return True if a token is within a part of the text, or shares more with it than the space before a tag."""
    first, last = span
    shared = text[max(first, begin) : min(last, end)]
    return (begin <= first and last <= end) or bool(shared.strip(" \t\r\n"))
