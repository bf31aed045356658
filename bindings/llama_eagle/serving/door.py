"""Who may use the Python server: whoever has its key; without one, this machine, but no page of another site."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

Call = Callable[..., Awaitable[Any]]


def is_loopback(host: str) -> bool:
    """Whether a name or address is that of the loopback device."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    return host.endswith(".localhost") or is_loopback(host)


class Door:
    """ASGI middleware before the application, its documentation and its CORS, which lets every origin in."""

    def __init__(self, app: Call, key: str | None, address: str) -> None:
        self._app, self._key, self._is_local = app, key, is_local(address)

    async def __call__(self, scope: dict[str, Any], receive: Call, send: Call) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            from starlette.responses import JSONResponse

            status, message = refusal
            await JSONResponse({"error": {"message": message, "code": status}}, status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: dict[str, Any]) -> tuple[int, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self._key:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            has_key = hmac.compare_digest(given.encode(), self._key.encode())
            return None if has_key or scope["method"] == "OPTIONS" else (401, "Invalid API key")
        if self._is_local and _is_foreign(headers.get("host", ""), headers.get("origin", "")):
            return 403, "a page of another site: start this server with a key for it"
        return None


def _is_foreign(host: str, origin: str) -> bool:
    """Pages have an origin of http; extensions and programs have another or none."""
    is_page = origin == "null" or origin.startswith("http")
    return not _names_us(f"//{host}") or (is_page and not _names_us(origin))


def _names_us(address: str) -> bool:
    try:
        return is_local(urlsplit(address).hostname or ("localhost" if address == "//" else ""))
    except ValueError:
        return False
