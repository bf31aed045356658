"""Training data as it is found in files: plain text, or conversations in JSON lines. Errors name file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import InputError
from llama_eagle.files import refuse_special

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py")
CHAT_SUFFIXES = (".jsonl", ".ndjson")
MAX_NAMED = 20  # faulty lines in an error
IMAGE_MARK = "<image>"  # place of a picture in a text, if the files are listed next to the messages
PART_NAMES = ("text", "image", "image_url")
IMAGE_KEYS = ("image", "images")  # next to the messages
PICTURES = re.compile(r"(?i)(^|_)(image|img|picture|photo|pixel_value)s?(_|$)")  # keys that may name pictures
OTHER_MEDIA = re.compile(r"(?i)(^|_)(video|audio|media)s?(_|$)")
FILES = re.compile(r"(?i)(^|_)(attachment|file)s?(_|$)")
DATA = re.compile("^(bytes|data|source)$")
FILE_NAMES = ("image", "path", "url", "image_url", "base64")  # keys of an image part's file
ROLES = {"human": "user", "gpt": "assistant", "observation": "tool"}  # of ShareGPT
ROLES_OF_SHAREGPT = (*ROLES, "system", "user", "assistant", "tool")

Message = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """A text, or the messages of a conversation. source: file, or file:line. tools: as chat templates take them."""

    source: str
    folder: Path
    text: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()


def read_documents(sources: Sequence[str | Path]) -> Iterator[Document]:
    """Read every document of the given files and folders, in order. Raises InputError for invalid data."""
    for path in _files(sources):
        if path.suffix.lower() in CHAT_SUFFIXES:
            yield from _read_lines(path)
        elif path.suffix.lower() == ".json":  # as text, its brackets and keys would be learned
            raise InputError(f"{path}: not JSON lines. Write one object a line: jq -c '.[]' {path.name} > data.jsonl")
        else:
            yield _text(_decode(path.read_bytes(), path), str(path), path.parent)


def _files(sources: Sequence[str | Path]) -> Iterator[Path]:
    for source in map(Path, sources):
        if source.is_dir():
            known = TEXT_SUFFIXES + CHAT_SUFFIXES
            found = [p for p in sorted(source.rglob("*")) if p.suffix.lower() in known and p.is_file()]
            if not found:
                raise InputError(f"{source}: no {', '.join(known)} file in it; name the files.")
            yield from found
        elif source.is_file():
            yield source
        else:
            refuse_special(source)
            raise InputError(f"{source}: no such file or folder.")


def _decode(data: bytes, path: Path, line: int = 1) -> str:
    """Decode UTF-8 text whose first line has the number `line`, without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        byte = f"byte {data[error.start]:#04x}"
        raise InputError(f"{path}:{line}: not UTF-8 ({byte}); convert the file with iconv.") from None


def _text(text: str, source: str, folder: Path) -> Document:
    if not text.strip():
        raise InputError(f"{source}: empty; leave it out.")
    return Document(source, folder, text=text)


def _read_lines(path: Path) -> Iterator[Document]:
    n_found, n_failed = 0, 0
    with path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        for number, line in lines:
            try:
                document = _record(path, number, line)
            except InputError as error:
                raise InputError(f"{error}{_also_faulty(path, lines)}") from None
            if document is None:
                n_failed += 1
                continue
            yield document
            n_found += 1
    if n_failed and n_found:
        console.warn(f"{path}: skipped {n_failed} line{'s' * (n_failed > 1)} with an `error` instead of an answer.")
    elif n_failed:
        raise InputError(f"{path}: each line has an `error` instead of an answer; leave it out.")
    elif not n_found:
        raise InputError(f"{path}: empty; leave it out.")


def _also_faulty(path: Path, lines: Iterator[tuple[int, bytes]]) -> str:
    """List a file's other faulty lines after the first, so that all can be corrected at the same time."""
    found = []
    for number, line in lines:
        try:
            _record(path, number, line)
        except InputError:
            found.append(number)
    if not found:
        return ""
    named = ", ".join(map(str, found[:MAX_NAMED]))
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f" Faulty, too: line{'s' * (len(found) > 1)} {named}{more}."


