"""Chats whose messages a template does not take as they are: no text of theirs is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.upstream import source_folder
from llama_eagle.sessions.chats.abilities import TOOL
from llama_eagle.sessions.chats.messages import render_chat

JOINING = ["google-gemma-2-2b-it", "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"]
USER = {"role": "user", "content": "Question"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "tool1", "arguments": '{"arg": "é 12345"}'}}


def uneven_chats(n: int) -> Iterator[list[dict[str, Any]]]:
    """Yield chats with several messages of one role in a row, reminders, later rules, and calls that were cut."""
    draw = random.Random(n)

    def content(name: str) -> Any:
        is_text = draw.random() < 0.6
        return name if is_text else [{"type": "text", "text": f"{name}{i}"} for i in "ab"[: draw.choice((1, 2))]]

    for _ in range(n):
        chat = [{"role": "system", "content": content("RULES")}] if draw.random() < 0.4 else []
        for turn in range(draw.choice((1, 2, 3))):
            chat += [{"role": "user", "content": content(f"Q{turn}")} for _ in range(draw.choice((1, 1, 2, 3)))]
            if draw.random() < 0.2:
                chat.append({"role": "system", "content": f"MORE{turn}"})
            if draw.random() < 0.4:
                chat.append({"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": f"call0000{turn}"}]})
                if draw.random() < 0.7:
                    chat.append({"role": "tool", "content": content(f"R{turn}"), "tool_call_id": f"call0000{turn}"})
            else:
                chat += [{"role": "assistant", "content": content(f"A{turn}")} for _ in range(draw.choice((1, 2)))]
        yield [*chat, USER]


def texts_of(messages: list[Any]) -> list[str]:
    contents = [each["content"] for each in messages if each["content"] and each["role"] != "system"]
    return [part["text"] for parts in contents for part in (parts if isinstance(parts, list) else [{"text": parts}])]


@pytest.mark.parametrize("name", JOINING)
def test_no_text_is_lost(name: str) -> None:
    template = (source_folder() / "models/templates" / f"{name}.jinja").read_text()
    variables = {"bos_token": "", "eos_token": "<|im_end|>", "add_generation_prompt": True}
    for messages in uneven_chats(30):
        tools = [TOOL] if any("tool_calls" in message for message in messages) else None
        prompt = render_chat(template, {**variables, "tools": tools, "messages": messages}, name)
        assert all(text in prompt for text in texts_of(messages)), messages
