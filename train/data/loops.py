"""Answers without their loops: small models often repeat a passage until the token limit.

Of 380,000 tokens that SmolLM2-135M-Instruct wrote without this, 62 % were such repetitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from contextlib import closing

from llama_eagle.serving.prompts import Record

LOOP_LENGTH = 80  # characters that the text ends with, and contains twice before
CHECK_EVERY = 16  # events
TEXTS = ("content", "reasoning_content", "text")


def loop_start(text: str) -> int | None:
    """Return the index of the first repetition if `text` ends in a loop, otherwise None."""
    end = text[-LOOP_LENGTH:]
    second = text.find(end, text.find(end) + 1)
    return second if 0 < second < len(text) - LOOP_LENGTH else None


def answer_without_loop(events: Generator[Record, None, None]) -> Record:
    """Collect a streamed answer of the chat or text API in the form of a whole one; end it where a loop begins."""
    texts: dict[str, str] = defaultdict(str)
    n_tokens, reason = 0, "length"
    with closing(events):
        for n_tokens, event in enumerate(events, 1):
            for choice in event["choices"]:
                delta = choice.get("delta", choice)
                for name in (name for name in TEXTS if delta.get(name)):
                    texts[name] += delta[name]
                reason = choice["finish_reason"] or reason
            if n_tokens % CHECK_EVERY == 0 and _cut_loops(texts):
                break
    choice = {
        "message": {"role": "assistant", "content": "", **texts},
        "text": texts.get("text", ""),
        "finish_reason": reason,
    }
    return {"choices": [choice], "usage": {"completion_tokens": n_tokens}}


def _cut_loops(texts: dict[str, str]) -> bool:
    """Shorten each text that ends in a loop to its first passage; True if there was one."""
    starts = {name: start for name, text in texts.items() if (start := loop_start(text)) is not None}
    texts.update({name: texts[name][:start] for name, start in starts.items()})
    return bool(starts)
