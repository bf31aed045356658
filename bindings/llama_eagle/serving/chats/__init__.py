"""Answers to chats: a request becomes a prompt for the child's slots, and their text becomes pieces of an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llama_eagle.serving.chats.answer import Answer
from llama_eagle.serving.chats.prepare import Body, prepare
from llama_eagle.serving.ids import new_id
from llama_eagle.serving.llama_server import slots
from llama_eagle.serving.llama_server.served import served

if TYPE_CHECKING:
    from llama_eagle.serving.http import Front

__all__ = ["Answer", "count_tokens", "open_chat", "prompt"]


async def open_chat(front: Front, body: Body) -> Answer:
    """Begin an answer to a body of OpenAI's chat completions, and return when its prompt is being read.

    Raises `Refusal` for a request that is wrong or too long.
    """
    model = await served(front)
    chat = await asyncio.to_thread(prepare, model, body)
    answer_id = new_id("chatcmpl-")
    return Answer(model, chat, await slots.start(front, {**chat.raw, "completion_id": answer_id}), answer_id)


async def prompt(front: Front, body: Body) -> str:
    """Return the prompt of a chat. Raises `Refusal`."""
    model = await served(front)
    text = (await asyncio.to_thread(prepare, model, {**body, "n": None, "n_cmpl": None})).prompt  # of one answer
    return model.literals.restored(text) if model.literals else text


async def count_tokens(front: Front, body: Body) -> int:
    """Return the number of tokens of a chat's prompt. Raises `Refusal`."""
    chat = await asyncio.to_thread(prepare, await served(front), body)
    if chat.request.media:  # the child counts the tokens of media when it evaluates them, and keeps them
        raw = {"prompt": chat.raw["prompt"], "n_predict": 0}
        return int((await slots.ask_json(front, "POST", slots.PATH, raw))["tokens_evaluated"])
    given = chat.raw["prompt"]
    if isinstance(given, list):
        return len(given)
    return len((await slots.ask_json(front, "POST", "/tokenize", {"content": given, "add_special": True}))["tokens"])
