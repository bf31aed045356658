"""Answers of the child, part by part: each part is everything that has arrived, without HTTP's chunks."""

from __future__ import annotations

import asyncio
from typing import cast

MAX_WAITING = 1 << 16  # bytes that wait for a slow client before the child does
WITHOUT_BODY = (204, 304)
_BUFFER = memoryview(bytearray(1 << 16))  # of all answers: each read is copied from it at once


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


class Answer(asyncio.BufferedProtocol):
    """The child's answer to one request. headers: names in lower case; status: 0 before the head is there."""

    def __init__(self, method: str) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._method = method
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()  # what is not read yet; before the head is there, its beginning
        self._left: int | None = None  # bytes of the body that are missing; None if the child does not say how many
        self._chunks: Chunks | None = None
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    def header(self, name: bytes) -> bytes:
        return next((value for each, value in self.headers if each == name), b"")

    async def head(self) -> Answer:
        """Wait for the status and the headers; return the answer. Raises `ConnectionError`."""
        while not self.status:
            if self._is_closed:
                raise ConnectionError("the child has ended before its answer")
            await self._wait()
        return self

    async def part(self) -> bytes:
        """Return what has arrived of the body, at least one byte; b"" at its end. Raises `ConnectionError`."""
        while not self._data and not self._has_ended():
            if self._is_closed:
                if self._chunks is None and self._left is None:
                    return b""
                raise ConnectionError("the child has ended within an answer")
            await self._wait()
        part = bytes(self._data)
        self._data.clear()
        if len(part) > MAX_WAITING and self._transport is not None:
            self._transport.resume_reading()
        return part

    async def read(self) -> bytes:
        """Return the whole body."""
        parts = []
        while part := await self.part():
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the connection: a child that has not sent everything stops."""
        if self._transport is not None:
            self._transport.abort()

    def _has_ended(self) -> bool:
        return self._left == 0 if self._chunks is None else self._chunks.has_ended

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        self._wake()

    def get_buffer(self, _size: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, n: int) -> None:
        if self.status:
            self._add(bytes(_BUFFER[:n]))
        else:
            self._data += _BUFFER[:n]
            try:
                self._read_head()
            except (ValueError, IndexError):
                self.close()
        self._wake()

    def _add(self, data: bytes) -> None:
        """Add bytes of the body."""
        try:
            self._data += data if self._chunks is None else self._chunks.take(data)
        except ConnectionError:
            self.close()
        if self._left is not None:
            self._left -= len(data)
        if len(self._data) > MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()

    def _read_head(self) -> None:
        """Read the head when it is whole, without the interim ones before it."""
        while not self.status and (end := self._data.find(b"\r\n\r\n")) >= 0:
            first, *lines = bytes(self._data[:end]).split(b"\r\n")
            del self._data[: end + 4]
            status = int(first.split(b" ", 2)[1])
            if status < 200:
                continue
            pairs = [line.partition(b":")[::2] for line in lines]
            self.headers = [(name.lower(), value.strip()) for name, value in pairs]
            self._left, self._chunks = self._form(status)
            rest, self._data, self.status = bytes(self._data), bytearray(), status
            self._add(rest)

    def _form(self, status: int) -> tuple[int | None, Chunks | None]:
        """Return the length of the body if it is known, and the reader of its chunks if it has any."""
        if self._method == "HEAD" or status in WITHOUT_BODY:
            return 0, None
        if self.header(b"transfer-encoding").lower() == b"chunked":
            return None, Chunks()
        length = self.header(b"content-length")
        return (int(length) if length else None), None
