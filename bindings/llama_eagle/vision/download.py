"""Download of pictures from other machines."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from llama_eagle.errors import InputError

TIMEOUT = 20.0  # seconds


class _SameKind(urllib.request.HTTPRedirectHandler):
    """Handler that follows redirections to http and https only."""

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        new = super().redirect_request(*args)
        if new is not None and urllib.parse.urlsplit(new.full_url).scheme not in ("http", "https"):
            return None
        return new


def download(url: str, name: str, max_bytes: int) -> bytes:
    """Return the bytes at a URL. Raises `InputError` if it cannot be fetched or exceeds `max_bytes`."""
    try:
        with urllib.request.build_opener(_SameKind).open(url, timeout=TIMEOUT) as answer:
            data = bytes(answer.read(max_bytes + 1))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise InputError(f"{name}: {url[:80]!r} cannot be fetched ({error!s:.200}). Send a data URL.") from None
    if len(data) > max_bytes:
        raise InputError(f"{name} has more than {max_bytes >> 20} MiB. Use a smaller picture.")
    return data
