"""Chat templates that llama.cpp knows by name, for `serve -- --no-jinja`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from llama_eagle.errors import UsageError
from llama_eagle.native.calls import library


def apply_named(template: str, messages: Sequence[tuple[str, str]], *, adds_generation_prompt: bool) -> str:
    """Return the prompt of messages, each a role and a text. template: a name, or a template that is one of these.

    Raises `UsageError` for another template.
    """
    library()
    from llama_eagle.native import llama_cpp

    data = [(role.encode(), text.encode()) for role, text in messages]
    chat = (llama_cpp.llama_chat_message * len(data))(*(llama_cpp.llama_chat_message(*each) for each in data))
    size = 1024 + 2 * sum(len(role) + len(text) for role, text in data)
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = llama_cpp.llama_chat_apply_template(
            template.encode(), chat, len(data), adds_generation_prompt, buffer, size
        )
        if n < 0:
            raise UsageError("llama.cpp knows this chat template only as Jinja. Start the server without --no-jinja.")
        if n <= size:
            return buffer.raw[:n].decode()
        size = n
