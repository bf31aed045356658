"""Normalization of OpenAI's messages for chat templates, for all front ends.

The prompt is that of transformers' `apply_chat_template` if the template supports the messages as they are. Others are
changed as llama.cpp's server does (common/chat.cpp): text parts become one text, joined as the template joins them, or
with line breaks. `developer` becomes `system`, the arguments of calls become objects, or text. The content of an answer
without one stays null if the template shows the calls then, else it becomes "". Reasoning has the key that the template
reads. Later system messages become texts of the user if the template refuses or drops them. Calls and results become
texts if it has none. Messages that the template refuses in a row are joined. Results of calls become a part of the
call's message for templates of Gemma 4 that read no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.sessions.chats import abilities
from llama_eagle.sessions.chats.calls import calls_as_texts, has_calls, read_call, with_short_ids
from llama_eagle.sessions.chats.fallbacks import render_adapted
from llama_eagle.sessions.chats.responses import with_responses, with_turn
from llama_eagle.sessions.chats.turns import join_turns

Message = dict[str, Any]
MEDIA = {"input_audio": "sound", "audio_url": "sound", "input_video": "video", "video_url": "video"}
TEXTS = ("text", "refusal", "input_text", "output_text")  # of Chat Completions and of Responses
SYSTEMS = ("system", "developer")
OWN_DEVELOPER = "<|channel|>"  # in templates of gpt-oss, which have a developer role
# In StepFun's template. Spaces around texts make the model repeat its thoughts (llama.cpp's issue 24181).
HAS_TRIMMED_TEXTS = "You have access to the following functions in JSONSchema format"


def render_chat(template: str, variables: Mapping[str, Any], where: object) -> str:
    """Return the prompt of `variables["messages"]`. `where`: the owner of the template, for messages.

    Raises `UsageError` for invalid messages and for content that the model cannot read, and the errors of
    `render_adapted`.
    """
    messages = normalized(template, variables["messages"])
    prompt = render_adapted(template, {**variables, "messages": messages}, where)
    return with_turn(template, prompt) if variables.get("add_generation_prompt") else prompt


def normalized(template: str, messages: Iterable[Any]) -> list[Message]:
    """Return messages in the form that this template supports. Raises `UsageError` as `render_chat` does."""
    found = read_messages(messages)
    if OWN_DEVELOPER not in template:
        found = [_as_system(message) for message in found]
    found = [_with_joined_texts(template, message) for message in found]
    if HAS_TRIMMED_TEXTS in template:
        found = [_trimmed(message) for message in found]
    found = _with_systems(template, found)
    if any(map(has_calls, found)) and not abilities.shows_calls(template):
        found = calls_as_texts(found, text_of)
    found = join_turns(template, found, text_of)
    if any(message.get("tool_calls") for message in found):
        as_text = abilities.form_of_calls(template).has_text_arguments
        found = [with_arguments(message, as_text=as_text) for message in found]
    if any(map(has_calls, found)) and abilities.wants_nine_characters(template):
        found = with_short_ids(found)
    found = [message | {"content": _content(template, message)} for message in found]
    return with_responses(template, [_with_reasoning(template, message) for message in found])


def as_texts(messages: Iterable[Any]) -> list[Message]:
    """Return messages for a chat format without a template: texts, and at most one system message."""
    found = [_as_system(message) for message in read_messages(messages)]
    found = [message | {"content": text_of(message["content"])} for message in found]
    return _placed_systems(found)


def read_messages(messages: Iterable[Any]) -> list[Message]:
    """Return copies of messages, each with a role and with content: text, parts of text, or None next to calls.

    Raises `UsageError` for invalid messages, and for pictures and sound.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise UsageError(f"messages are a {type(messages).__name__}. Send a list of dicts with role and content.")
    return [_read(message, f"message {n}") for n, message in enumerate(messages, start=1)]


def with_objects(messages: Iterable[Any]) -> list[Message]:
    """Return copies of messages with the arguments of calls as objects and unchanged contents."""
    return [with_arguments(_as_mapping(message, f"message {n}")) for n, message in enumerate(messages, start=1)]


