"""Last messages of a conversation, which the model continues, and last answers that are empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.sessions.chats.messages import render_chat, text_of

Message = dict[str, Any]
CONTENT, REASONING = "content", "reasoning_content"  # what of a last answer is continued
QUESTION = "question"  # in their place if the last message is no answer
MARK = "EAGLE_END_OF_THE_LAST_MESSAGE"
START, END = "<|start|>assistant", "<|end|>"  # of gpt-oss
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
OPEN, CLOSE = "<think>", "</think>"


def render_begun(template: str, variables: Mapping[str, Any], where: object) -> str:
    """Return the prompt up to the end of the last message, as transformers' `continue_final_message` does.

    Raises the errors of `render_chat`, and `UsageError` if the template does not show the message.
    """
    *before, last = variables["messages"]
    content = last.get("content") or ""
    if isinstance(content, str):
        marked: Any = f"{content}{MARK} "
    else:
        n = next((i for i in reversed(range(len(content))) if content[i]["type"] == "text"), len(content))
        text = content[n]["text"] if n < len(content) else ""
        marked = [*content[:n], {"type": "text", "text": f"{text}{MARK} "}, *content[n + 1 :]]
    found = render_chat(template, {**variables, "messages": [*before, {**last, "content": marked}]}, where)
    text, mark, rest = found.rpartition(MARK)
    if not mark:
        raise UsageError("the chat template does not show the last message. Leave out continue_final_message.")
    return text if rest.startswith(" ") else text.rstrip()  # the template trims texts


def without_empty_end(messages: Sequence[Message]) -> list[Message]:
    """Return messages without empty answers at the end: there is nothing to continue."""
    found = list(messages)
    while len(found) > 1 and _is_empty(found[-1]):
        found.pop()
    return found


def _is_empty(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and not any(message.get(key) for key in (CONTENT, REASONING, "tool_calls"))


def read_begun(template: str, message: Message, asked: Any = None) -> tuple[Message, str]:
    """Return a last answer with its thoughts apart, and what of it the model continues: `CONTENT` or `REASONING`.

    asked: one of them, if the request has a choice; thoughts that have ended are not continued. Templates write the
    tags of thoughts themselves: an empty thought would precede thoughts in the content.
    """
    content = text_of(message.get("content"))
    if not message.get(REASONING):
        found, is_closed = None, False
        if ANALYSIS in template:
            found, is_closed = _of_channels(content)
        elif content.startswith(OPEN) and OPEN in template:
            found, is_closed = _of_tags(content)
        if found is not None:
            message = {**message, **found}
            content = found[CONTENT]
            if is_closed:
                return message, CONTENT
    if asked in (CONTENT, REASONING):
        return message, asked
    return message, REASONING if message.get(REASONING) and not content else CONTENT


def _of_tags(text: str) -> tuple[Message, bool]:
    """Return thoughts and content of a text that begins with thoughts, and True if the thoughts have ended."""
    thoughts, close, rest = text.removeprefix(OPEN).partition(CLOSE)
    thoughts = thoughts.lstrip("\n")
    if close:  # templates end thoughts with a line
        thoughts = thoughts.rstrip("\n")
    return {REASONING: thoughts, CONTENT: rest.lstrip("\n")}, bool(close)


def _of_channels(text: str) -> tuple[Message | None, bool]:
    """Return the same for channels of gpt-oss; None if there are others than those of thoughts and of the content."""
    text = text.removeprefix(START)
    if text.startswith(FINAL):
        return {CONTENT: text.removeprefix(FINAL)}, False
    if not text.startswith(ANALYSIS):
        return None, False
    thoughts, end, rest = text.removeprefix(ANALYSIS).partition(END)
    rest = rest.removeprefix(START)
    if rest and not rest.startswith(FINAL):
        return None, False
    return {REASONING: thoughts, CONTENT: rest.removeprefix(FINAL)}, bool(end)
