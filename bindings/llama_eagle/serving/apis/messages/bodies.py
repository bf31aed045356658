"""Bodies of Anthropic's Messages API as bodies of OpenAI's chats.

Parts without an equivalent are refused by name, or become texts. docs/server.md lists what is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llama_eagle.serving.api_errors import Refusal, require
from llama_eagle.serving.apis.messages.tool_changes import OfferedTools
from llama_eagle.serving.requests.fields import (
    Body,
    bare_id,
    object_at,
    response_format,
    text_at,
    without_billing,
)
from llama_eagle.serving.requests.json_body import without_nulls

DEFAULT_LIMIT = 4096  # tokens of an answer; Anthropic's API has no default
DEFAULT_BUDGET = 10000  # tokens of thoughts
UNSUPPORTED = ("container", "mcp_servers")
THINKING = ("enabled", "disabled", "adaptive")
BLOCKS = ("text", "thinking", "redacted_thinking", "image", "tool_use", "tool_result")
IMAGES = ("base64", "url")
CLEARS_THOUGHTS = "clear_thinking_"  # templates drop earlier thoughts themselves
TEMPLATE_EFFORTS = {"max": "high", "xhigh": "high"}  # templates know no more than "high"
READ = {  # keys that are read here, or have no effect
    "system", "messages", "tools", "tool_choice", "stop_sequences", "max_tokens", "max_completion_tokens", "metadata",
    "thinking", "output_config", "output_format", "n", "n_cmpl",
}  # fmt: skip


def chat_body(given: Body) -> Body:
    """Return the body of the same chat in OpenAI's form. Raises `Refusal` for what this server does not read."""
    body = without_nulls(given)
    _check(body)
    tools = OfferedTools(body.get("tools", []))
    messages = [*_system(body.get("system")), *_messages(body.get("messages"), tools)]
    limit = body.get("max_completion_tokens", body.get("max_tokens", DEFAULT_LIMIT))
    found = {
        "messages": messages, "max_tokens": limit, **tools.chat_tools(), **_tool_choice(body.get("tool_choice")),
        **_formats(body), **_thoughts(body),
    }  # fmt: skip
    if "stop_sequences" in body:
        found["stop"] = body["stop_sequences"]
    return {key: value for key, value in body.items() if key not in READ} | found


def _check(body: Body) -> None:
    """Refuse parameters that would change the answer and have no equivalent."""
    for key in UNSUPPORTED:
        require(not body.get(key), f"this server does not support '{key}': leave it out")
    for key in ("context_management", "output_config"):
        require(isinstance(body.get(key, {}), dict), f"'{key}' is no object")
    if "thinking" in body:
        kind, budget = text_at(body["thinking"], "type"), object_at(body, "thinking").get("budget_tokens")
        require(kind in THINKING, f"'thinking' has the type '{kind}', which is not enabled, disabled or adaptive")
        is_whole = isinstance(budget, int) and not isinstance(budget, bool)
        require(budget is None or is_whole, "'thinking.budget_tokens' is no whole number")
    for edit in _objects(object_at(body, "context_management"), "edits"):
        kind = text_at(edit, "type")
        require(
            kind.startswith(CLEARS_THOUGHTS),
            f"'context_management' has an edit of type '{kind}', which this server does not support",
        )
    require(isinstance(body.get("tools", []), list), "'tools' is no list")
    for tool in body.get("tools", []):
        kind = text_at(tool, "type")
        require(
            kind in ("", "custom", "function"),
            f"the tool '{text_at(tool, 'name')}' has the type '{kind}', which this server does not know: leave it out, "
            "or describe it with an input_schema",
        )


def _objects(body: Body, key: str) -> list[Any]:
    found = body.get(key)
    return found if isinstance(found, list) else []


def _system(given: Any) -> list[Body]:
    """Return the system message; none without a text: then the default of the template applies."""
    if given is None:
        return []
    _require_texts(given, "'system'")
    content = without_billing(given)
    texts = [content] if isinstance(content, str) else [text_at(part, "text") for part in content]
    return [{"role": "system", "content": content}] if any(texts) else []


def _require_texts(content: Any, where: str) -> None:
    require(isinstance(content, str | list), f"{where} is neither a text nor a list of blocks")
    for block in content if isinstance(content, list) else ():
        kind = text_at(block, "type")
        require(kind == "text", f"{where} has a block of type '{kind}', which this server does not read")


def _messages(given: Any, tools: OfferedTools) -> Iterator[Body]:
    require(given is not None, "'messages' is required")
    require(isinstance(given, list), "'messages' is no list")
    for number, message in enumerate(given, start=1):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            blocks = [_read(block, f"message {number}", tools) for block in content]
            yield from _split(text_at(message, "role"), blocks)
        elif content is not None or text_at(message, "role") != "assistant":  # an answer without content adds nothing
            yield message


def _split(role: str, blocks: list[Body]) -> Iterator[Body]:
    """Yield results as messages of their own, and what is before, between and behind them, in their order."""
    rest: list[Body] = []
    for block in blocks:
        if block["type"] != "tool_result":
            rest.append(block)
            continue
        yield from _message(role, rest)
        rest = []
        yield {"role": "tool", "tool_call_id": block["id"], "content": block["content"]}
    yield from _message(role, rest)


