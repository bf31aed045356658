"""Pieces of an answer to a chat, for every API that the front speaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CallPiece:
    """A piece of a tool call. index: the call's number in its choice. The first piece has `id` and `name`."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class End:
    """The end of a choice. reason: "stop", "length" or "tool_calls", as OpenAI's API names them.

    stop_text: the text of the request's `stop` that ended it. n_tokens: of the whole answer; n_reasoning of them are
    reasoning. timings: the child's, with the counts of drafted and accepted tokens.
    """

    reason: str
    stop_text: str | None = None
    n_tokens: int = 0
    n_reasoning: int = 0
    timings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """The new part of a choice. One step of the engine gives one piece, which may be empty but for its counts.

    choice: the choice's number, from 0. reasoning, content, calls: what is new. logprobs: the entries of these tokens
    in the form of OpenAI's `logprobs.content`, if the request asks for them. n_prompt: tokens of the prompt, n_cached
    of them from earlier requests. progress: of the prompt, before the first token, if the request asks for it. end: set
    in the last piece of the choice. timings: the child's so far, if the request asks for timings per token. raw: the
    child's object, if the request is verbose.
    """

    choice: int = 0
    reasoning: str = ""
    content: str = ""
    calls: tuple[CallPiece, ...] = ()
    logprobs: list[dict[str, Any]] | None = None
    n_prompt: int = 0
    n_cached: int = 0
    progress: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    end: End | None = None
    raw: dict[str, Any] | None = None
