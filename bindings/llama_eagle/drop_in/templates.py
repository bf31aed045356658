"""Chat handlers of the parent for a model's own chat templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llama_cpp import StoppingCriteriaList
from llama_cpp.llama_chat_format import ChatFormatterResponse, chat_formatter_to_chat_completion_handler

from llama_eagle.arguments import require_text
from llama_eagle.sessions.chats.messages import render_chat

PREFIX = "tokenizer."
KEY = f"{PREFIX}chat_template"


@dataclass(frozen=True)
class Formatter:
    """Replacement of the parent's `Jinja2ChatFormatter`, which runs the template in this process and without limits."""

    template: str
    path: str
    bos_token: str
    eos_token: str
    eos_id: int

    def __call__(self, **variables: Any) -> ChatFormatterResponse:
        tokens = {"bos_token": self.bos_token, "eos_token": self.eos_token, "add_generation_prompt": True}
        return ChatFormatterResponse(
            prompt=require_text("messages", render_chat(self.template, {**tokens, **variables}, self.path)),
            stop=[self.eos_token],
            stopping_criteria=StoppingCriteriaList([lambda tokens, _: tokens[-1] == self.eos_id]),
            added_special=True,
        )


@dataclass(frozen=True)
class Template:
    """A model's chat template, with the texts of its tokens for the beginning and the end of a text."""

    text: str
    bos: str
    eos: str


def is_template(key: str) -> bool:
    return key == KEY or key.startswith(f"{KEY}.")


def handlers(llm: Any, metadata: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the handlers with the names that the parent uses."""
    for key in filter(is_template, metadata):
        name = "chat_template.default" if key == KEY else key.removeprefix(PREFIX)
        template = template_of(llm, metadata, name)
        formatter = Formatter(template.text, llm.model_path, template.bos, template.eos, llm.token_eos())
        yield name, chat_formatter_to_chat_completion_handler(formatter)


def template_of(llm: Any, metadata: Mapping[str, str], name: str) -> Template:
    """Return the template of the handler `name`; the default template for handlers of the parent."""

    def text_of(token: int) -> str:
        return "" if token == -1 else str(llm._model.token_get_text(token))

    text = metadata.get(f"{PREFIX}{name}", metadata.get(KEY, ""))
    return Template(text, text_of(llm.token_bos()), text_of(llm.token_eos()))