def text_of(content: str | Sequence[Mapping[str, Any]] | None, joint: str = "\n") -> str:
    """Join parts into one text. Texts are separated by `joint`, except after a picture."""
    if content is None or isinstance(content, str):
        return content or ""
    text, follows_text = "", False
    for part in content:
        is_text = part["type"] == "text"
        text += (joint if is_text and follows_text and text else "") + part["text"]
        follows_text = is_text
    return text


def _with_joined_texts(template: str, message: Message) -> Message:
    """Return a message with one text, if the template joins several."""
    content = message["content"]
    if not isinstance(content, list) or len(content) < 2:
        return message
    joint = abilities.joint_of_texts(template, message["role"])
    return message if joint is None else message | {"content": text_of(content, joint)}


def _read(message: Any, where: str) -> Message:
    found = {key: value for key, value in _as_mapping(message, where).items() if value is not None}
    listed = found.get("tool_calls", [])
    if not isinstance(listed, list | tuple):
        raise UsageError(f"{where} has tool_calls that are not a list. Send the calls as the answer contained them.")
    if not listed and found.pop("tool_calls", None) is not None:  # sent by OpenAI's client with earlier answers
        found.setdefault("content", "")
    if not isinstance(found.get("role"), str):
        raise UsageError(f"{where} has no role. Send system, user, assistant or tool.")
    if not found.get("reasoning_content") and isinstance(found.get("reasoning"), str):
        found["reasoning_content"] = found["reasoning"]  # the newer name, which other servers use
    for key in ("name", "tool_call_id", "reasoning_content"):
        if not isinstance(found.get(key, ""), str):
            raise UsageError(f"{where} has a {key!r} that is no text. Send a text, or leave it out.")
    if "audio" in found:
        raise UsageError(f"{where} has 'audio', which is not supported. Send its transcript as the content.")
    if "refusal" in found and found.get("content", []) in ([], ()):
        found["content"] = found["refusal"]  # OpenAI's form of an answer that refuses
    calls = found["role"] == "assistant" and (found.get("tool_calls") or found.get("function_call"))
    if "content" not in {*found, *_as_mapping(message, where)} and not calls:
        raise UsageError(f"{where} has no content. Send a text.")
    if calls and "content" not in found:
        return found | {"content": None}
    return found | {"content": _read_content(found.get("content", ""), where, is_result=found["role"] == "tool")}


def _as_mapping(message: Any, where: str) -> Message:
    """Return a message as a dict; those of OpenAI's client are objects."""
    if isinstance(message, Mapping):
        return dict(message)
    if hasattr(message, "model_dump"):
        return dict(message.model_dump(exclude_none=True))
    raise UsageError(f"{where} is a {type(message).__name__}. Send a dict with role and content.")


def _read_content(content: Any, where: str, *, is_result: bool) -> str | list[Message]:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise UsageError(f"{where} has a {type(content).__name__} as content. Send a text, or a list of parts.")
    return [unread_part(part) if is_result and _is_unread(part) else _read_part(part, where) for part in content]


def unread_part(part: Any) -> Message:
    """Return a text in place of a part of a tool's result that is not read: no user can take it out of the history."""
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    what = "picture" if kind in ("image_url", "input_image") else f"part of type {kind!r}"
    return {"type": "text", "text": f"[Here is a {what} that this model cannot read.]"}


def _is_unread(part: Any) -> bool:
    return not isinstance(part, Mapping) or part.get("type") not in TEXTS


def _read_part(part: Any, where: str) -> Message:
    kind = str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
    if kind == "image_url":
        raise UsageError(f"{where} contains images, which this model reads only with an encoder. Set mmproj_path.")
    if kind in MEDIA:
        raise UsageError(f"{where} contains {MEDIA[kind]}, which is not supported. Send text and image_url parts.")
    text = part.get("refusal" if kind == "refusal" else "text") if kind in TEXTS else None
    if not isinstance(text, str):
        raise UsageError(f"{where} has a part of type {kind!r}. Send text and image_url parts.")
    return {"type": "text", "text": text}


