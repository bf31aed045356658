"""Training data as it is found in files: plain text, or conversations in JSON lines. Errors name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle import console
from llama_eagle.errors import InputError

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py")
CHAT_SUFFIXES = (".jsonl", ".ndjson")
MAX_NAMED = 20  # faulty lines in an error
ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT

Message = dict[str, Any]


@dataclass(frozen=True)
class Document:
    """A text, or the messages of a conversation. source: file, or file:line."""

    source: str
    folder: Path
    text: str = ""
    messages: tuple[Message, ...] = ()


def read_documents(sources: Sequence[str | Path]) -> Iterator[Document]:
    """Read every document of the given files and folders, in order. Raises InputError for invalid data."""
    for path in _files(sources):
        if path.suffix in CHAT_SUFFIXES:
            yield from _read_lines(path)
        else:
            yield _text(_decode(path.read_bytes(), path), str(path), path.parent)


def _files(sources: Sequence[str | Path]) -> Iterator[Path]:
    for source in map(Path, sources):
        if source.is_dir():
            found = [p for p in sorted(source.rglob("*")) if p.suffix in TEXT_SUFFIXES + CHAT_SUFFIXES and p.is_file()]
            if not found:
                raise InputError(f"{source}: no {', '.join(TEXT_SUFFIXES + CHAT_SUFFIXES)} file in it; name the files.")
            yield from found
        elif source.is_file():
            yield source
        else:
            raise InputError(f"{source}: no such file or folder.")


def _decode(data: bytes, path: Path, line: int = 1) -> str:
    """Decode UTF-8 text whose first line has the number `line`."""
    try:
        return data.decode("utf-8")
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
        return _text(record["text"], source, folder)
    messages = record.get("messages", record.get("conversations"))
    if _has_failed(record, messages):
        return None
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{source}: neither messages nor text.")
    messages = [_message(message, source) for message in messages]
    if not any(message["role"] == "assistant" for message in messages):
        raise InputError(f"{source}: no assistant message; there is nothing to learn from it.")
    return Document(source, folder, messages=tuple(messages))


def _has_failed(record: Message, messages: Any) -> bool:
    """Return True for a line of `answer` with an error: its prompt may have answers of the earlier conversation."""
    is_error = isinstance(record.get("error"), str) and bool(record["error"])
    prompt = messages[-1] if isinstance(messages, list) and messages else {"role": "user"}
    return is_error and isinstance(prompt, dict) and prompt.get("role") == "user"


def _message(message: Any, source: str) -> Message:
    """Return a message with the keys role and content; ShareGPT's from and value are renamed."""
    if isinstance(message, dict) and "from" in message:
        message = {"role": message["from"], "content": message.get("value")}
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError(f"{source}: a message without a role.")
    content = message.get("content")
    if content is None and (message.get("tool_calls") or message.get("reasoning_content")):
        content = ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image") or not isinstance(part.get(kind), str):
            raise InputError(f"{source}: content must be a text, or a list of text and image parts.")
    return {**message, "role": ROLES.get(message["role"], message["role"]), "content": content}
