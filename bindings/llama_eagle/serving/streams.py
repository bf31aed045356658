"""Answers of the child, part by part: each part is everything that has arrived, without HTTP's chunks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

MAX_PART = 1 << 16  # bytes that are read at once
WITHOUT_BODY = (204, 304)


class Chunks:
    """Removes the chunks of HTTP from a body (RFC 9112, section 7.1), which may be cut anywhere."""

    def __init__(self) -> None:
        self.has_ended = False
        self._rest = b""  # beginning of a line
        self._left = 0  # bytes of this chunk, with the line break behind it

    def take(self, data: bytes) -> bytes:
        """Return the body's bytes in `data`. Raises `ConnectionError` if they are no chunks."""
        data, at, found = self._rest + data, 0, []
        self._rest = b""
        while at < len(data) and not self.has_ended:
            if self._left:
                n = min(self._left, len(data) - at)
                found.append(data[at : at + min(n, max(self._left - 2, 0))])
                self._left -= n
                at += n
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._rest = data[at:]
                break
            self._begin(data[at:end])
            at = end + 2
        return b"".join(found)

    def _begin(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise ConnectionError(f"no chunk: {line[:40]!r}") from None
        self.has_ended = size == 0
        self._left = size + 2


@dataclass
class Answer:
    """The child's answer to one request. headers: names in lower case.

    left: bytes of the body that are missing; None if the child does not say how many.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: int | None = None
    chunks: Chunks | None = None

    def header(self, name: bytes) -> bytes:
        return next((value for each, value in self.headers if each == name), b"")

    async def part(self) -> bytes:
        """Return what has arrived of the body, at least one byte; b"" at its end. Raises `ConnectionError`."""
        while not self._has_ended():
            data = await self.reader.read(MAX_PART)
            if not data:
                if self.chunks is None and self.left is None:
                    break
                raise ConnectionError("the child has ended within an answer")
            if self.left is not None:
                self.left -= len(data)
            part = data if self.chunks is None else self.chunks.take(data)
            if part:
                return part
        return b""

    def _has_ended(self) -> bool:
        return self.left == 0 if self.chunks is None else self.chunks.has_ended

    async def read(self) -> bytes:
        """Return the whole body."""
        parts = []
        while part := await self.part():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the connection: a child that has not sent everything stops."""
        self.writer.transport.abort()


async def read_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str) -> Answer:
    """Read the head of an answer, without the interim ones before it. Raises `ConnectionError`."""
    status = 100
    while 100 <= status < 200:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            status = int(first.split(b" ", 2)[1])
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
            raise ConnectionError(f"no answer of the child: {error}") from None
    pairs = [line.partition(b":")[::2] for line in lines]
    headers = [(name.lower(), value.strip()) for name, value in pairs]
    answer = Answer(status, headers, reader, writer)
    length = answer.header(b"content-length")
    if method == "HEAD" or status in WITHOUT_BODY:
        answer.left = 0
    elif answer.header(b"transfer-encoding").lower() == b"chunked":
        answer.chunks = Chunks()
    elif length:
        answer.left = int(length)
    return answer
