"""Facts about the served model and the options of its chats, which decide how a chat becomes a prompt."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.extra_args import FALSE, TRUE, normalized
from llama_eagle.serving.llama_server.options import LITERAL_MARK
from llama_eagle.sessions.chats.literal_texts import LiteralTexts, control_tokens
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.text import Tokenizer


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


@dataclass(frozen=True)
class Served:
    """The served model. names: its aliases, too. tool_template: for chats with tools, "" if it is the same.

    adds_bos: the tokenizer puts `bos` before a prompt; bos_ids: its id then. n_vocab: number of tokens. infill: tokens
    for a gap, by the names that `InfillTokens` reads. n_ctx: of a slot, in tokens. media_marker: text in place of a
    medium. build: the child's name of its build. defaults: of the settings of a request.
    """

    name: str
    names: tuple[str, ...]
    template: str
    tool_template: str
    bos: str
    eos: str
    adds_bos: bool
    bos_ids: tuple[int, ...]
    n_vocab: int
    infill: Mapping[str, int]
    n_ctx: int
    n_slots: int
    has_images: bool
    has_sound: bool
    has_video: bool
    media_marker: str
    build: str
    defaults: Mapping[str, Any]
    chats: ChatSettings
    literals: LiteralTexts | None = None
    n_adapters: int = 0

    def template_for(self, *, has_tools: bool) -> str:
        return self.tool_template if has_tools and self.tool_template else self.template


class Settings(slots.Prefixed, Protocol):
    @property
    def chats(self) -> ChatSettings: ...


class Front(slots.Front, Protocol):
    """The part of the front's application that knows the model. model: None before it has been read."""

    model: Served | None

    @property
    def settings(self) -> Settings: ...


async def served(front: Front) -> Served:
    """Return the served model; it is read once, because it stays the same, also after it was asleep.

    Raises `Refusal` as long as it is being loaded.
    """
    if front.model is None:
        front.model = await _read(front)
    return front.model


async def _read(front: Front) -> Served:
    properties = await slots.ask_json(front, "GET", "/props")
    listed = await slots.ask_json(front, "GET", "/v1/models")
    adapters = await slots.ask_json(front, "GET", "/lora-adapters")
    first = await slots.ask_json(front, "POST", "/tokenize", {"content": "", "add_special": True, "with_pieces": True})
    hides_control = front.settings.chats.hides_control
    modalities, name = properties["modalities"], properties["model_alias"]
    bos = properties["bos_token"]
    return Served(
        name=name,
        names=(name, *(alias for model in listed["data"] for alias in model.get("aliases", ()))),
        template=properties["chat_template"],
        tool_template=properties.get("chat_template_tool_use", ""),
        bos=bos,
        eos=properties["eos_token"],
        adds_bos=bool(first["tokens"]),
        bos_ids=tuple(token["id"] for token in first["tokens"][:1]),
        n_vocab=listed["data"][0]["meta"]["n_vocab"],
        infill=properties.get("fim_tokens", {}),
        n_ctx=properties["default_generation_settings"]["n_ctx"],
        n_slots=properties["total_slots"],
        has_images=modalities["vision"],
        has_sound=modalities["audio"],
        has_video=modalities["video"],
        media_marker=properties["media_marker"],
        build=properties["build_info"],
        defaults=properties["default_generation_settings"]["params"],
        chats=front.settings.chats,
        literals=await asyncio.to_thread(_literals, properties["model_path"]) if hides_control else None,
        n_adapters=len(adapters),
    )


def _literals(path: str) -> LiteralTexts:
    """Return the tokenizer of a model. Only the vocabulary is loaded."""
    vocabulary = Model(path, LoadOptions(vocab_only=True))
    return LiteralTexts(Tokenizer(vocabulary), control_tokens(vocabulary.vocab), LITERAL_MARK)
