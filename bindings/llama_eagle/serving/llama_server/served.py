"""Facts about the served model, which the child knows when it is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.chat_settings import ChatSettings
from llama_eagle.serving.llama_server.options import LITERAL_MARK
from llama_eagle.sessions.chats.literal_texts import LiteralTexts, control_tokens
from llama_eagle.sessions.models import Model
from llama_eagle.sessions.options import LoadOptions
from llama_eagle.sessions.text import Tokenizer


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