def _record(path: Path, number: int, line: bytes) -> Document | None:
    """Return the document of a line; None for a prompt that `llama-eagle answer` could not answer."""
    source, folder = f"{path}:{number}", path.parent
    try:
        record = json.loads(_decode(line, path, number))
    except json.JSONDecodeError as error:
        raise InputError(f"{source}: not JSON ({error.msg} at column {error.colno}).") from None
    if not isinstance(record, dict):
        raise InputError(f"{source}: expected an object with messages or text.")
    if isinstance(record.get("text"), str):
        _refuse_media(record, source, PICTURES, OTHER_MEDIA)
        return _text(record["text"], source, folder)
    messages = record.get("messages", record.get("conversations"))
    if _has_failed(record, messages):
        return None
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{source}: neither messages nor text.")
    _refuse_media(record, source, OTHER_MEDIA, re.compile("^chat_template_kwargs$"))
    messages = [_message(message, source) for message in messages]
    if isinstance(system := record.get("system"), str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    if not any(map(is_learned, messages)):
        raise InputError(f"{source}: no assistant message; there is nothing to learn from it.")
    if record.get("image") and record.get("images"):
        raise InputError(f"{source}: both image and images. Name all files in images.")
    messages = _with_images(
        messages, record.get("images") or record.get("image"), source, not record.keys().isdisjoint(IMAGE_KEYS)
    )
    if not any(map(image_parts, messages)):  # with pictures, such keys describe them
        _refuse_media({key: value for key, value in record.items() if key not in IMAGE_KEYS}, source, PICTURES)
    return Document(source, folder, messages=tuple(messages), tools=_tools(record.get("tools"), source))


def _refuse_media(entry: Message, source: str, *kinds: re.Pattern[str]) -> None:
    """Raise InputError for a key that may name pictures, sound or files and that is not read. kinds: its names."""
    if found := next((key for key in entry if entry[key] and any(kind.search(key) for kind in kinds)), None):
        remedy = "Name pictures in images next to messages" if PICTURES.search(found) else "Leave it out"
        raise InputError(f"{source}: {found} is not supported in training data. {remedy}, or leave out the line.")


def _tools(tools: Any, source: str) -> tuple[Message, ...]:
    """Return the tools next to the messages: a list, or its JSON text."""
    try:
        found = json.loads(tools) if isinstance(tools, str) and tools.strip() else tools or []
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise InputError(f"{source}: tools must be a list of objects, or its JSON text.")
    return tuple(found)


def _with_images(messages: list[Message], images: Any, source: str, is_listed: bool) -> list[Message]:
    """Return messages whose image parts name their files.

    images: files next to the messages, for the image parts without a name and for each IMAGE_MARK in a text, in order.
    is_listed: the record has a key for them, which may be empty.
    """
    names = [images] if isinstance(images, str) else images or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{source}: images must be a list of file names.")
    if is_listed:
        messages = [_split_marks(message) for message in messages]
    places = [part for message in messages for part in image_parts(message) if part["image"] is None]
    if len(places) != len(names):
        raise InputError(
            f"{source}: {len(names)} files in images, but {len(places)} places for them. Write {IMAGE_MARK} in a text, "
            "or an image part, for each."
        )
    for part, name in zip(places, names, strict=True):
        part["image"] = name
    return messages


def _split_marks(message: Message) -> Message:
    """Return a message with an image part in place of each IMAGE_MARK."""
    content = message["content"] or ""
    parts: list[Message] = []
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        for n, text in enumerate(part["text"].split(IMAGE_MARK) if part["type"] == "text" else ()):
            parts += [{"type": "image", "image": None}] if n else []
            parts += [{"type": "text", "text": text}] if text else []
        parts += [part] if part["type"] != "text" else []
    return {**message, "content": parts} if any(part["type"] == "image" for part in parts) else message


def is_learned(message: Message) -> bool:
    """Return True for an answer to learn. OpenAI's files for fine-tuning give others the weight 0."""
    return bool(message["role"] == "assistant" and message.get("weight", 1))


def image_parts(message: Message) -> list[Message]:
    """Return the parts of a message that are pictures."""
    content = message["content"]
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def _has_failed(record: Message, messages: Any) -> bool:
    """Return True for a line of `answer` with an error: its prompt may have answers of the earlier conversation."""
    is_error = isinstance(record.get("error"), str) and bool(record["error"])
    prompt = messages[-1] if isinstance(messages, list) and messages else {"role": "user"}
    return is_error and isinstance(prompt, dict) and prompt.get("role") == "user"


def _message(message: Any, source: str) -> Message:
    """Return a message with the keys role and content; ShareGPT's from and value are renamed."""
    if isinstance(message, dict):
        _refuse_media(message, source, PICTURES, OTHER_MEDIA, FILES)
        if "from" in message:
            if message["from"] not in ROLES_OF_SHAREGPT:
                raise InputError(
                    f"{source}: a message from {message['from']!r}, expected {', '.join(ROLES_OF_SHAREGPT)}."
                )
            message = {"role": message["from"], "content": message.get("value")}
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError(f"{source}: a message without a role.")
    if message.get("weight", 1) not in (0, 1):
        raise InputError(f"{source}: weight is {message['weight']!r}, expected 0 or 1.")
    content = message.get("content")
    if content is None and message.get("reasoning_content") and not message.get("tool_calls"):
        content = ""
    if isinstance(content, list):
        content = [_part(part, source) for part in content]
    elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise InputError(f"{source}: content must be a text, or a list of text and image parts.")
    return {**message, "role": ROLES.get(message["role"], message["role"]), "content": content}


def _part(part: Any, source: str) -> Message:
    """Return a part of a message as {"type": "text", "text"} or {"type": "image", "image"}; OpenAI's are renamed."""
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in PART_NAMES:
        raise InputError(f"{source}: content has a part of type {kind!r}. Only text and image parts are supported.")
    known = ("text",) if kind == "text" else FILE_NAMES
    others = {key: value for key, value in part.items() if key not in known}
    _refuse_media(others, source, PICTURES, OTHER_MEDIA, FILES, DATA)
    values = [_file_name(key, part[key]) for key in known if part.get(key) is not None]
    is_named = len(values) == 1 and isinstance(values[0], str)
    if not is_named and (values or kind != "image"):
        raise InputError(f"{source}: content has a part of type {kind!r} without a text or one file name.")
    kind = "text" if kind == "text" else "image"
    return {"type": kind, kind: values[0] if values else None}


def _file_name(key: str, value: Any) -> Any:
    """Return the file that a key of a part names: OpenAI's objects have its URL, and base64 is the file itself."""
    if key == "image_url" and isinstance(value, dict):
        return value.get("url")
    return f"data:;base64,{value}" if key == "base64" and isinstance(value, str) else value
