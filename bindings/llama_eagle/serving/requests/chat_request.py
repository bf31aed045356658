"""A request for a chat, read from the body of any API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatRequest:
    """A request for a chat, checked.

    messages: in OpenAI's form, with tools in place of functions; media are marks in the texts. media: their files in
    base64, in the order of the marks. tools: functions that the answer may call, in OpenAI's form; those that
    `tool_choice` leaves out are missing. late_tools: names of those that the beginning of the prompt does not show.
    withdrawn_tools: names of those that it shows, but that may no longer be called. tool_choice: "auto", "none" or
    "required". parallel_calls: None for what the template supports. schema: of a response format. grammar: the
    request's own. variables: for the template, the server's included. thinks: None if the template decides.
    reasoning_format: as in llama-server's API. continued: what of the last message the model continues: "content" or
    "reasoning_content" of an answer, "question" if it is none, or "" (nothing). echoes: the answer begins with what is
    continued. settings: the keys of the child's raw `/completion` that the request sets: `stop`, a list, `n_predict`
    and its aliases, `n_cmpl`, `n_probs`, `reasoning_budget_tokens`, samplers and others. n_alternatives:
    log-probabilities of each token; the child computes at least one. model: as the request names it. has_stream: events
    instead of one answer. has_usage: the stream ends with the usage. has_functions: calls have OpenAI's older form.
    """

    messages: list[dict[str, Any]]
    media: tuple[str, ...] = ()
    tools: list[dict[str, Any]] = field(default_factory=list)
    late_tools: frozenset[str] = frozenset()
    withdrawn_tools: frozenset[str] = frozenset()
    tool_choice: str = "auto"
    parallel_calls: bool | None = None
    schema: dict[str, Any] | bool | None = None
    grammar: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    thinks: bool | None = None
    reasoning_format: str = "auto"
    continued: str = ""
    echoes: bool = False
    adds_generation_prompt: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    n_alternatives: int | None = None
    model: str = ""
    has_stream: bool = False
    has_usage: bool = False
    has_functions: bool = False
