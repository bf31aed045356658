"""Errors of the front, in the form of the API whose path was requested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

REASONS = {
    400: "the request is no valid HTTP: its first line, its headers (at most 100 of 8192 bytes each), its length "
    "or its parts are wrong",
    414: "the address is too long: send what it contains as the body",
    415: "this server reads no compressed bodies: leave out Content-Encoding",
    416: "the header Range is wrong: leave it out",
}
OLLAMA = "/api/"
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "unavailable_error"}
# Anthropic's types for those statuses whose type differs from ours
MESSAGES_KINDS = {413: "request_too_large", 503: "overloaded_error"}


class Refusal(Exception):
    """An answer with an error instead of what was requested. code: OpenAI's, if the error has one.

    error: the child's, with its `type` and what else it reports.
    """

    def __init__(
        self, status: int, message: str = "", code: str | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or REASONS.get(status, f"the request failed with the HTTP status {status}"))
        self.status = status
        self.code = code
        self.error = {**error} if error else {}

    def body(self, path: str, headers: Mapping[bytes, bytes]) -> bytes:
        """Return the body of the response to this request."""
        if path.startswith(OLLAMA):
            return json.dumps({"error": str(self)}).encode()
        return error_body(self.status, str(self), is_messages(path, headers), self.code)


def is_messages(path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return True for Anthropic's API, whose clients also list models."""
    return "/v1/messages" in path or b"anthropic-version" in headers


def error_body(status: int, message: str, for_messages: bool, code: str | None = None) -> bytes:
    """Return OpenAI's form of an error, or Anthropic's."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    if for_messages:
        kind = MESSAGES_KINDS.get(status, kind if status < 500 else "api_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    return json.dumps({"error": {"code": code or status, "type": kind, "message": message}}).encode()
