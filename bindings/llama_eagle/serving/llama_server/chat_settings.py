"""Settings of chats in llama-server's arguments and environment: they decide how a chat becomes a prompt."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llama_eagle.serving.llama_server.extra_args import FALSE, TRUE, normalized


@dataclass(frozen=True)
class ChatSettings:
    """Those of llama-server's arguments that decide about chats.

    has_jinja: False for --no-jinja. reasoning_format: "none", "auto", "deepseek" or "deepseek-legacy". thinks: None if
    the template decides. variables: of the template, for all requests. continues_answers: the model continues a last
    answer. is_parsed: False if answers are text alone. budget: tokens of reasoning, -1 for no limit; budget_message is
    inserted at its end. media_path: folder of file:// addresses. hides_control: control tokens in messages are text.
    """

    has_jinja: bool = True
    reasoning_format: str = "auto"
    thinks: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=lambda: {"preserve_reasoning": True})
    continues_answers: bool = True
    is_parsed: bool = True
    budget: int = -1
    budget_message: str = ""
    media_path: str = ""
    hides_control: bool = False


_FLAGS = {"--jinja": "has_jinja", "--prefill-assistant": "continues_answers", "--skip-chat-parsing": "is_parsed"}
_VALUES = {
    "--reasoning-format": "reasoning_format", "--reasoning-budget-message": "budget_message",
    "--media-path": "media_path",
}  # fmt: skip
_ENVIRONMENT = {  # variable -> argument
    "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_REASONING": "--reasoning",
    "LLAMA_ARG_REASONING_EFFORT": "--reasoning-effort",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_THINK_BUDGET_MESSAGE": "--reasoning-budget-message",
    "LLAMA_ARG_CHAT_TEMPLATE_KWARGS": "--chat-template-kwargs",
}
_ENVIRONMENT_FLAGS = ("jinja", "prefill-assistant", "skip-chat-parsing", "reasoning-preserve")


def chat_settings(extra: Sequence[str], environment: Mapping[str, str], *, hides_control: bool) -> ChatSettings:
    """Return the settings of llama-server's arguments, before which those of its environment are read.

    llama-server itself refuses arguments with wrong values.
    """
    found = ChatSettings(hides_control=hides_control)
    arguments = [*_from_environment(environment), *extra]
    for argument, value in itertools.pairwise([*arguments, ""]):
        found = _with_argument(found, normalized(argument), value)
    return found


def _from_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, argument in _ENVIRONMENT.items():
        if name in environment:
            yield from (argument, environment[name])
    for flag in _ENVIRONMENT_FLAGS:
        name = flag.upper().replace("-", "_")
        given = environment.get(f"LLAMA_ARG_{name}", "")
        if given in FALSE or f"LLAMA_ARG_NO_{name}" in environment:
            yield f"--no-{flag}"
        elif given in TRUE:
            yield f"--{flag}"


def _with_argument(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """Return the settings with an argument of llama-server, if it is about chats."""
    flag = name.replace("--no-", "--")
    if flag in _FLAGS:
        is_on = (flag == name) is not (flag == "--skip-chat-parsing")
        return replace(settings, **{_FLAGS[flag]: is_on})  # type: ignore[arg-type]
    if name in _VALUES:
        return replace(settings, **{_VALUES[name]: value})  # type: ignore[arg-type]
    if name == "--reasoning-budget":
        return replace(settings, budget=int(value))
    if name in ("--reasoning", "-rea") and value in TRUE | FALSE:
        return replace(settings, thinks=value in TRUE)
    more: dict[str, Any] = {}
    if flag == "--reasoning-preserve":
        more = {"preserve_reasoning": flag == name}
    elif name == "--chat-template-kwargs":
        more = json.loads(value)
    elif name == "--reasoning-effort":
        more = {"reasoning_effort": None if value == "default" else value}
    given = {**settings.variables, **more}
    return replace(settings, variables={key: each for key, each in given.items() if each is not None})
