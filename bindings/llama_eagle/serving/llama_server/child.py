"""The child of the front: llama-server on a socket that only this user reaches, and requests to it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from llama_eagle.serving.llama_server.streams import Answer

LONGEST_PATH = 100  # of a socket file in bytes: 104 on macOS and BSD, 108 on Linux
Headers = Iterable[tuple[bytes, bytes]]


class NotReady(Exception):
    """The child does not listen: it still loads the model, or has ended."""


@dataclass
class Child:
    """Address of the child. Without sockets in files it is a port of the loopback device.

    port: 0 until the child has chosen one. key: the child accepts no other, so nobody can pass the front by.
    """

    path: str = ""
    port: int = 0
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def host(self) -> str:
        """Address to listen on, in the form of `serve --host`."""
        return self.path or "127.0.0.1"

    def set_address(self, url: str) -> None:
        """Store the port of the child's URL."""
        if not self.path:
            self.port = int(url.rpartition(":")[2])

    async def request(
        self, method: str, target: bytes, headers: Headers = (), body: bytes = b"", with_key: bool = True
    ) -> Answer:
        """Send a request and return its answer when its head is there. The caller closes the answer.

        Closing it before its end lets the child stop. Without the key the child answers on its public paths alone.
        Raises `NotReady`, and `ConnectionError` for a child that ends.
        """
        lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
        lines += [b"%s: %s\r\n" % pair for pair in headers]
        lines.append(b"Connection: close\r\n")
        if with_key:
            lines.append(b"Authorization: Bearer %s\r\n" % self.key.encode())
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(b"Content-Length: %d\r\n" % len(body))
        transport, answer = await self._connect(method)
        try:
            transport.write(b"".join([*lines, b"\r\n", body]))
            return await answer.head()
        except BaseException:
            transport.abort()
            raise

    async def _connect(self, method: str) -> tuple[asyncio.Transport, Answer]:
        import asyncio  # the child loads its model meanwhile

        from llama_eagle.serving.llama_server.streams import Answer

        loop = asyncio.get_running_loop()
        try:
            if self.path:
                return await loop.create_unix_connection(lambda: Answer(method), self.path)
            if self.port:
                return await loop.create_connection(lambda: Answer(method), "127.0.0.1", self.port)
        except OSError as error:
            raise NotReady(str(error)) from None
        raise NotReady("the child has not chosen its port")


def child_in(folder: Path, name: str = "child") -> Child:
    """Return the address of a child whose socket is in a folder, if this system has sockets in files."""
    path = str(folder / f"{name}.sock")
    has_files = sys.platform != "win32" and hasattr(socket, "AF_UNIX")
    return Child(path if has_files and len(path.encode()) <= LONGEST_PATH else "")


@contextlib.contextmanager
def new_child() -> Iterator[Child]:
    """Yield an address for a child. The folder of its socket has mode 0700, and is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="llama-eagle-", ignore_cleanup_errors=True) as folder:
        yield child_in(Path(folder))