def _trimmed(message: Message) -> Message:
    """Return a message without spaces around its texts."""
    content = message["content"]
    trimmed = content.strip() if isinstance(content, str) else content
    if isinstance(content, list):
        trimmed = [part | {"text": part["text"].strip()} for part in content]
    reasoning = message.get("reasoning_content")
    return message | {"content": trimmed} | ({"reasoning_content": reasoning.strip()} if reasoning else {})


def _as_system(message: Message) -> Message:
    return message | {"role": "system"} if message["role"] == "developer" else message


def _with_systems(template: str, messages: list[Message]) -> list[Message]:
    """Return the messages with system messages as the template supports them."""
    places = [i for i, message in enumerate(messages) if message["role"] in SYSTEMS]
    if places and places != [0]:
        messages = _behind_results(messages)
        messages = messages if abilities.takes_later_systems(template) else _placed_systems(messages)
    if not places or abilities.takes_system(template):
        return messages
    return _into_next(messages) if messages[0]["role"] in SYSTEMS else messages


def _behind_results(messages: list[Message]) -> list[Message]:
    """Move system messages between a call and its results behind the results, where a template may lose them."""
    found: list[Message] = []
    held: list[Message] = []
    for i, message in enumerate(messages):
        rest = (later["role"] for later in messages[i:] if later["role"] not in SYSTEMS)
        precedes_result, is_system = next(rest, "") == "tool", message["role"] in SYSTEMS
        if is_system and precedes_result:
            held.append(message)
            continue
        if is_system or not precedes_result:
            found, held = found + held, []
        found.append(message)
    return found + held


def _placed_systems(messages: list[Message]) -> list[Message]:
    """Merge the system messages at the beginning; later ones become texts of the user at their places."""
    n = next((i for i, message in enumerate(messages) if message["role"] not in SYSTEMS), len(messages))
    text = "\n\n".join(text_of(message["content"]) for message in messages[:n])
    first = [messages[0] | {"content": text}] if n > 1 else messages[:n]
    return [*first, *(each | {"role": "user"} if each["role"] in SYSTEMS else each for each in messages[n:])]


def _into_next(messages: list[Message]) -> list[Message]:
    """Put the system message before the text of the next message; without one, send it as a question."""
    system, *rest = messages
    if not rest:
        return [system | {"role": "user"}]
    text = f"{text_of(system['content'])}\n{text_of(rest[0]['content'])}"
    return [rest[0] | {"content": text}, *rest[1:]]


def _content(template: str, message: Message) -> str | list[Message] | None:
    content, role = message["content"], message["role"]
    if not content and (content is None or message.get("tool_calls")):  # "" next to calls would hide them from some
        return None if abilities.form_of_calls(template).has_null_content else ""
    if not content:
        refuses = role == "assistant" and abilities.refuses_empty_answers(template)
        return [{"type": "text", "text": ""}] if refuses else ""
    if isinstance(content, str):
        is_read = abilities.takes_text(template, role) or not abilities.takes_parts(template, role)
        return content if is_read else [{"type": "text", "text": content}]
    if role == "tool" and abilities.has_results_apart(template):
        return content
    if role in ("system", "user", "assistant") and abilities.takes_parts(template, role):
        return content
    return text_of(content)


def _with_reasoning(template: str, message: Message) -> Message:
    """Return an answer with its reasoning where the template reads it."""
    reasoning = message.get("reasoning_content")
    if message["role"] != "assistant" or not isinstance(reasoning, str) or not reasoning:
        return message
    key = abilities.key_of_reasoning(template)
    if key == abilities.IN_CONTENT:
        content = message["content"] or []
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return message | {"content": [{"type": "thinking", "thinking": reasoning}, *parts]}
    if key in message:
        return message
    found = message | {key: reasoning}
    if message.get("tool_calls") and message["content"] and not abilities.takes_reasoning_and_content(template):
        del found["content"]  # as llama.cpp's server does for gpt-oss, whose template refuses both
    return found


def with_arguments(message: Message, *, as_text: bool = False) -> Message:
    """Return a message with the arguments of its calls as objects, or as JSON text. Raises `UsageError`."""
    if not message.get("tool_calls"):
        return message
    calls = [_as_mapping(call, "a tool call") for call in message["tool_calls"]]
    return message | {"tool_calls": [read_call(call, as_text=as_text) for call in calls]}
