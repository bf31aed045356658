"""Requests to our own servers on this machine. They use no proxy, whatever the environment names."""

from __future__ import annotations

import urllib.request
from http.client import HTTPResponse
from typing import cast

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_url(request: str | urllib.request.Request, timeout_s: float | None = None) -> HTTPResponse:
    """Send the request and return the response. Raises `OSError`, and `HTTPError` for a status of 400 or more."""
    return cast(HTTPResponse, _OPENER.open(request, timeout=timeout_s))
