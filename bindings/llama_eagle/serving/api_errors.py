"""Errors of the front, in the form of the API whose path was requested."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llama_eagle import console
from llama_eagle.serving.llama_server.child import NotReady

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
MESSAGES_OWN = {"authentication_error", "permission_error", "not_found_error"}
TOO_LONG = "exceed_context_size_error"  # the child's type for a prompt that is longer than the context
NO_PATH = "File Not Found"  # the child's message
PLAIN = {  # errors of the child, in plain words
    "Failed to load image or audio file": (
        "an image or sound cannot be read, or has more than 100 million pixels: send a sound PNG or JPEG"
    ),
}
DEAD_END = "got exception: the grammar "  # the child's text for one that allows no token: its sender's fault
COMPACTION = "give this provider another name than OpenAI, then Codex compacts conversations by itself"
# What clients cannot use in messages of llama.cpp: the name of its JSON library, the place in a template's source.
_JSON_LIBRARY = re.compile(r"\[json\.exception\.[^\]]*\] ")
_TEMPLATE_PLACE = re.compile(r"\n-{12}\nWhile executing.*\nError: ", re.DOTALL)


class Refusal(Exception):
    """An answer with an error instead of what was requested. code: OpenAI's, if the error has one.

    error: the child's, with its `type` and what else it reports.
    """

    def __init__(
        self, status: int, message: str = "", code: str | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        text = message or REASONS.get(status, f"the request failed with the HTTP status {status}")
        super().__init__(_clear(text))
        self.status = status
        self.code = code
        self.error = {**error} if error else {}

    @property
    def is_too_long(self) -> bool:
        """Return True for a prompt that is longer than the context: clients shorten it and try again."""
        return self.error.get("type") == TOO_LONG and {"n_ctx", "n_prompt_tokens"} <= {*self.error}

    def body(self, path: str, headers: Mapping[bytes, bytes], n_trained: int = 0) -> bytes:
        """Return the body of the response to a request.

        path: without the server's prefix. n_trained: context of the model's training in tokens.
        """
        if path.startswith(OLLAMA):
            found: dict[str, Any] = {"error": str(self)}
        elif is_messages(path, headers):
            found = self.for_messages(n_trained)
        else:
            has_codes = any(part in path for part in ("/v1/", "/chat/completions", "/responses"))
            found = self.for_openai(n_trained, has_codes=has_codes)
        return json.dumps(found).encode()

    def for_openai(self, n_trained: int = 0, *, has_codes: bool = True) -> dict[str, Any]:
        """Return OpenAI's form of the error. has_codes: False for llama.cpp's own paths, whose codes are numbers."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"code": self.status, "type": kind, **self.error, "message": str(self)}
        if self.is_too_long:
            sizes = f"({error['n_prompt_tokens']} tokens) exceeds the available context size ({error['n_ctx']} tokens)"
            error["message"] = f"request {sizes}; {_longer_prompt(error['n_ctx'], n_trained)}"
        if self.code or (has_codes and error["type"] == TOO_LONG):
            error |= {"code": self.code or "context_length_exceeded", "param": None}
        return {"error": error}

    def for_messages(self, n_trained: int = 0) -> dict[str, Any]:
        """Return Anthropic's form of the error."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        given = self.error.get("type")
        kind = given if given in MESSAGES_OWN else MESSAGES_KINDS.get(self.status, kind)
        message = str(self)
        if self.is_too_long:
            n_ctx = self.error["n_ctx"]
            message = f"prompt is too long: {self.error['n_prompt_tokens']} tokens > {n_ctx} maximum; "
            message += _longer_prompt(n_ctx, n_trained)
        return {"type": "error", "error": {"type": kind, "message": message}}


def require(is_met: bool, message: str) -> None:
    """Raise `Refusal` with the status 400 unless the condition is met."""
    if not is_met:
        raise Refusal(400, message)


def as_refusal(error: Exception) -> Refusal:
    """Return the answer to a request that has failed. A fault of the server is logged."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NotReady):
        return Refusal(503, "Loading model")
    if isinstance(error, RecursionError):
        return Refusal(400, "the body is nested too deeply")
    if isinstance(error, ConnectionError):
        return Refusal(503, "llama-server has ended: the log of this server says why")
    console.warn(f"a request failed: {type(error).__name__}: {str(error).rstrip('.')}.")
    return Refusal(500, "this server failed to answer: its log says why")


def child_refusal(status: int, data: bytes) -> Refusal:
    """Return the error in a response of the child."""
    try:
        return as_sent(status, json.loads(data)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return Refusal(status)


def as_sent(status: int, error: Mapping[str, Any]) -> Refusal:
    """Return an error of the child."""
    message = str(error.get("message", ""))
    message = PLAIN.get(message, message)
    found = {**error, "message": message}
    if message.startswith(DEAD_END):
        status = 400
        found |= {"code": status, "type": "invalid_request_error"}
    return Refusal(status, message, error=found)


def no_path(method: str, path: str) -> Refusal:
    """Return the error for a path that the server does not have."""
    name = "".join(character if " " <= character <= "~" else "?" for character in f"{method} {path[:100]}")
    if path.startswith(OLLAMA):
        remedy = "it is not Ollama. Choose an OpenAI-compatible provider with the base URL http://HOST:PORT/v1"
    elif path.endswith("/responses/compact"):
        remedy = COMPACTION
    elif "/responses/" in path:
        remedy = "it keeps no responses. Send the conversation again"
    else:
        remedy = "OpenAI's APIs are below /v1, Anthropic's is /v1/messages"
    return Refusal(404, f"this server has no {name}: {remedy}")


def is_messages(path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return True for Anthropic's API, whose clients also list models."""
    return "/v1/messages" in path or b"anthropic-version" in headers


def _longer_prompt(n_ctx: int, n_trained: int) -> str:
    """Return the remedy for a prompt that is longer than a context, by the limit that it met."""
    if 0 < n_trained <= n_ctx:
        return f"shorten the prompt: the model was trained with {n_trained} tokens"
    return "shorten the prompt, or use a larger -c (with a smaller --parallel if memory is short)"


def _clear(message: str) -> str:
    message = _JSON_LIBRARY.sub("", message)
    place = _TEMPLATE_PLACE.search(message)
    if place is None:
        return message
    reason = message[place.end() :]
    raised = reason.removeprefix("Jinja Exception: ")
    return f"the chat template {f'refuses this request: {raised}' if raised != reason else f'failed: {reason}'}"
