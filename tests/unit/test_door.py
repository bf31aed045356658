"""Who may use the Python server."""

from __future__ import annotations

from typing import Any

import pytest
from llama_eagle.serving.door import Door

KEY = "correct-horse"


async def nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b""}


def status(key: str | None, address: str = "127.0.0.1", method: str = "GET", **headers: str) -> int:
    """Of an application that answers everything with 200."""
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": "/docs",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    with pytest.raises(StopIteration):  # nothing in it waits
        Door(app, key, address)(scope, nothing, send).send(None)
    return int(sent[0]["status"])


@pytest.mark.parametrize("given", ["", KEY[:-1], f"{KEY}x", f"Bearer {KEY[:-1]}", "Bearer \xff"])
def test_a_key_opens_everything_and_nothing_else_does(given: str) -> None:
    assert status(KEY, authorization=given) == 401
    assert status(KEY, authorization=f"Bearer {KEY}", host="evil.example", origin="https://mine.example") == 200
    assert status(KEY, method="OPTIONS", origin="https://mine.example") == 200  # browsers ask without it


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"host": "127.evil.example"}, {"host": "["}])
def test_names_of_others_may_not_point_here(headers: dict[str, str]) -> None:
    assert status(None, **headers) == 403
    assert status(None, "0.0.0.0", **headers) == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost.evil.example:80", "null", "http://["])
def test_pages_of_others_may_not_use_it(origin: str) -> None:
    assert status(None, host="localhost:8000", origin=origin) == 403


@pytest.mark.parametrize("host", ["", "localhost", "a.localhost:1", "127.0.0.2:8000", "[::1]:8000"])
@pytest.mark.parametrize("origin", ["", "http://localhost:3000", "https://[::1]", "chrome-extension://abc"])
def test_this_machine_may(host: str, origin: str) -> None:
    assert status(None, host=host, origin=origin) == 200
