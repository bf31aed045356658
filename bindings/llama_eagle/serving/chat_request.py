"""What a request for a chat asks for, read from the body of any API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatRequest:
    """A request for a chat, checked.

    messages: in OpenAI's form; parts of media are replaced by the marks that the child knows them by. media: their
    bytes in base64, in the order of the marks. tools: functions that the answer may call, in OpenAI's form; a function
    that `tool_choice` names is the only one. tool_choice: "auto", "none" or "required". parallel_calls: None for what
    the template supports. schema: of a response format. grammar: the request's own. variables: for the template.
    reasoning_format: as in llama-server's API. is_continued: the answer goes on with the last message. settings: the
    keys of the child's raw `/completion` that the request sets: `stop`, `n_predict`, `n_probs`, samplers and others.
    model: as the request names it. has_stream: events instead of one answer. has_usage: the stream ends with the usage.
    """

    messages: list[dict[str, Any]]
    media: tuple[str, ...] = ()
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str = "auto"
    parallel_calls: bool | None = None
    schema: dict[str, Any] | bool | None = None
    grammar: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    thinks: bool | None = None
    reasoning_format: str = "auto"
    is_continued: bool = False
    adds_generation_prompt: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    has_stream: bool = False
    has_usage: bool = False