def _message(role: str, blocks: list[Body]) -> Iterator[Body]:
    """Yield the message of these blocks, if they have anything that a prompt shows."""
    parts = [block for block in blocks if block["type"] in ("text", "image_url")]
    calls = [block["call"] for block in blocks if block["type"] == "tool_use"]
    thoughts = "\n\n".join(block["thinking"] for block in blocks if block["type"] == "thinking" and block["thinking"])
    if parts or calls or thoughts:
        more = ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thoughts} if thoughts else {})
        yield {"role": role, "content": parts or "", **more}


def _read(block: Any, where: str, tools: OfferedTools) -> Body:
    """Return a block in a common form: a part of a chat's content, thoughts, a call or a result."""
    kind = text_at(block, "type")
    if kind in ("document", "search_result"):
        return _text(_document(block) if kind == "document" else _search_result(block))
    if kind in ("tool_addition", "tool_removal"):
        return _text(tools.change(block))
    require(kind in BLOCKS, f"{where} has a block of type '{kind}', which this server does not read")
    if kind == "image":
        source = text_at(block.get("source"), "type")
        require(source in IMAGES, f"{where} has an image of type '{source}', which this server does not read")
        return _image(block["source"])
    if kind == "tool_use":
        return {"type": kind, "call": _call(block)}
    if kind == "tool_result":
        return {"type": kind, "id": bare_id(text_at(block, "tool_use_id")), "content": _result(block, tools)}
    return {"type": kind, kind: block.get(kind)} if kind == "text" else {"type": kind, "thinking": text_at(block, kind)}


def _text(text: str) -> Body:
    return {"type": "text", "text": text}


def _image(source: Body) -> Body:
    data = f"data:{source.get('media_type', 'image/jpeg')};base64,{text_at(source, 'data')}"
    return {"type": "image_url", "image_url": {"url": text_at(source, "url") if source["type"] == "url" else data}}


def _call(block: Body) -> Body:
    given = block.get("input")
    text = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False, separators=(",", ":"))
    function = {"name": text_at(block, "name"), "arguments": text}
    return {"id": bare_id(text_at(block, "id")), "type": "function", "function": function}


def _result(block: Body, tools: OfferedTools) -> str | list[Body]:
    """Return the content of a result. References to tools in a row become one text with their definitions."""
    content = block.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    found: list[Body] = []
    names: list[str] = []
    for part in content:
        if text_at(part, "type") == "tool_reference":
            names.append(text_at(part, "tool_name"))
            continue
        if names:
            found.append(_text(tools.add(names)))
            names = []
        found.append(_part_of_result(part))
    return [*found, *([_text(tools.add(names))] if names else [])] or ""


def _part_of_result(block: Any) -> Body:
    """Return a part of a result; a text in place of one that is not read, which no user could take out."""
    kind, source = text_at(block, "type"), object_at(block, "source")
    if kind == "text":
        return _text(text_at(block, "text"))
    if kind == "image" and source.get("type") in IMAGES:
        return _image(source)
    if kind == "search_result":
        return _text(_search_result(block))
    what = "a picture" if kind == "image" else f"a block of type '{kind}'"
    if kind == "document":
        try:
            return _text(_document(block))
        except Refusal:
            media = text_at(source, "media_type")
            what = f"a document ({media})" if media else "a document"
    return _text(f"[Here is {what} that this model cannot read.]")


def _document(block: Body) -> str:
    source = object_at(block, "source")
    kind = text_at(source, "type")
    require(kind in ("text", "content"), f"a document of type '{kind}' cannot be read: send its text")
    text = text_at(source, "data")
    if kind == "content" and "content" in source:
        _require_texts(source["content"], "a document")
        text = _joined(source["content"])
    return "\n".join([*filter(None, (text_at(block, "title"), text_at(block, "context"))), text])


def _search_result(block: Body) -> str:
    heads = filter(None, (text_at(block, "title"), text_at(block, "source")))
    return "\n".join([*heads, _joined(block.get("content", ""))])


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(text_at(part, "text") for part in content) if isinstance(content, list) else ""


def _tool_choice(given: Any) -> Body:
    """Return the choice, whose form the reader of chats knows, and if calls may be parallel."""
    if given is None:
        return {}
    choice = {"type": given} if isinstance(given, str) else given
    is_single = isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True
    return {"tool_choice": choice} | ({"parallel_tool_calls": False} if is_single else {})


def _formats(body: Body) -> Body:
    """Return the response format, from either of the keys that the API has had for it."""
    formats = {"output_format": body.get("output_format"), "format": object_at(body, "output_config").get("format")}
    found: Body = {}
    for name, given in formats.items():
        found |= {} if given is None else response_format(given, name)
    return found


def _thoughts(body: Body) -> Body:
    """Return how much a model thinks. The template's own variables take precedence."""
    found: Body = {}
    effort = object_at(body, "output_config").get("effort")
    require(effort is None or isinstance(effort, str), "'output_config.effort' is no text")
    if effort and "reasoning_effort" not in body:
        found["reasoning_effort"] = TEMPLATE_EFFORTS.get(effort, effort)
    thinking = object_at(body, "thinking")
    if thinking.get("type") == "disabled":
        found["chat_template_kwargs"] = {"enable_thinking": False, **object_at(body, "chat_template_kwargs")}
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        found["thinking_budget_tokens"] = DEFAULT_BUDGET if budget is None else budget
    return found
