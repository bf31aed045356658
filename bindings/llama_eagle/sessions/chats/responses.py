"""Results of calls as llama.cpp's server shows them (common/parsers/gemma4.cpp and deepseek.cpp).

Older templates of Gemma 4 read results in the call's message, under `tool_responses`. They print others as turns of
their own, a form that the model does not know. Newer ones begin no turn of the model after the result of an answer with
text. DeepSeek V4 reads results without ids, in the order of the calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from llama_eagle.sessions.chats.calls import read_json

Message = dict[str, Any]
OF_GEMMA_4 = "'<|tool_call>call:'"  # in all of its templates
OF_NEWER = "{#- OpenAI Chat Completions:"  # in templates that read messages with the role "tool"
OF_DEEPSEEK = ("dsml_token", "DSML", "tool_calls")  # in its templates
OF_V3 = "function_calls"  # in those of DeepSeek V3.2 alone
END, TURN = "<turn|>\n", "<|turn>model\n"


def with_responses(template: str, messages: Sequence[Message]) -> list[Message]:
    """Return messages with results in the calls' messages, if the template is an older one of Gemma 4.

    The answer that follows the results joins them: it is the end of the same turn. Results for DeepSeek V4 are sorted.
    """
    if is_deepseek_v4(template):
        return _sorted(messages)
    if OF_GEMMA_4 not in template or OF_NEWER in template:
        return list(messages)
    found: list[Message] = []
    for message in _sorted(messages):
        last = found[-1] if found else {}
        is_open = bool(last.get("tool_calls")) and "content" not in last
        if is_open and message["role"] == "tool":
            responses = last.setdefault("tool_responses", [])
            responses.append(_response(last["tool_calls"][len(responses) :], message))
        elif is_open and message["role"] == "assistant" and message["content"] and not message.get("tool_calls"):
            last["content"] = message["content"]
        elif message.get("tool_calls"):
            found.append({key: value for key, value in message.items() if key != "content"})
        else:
            found.append(message)
    return found


def is_deepseek_v4(template: str) -> bool:
    return all(sign in template for sign in OF_DEEPSEEK) and OF_V3 not in template


def with_turn(template: str, prompt: str) -> str:
    """Return a prompt for an answer with the beginning of its turn."""
    return prompt + TURN if OF_GEMMA_4 in template and prompt.endswith(END) else prompt


def _sorted(messages: Sequence[Message]) -> list[Message]:
    """Sort results by their calls, unless an id is missing or is not that of one call."""
    found: list[Message] = []
    for is_result, group in itertools.groupby(messages, lambda message: message["role"] == "tool"):
        run = list(group)
        if is_result and found:
            calls = [call.get("id") for call in found[-1].get("tool_calls", ())]
            ids = [message.get("tool_call_id") for message in run]
            if set(ids) <= set(calls) and len(set(ids)) == len(ids) and len(set(calls)) == len(calls):
                run.sort(key=lambda message: calls.index(message.get("tool_call_id")))
        found += run
    return found


def _response(calls: Sequence[Message], result: Message) -> Message:
    """Return a result with the name of its function. calls: those without a result, in the order of their results."""
    content = result["content"]
    try:
        response = read_json(content) if isinstance(content, str) else content
    except ValueError:
        response = content
    return {"name": calls[0]["function"]["name"] if calls else result.get("tool_call_id", ""), "response": response}
