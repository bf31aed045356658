"""Answers of OpenAI's completions, from the raw steps of their choices."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_eagle.serving.apis.completions.bodies import CompletionRequest
from llama_eagle.serving.ids import new_id
from llama_eagle.serving.llama_server.slots import Step

Body = dict[str, Any]
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True)
class Echo:
    """A prompt that is repeated before its answers. n_hidden: its first tokens that the text does not show: BOS."""

    text: str
    n_hidden: int = 0


class Choices:
    """The choices of one request, as chunks of a stream or as one answer.

    model, build: as the answers name them. echoes: one for each prompt; empty without `echo`.
    """

    def __init__(self, request: CompletionRequest, model: str, build: str, echoes: Sequence[Echo] = ()) -> None:
        self._request = request
        self._echoes = echoes
        self._head = {"model": model, "system_fingerprint": build, "object": "text_completion", "id": new_id("cmpl-")}
        self._begun: set[int] = set()
        self._n_characters: dict[int, int] = defaultdict(int)  # of each choice so far, with its prompt if it is echoed
        self._counted: set[int] = set()  # prompts with their tokens in the usage
        self._usage: Body | None = None
        self._timings: Body = {}

    def chunk(self, step: Step) -> Body:
        """Return the chunk of a step."""
        chunk = self._object([self._choice(step)]) | self._verbose(step)
        if step.timings is not None:
            chunk["timings"] = step.timings
        if step.progress is not None:
            chunk["prompt_progress"] = step.progress
        if step.is_last:
            self._count(step)
            if not self._request.has_usage:
                chunk["usage"] = usage_of(step)
            elif step.timings is not None:
                self._timings = {"timings": step.timings}
        return chunk

    def last_chunk(self) -> Body | None:
        """Return the chunk behind the last choice, if the request wants the usage."""
        if not self._request.has_usage or self._usage is None:
            return None
        return {**self._object([]), "usage": self._usage, **self._timings}

    def whole(self, steps: Sequence[Step]) -> Body:
        """Return the answer with these choices, in their order."""
        choices = [self._choice(step) for step in steps]
        for step in steps:
            self._count(step)
        answer = {**self._object(choices), "usage": self._usage, **self._verbose(steps[0])}
        if steps[0].timings is not None:
            answer["timings"] = steps[0].timings
        return answer

    def _object(self, choices: list[Body]) -> Body:
        return {"choices": choices, "created": int(time.time()), **self._head}

    def _verbose(self, step: Step) -> Body:
        return {"__verbose": step.event} if self._request.is_verbose else {}

    def _choice(self, step: Step) -> Body:
        index, text = step.choice, step.text
        entries = step.probabilities
        prompt = step.event.get("prompt_probabilities")
        if self._echoes:
            echo = self._echoes[index // self._request.n]
            if index not in self._begun:
                self._begun.add(index)
                text = echo.text + text
                self._n_characters[index] = len(echo.text)
            if prompt is not None:
                entries = [*_shown(prompt, echo.n_hidden), *(entries or ())]
                self._n_characters[index] = 0
        logprobs = None if not entries else self._logprobs(index, entries)
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason(step)}

    def _logprobs(self, index: int, entries: list[Body]) -> Body:
        """Return llama.cpp's list of entries and OpenAI's four lists."""
        n_top = self._request.n_top
        if n_top is not None:
            entries = [{**entry, _top_key(entry): entry[_top_key(entry)][:n_top]} for entry in entries]
        rows = []
        for entry in entries:
            name, value = token_name(entry), _value(entry)
            top = None if value is None else alternatives(entry, name, value)
            rows.append((name, value, top, self._n_characters[index]))
            self._n_characters[index] += n_begun(entry["bytes"])
        return {"content": entries, **dict(zip(LISTS, map(list, zip(*rows, strict=True)), strict=True))}

    def _count(self, step: Step) -> None:
        """Add the tokens of a choice to the usage, and those of its prompt once."""
        usage = usage_of(step)
        is_new = step.choice // self._request.n not in self._counted
        self._counted.add(step.choice // self._request.n)
        if self._usage is None:
            self._usage = usage
            return
        total = self._usage
        total["completion_tokens"] += usage["completion_tokens"]
        if is_new:
            total["prompt_tokens"] += usage["prompt_tokens"]
            total["prompt_tokens_details"]["cached_tokens"] += usage["prompt_tokens_details"]["cached_tokens"]
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]


def usage_of(step: Step) -> Body:
    """Return the usage of the choice that ends with this step."""
    return {
        "completion_tokens": step.n_tokens,
        "prompt_tokens": step.n_prompt,
        "total_tokens": step.n_prompt + step.n_tokens,
        "prompt_tokens_details": {"cached_tokens": step.n_cached or 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def finish_reason(step: Step) -> str | None:
    if not step.is_last:
        return None
    return "stop" if step.stop in ("eos", "word") else "length"


def token_name(entry: Body) -> str:
    """Return the name of a token in OpenAI's lists: its text, or its bytes if they are no whole characters."""
    text = str(entry["token"])
    if len(text.encode("utf-8", "replace")) == len(entry["bytes"]):
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry["bytes"])


def n_begun(data: Sequence[int]) -> int:
    """Return the number of characters that begin in these bytes: a token may hold a part of one."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def alternatives(entry: Body, name: str, value: float) -> dict[str, float | None]:
    """Return the likeliest tokens by their names, and the token itself. Of several with one name, the likeliest."""
    found: dict[str, float | None] = {}
    for other in entry[_top_key(entry)]:
        found.setdefault(token_name(other), _value(other))
    found[name] = value
    return found


def _value(entry: Body) -> float | None:
    """Return the logarithm of a token's probability; None for the first token of a prompt."""
    if "prob" in entry:
        return math.log(entry["prob"]) if entry["prob"] > 0 else None
    value: float | None = entry["logprob"]
    return value


def _top_key(entry: Body) -> str:
    return "top_probs" if "top_probs" in entry else "top_logprobs"


def _shown(prompt: Sequence[Body], n_hidden: int) -> list[Body]:
    """Return the entries of a prompt's tokens that its text shows. The first has no probability, as in OpenAI's API."""
    shown = list(prompt[n_hidden:])
    if shown:
        shown[0] = {**shown[0], "logprob": None, "top_logprobs": []}
    return shown
