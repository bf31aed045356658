"""Access control of the server: keys, and requests that pages of other sites send from a browser of this machine."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FOREIGN_PAGE = "pages of other sites may not use this server: start it with a key and -- --cors-origins ORIGIN"


@dataclass(frozen=True)
class Access:
    """keys: those that clients may send; without one, requests need none.

    is_for_this_machine: pages of other sites are refused as long as there is no key. origins: of pages that may read
    answers, in the form of llama-server's --cors-origins: "localhost" for all of this machine, or one, or *.
    has_credentials: browsers may send keys and cookies, for which * is not enough. methods, allowed_headers: of the
    requests that these pages may send; browsers do not count Authorization among all headers.
    """

    keys: tuple[str, ...] = ()
    is_for_this_machine: bool = True
    origins: str = "localhost"
    has_credentials: bool = True
    methods: str = "GET, POST, DELETE, OPTIONS"
    allowed_headers: str = "*, Authorization"

    def has_key(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if a request needs no key or has one.

        It may be in the header of OpenAI's clients or in that of Anthropic's. Some clients send both, one of them for
        another server.
        """
        given = (_bearer(headers.get(b"authorization", b"")), headers.get(b"x-api-key", b""))
        return not self.keys or any(is_key(self.keys, each) for each in given)  # no short cut: time reveals nothing

    def is_foreign(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if a request without a key is from another site's page.

        Such a page has a foreign origin, or a foreign host name that resolves to this machine. Programs send no origin,
        and browser extensions an origin of another scheme.
        """
        if self.keys or not self.is_for_this_machine:
            return False
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        is_page = origin == "null" or origin.startswith("http")
        return bool(host and not is_local_name(host)) or (is_page and not is_local_name(origin))

    def allowed_origin(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Return the header that lets a page read the answer; none for another site's page."""
        origin = headers.get(b"origin", b"")
        if self.origins == "*" and self.has_credentials and origin:
            return [(b"access-control-allow-origin", origin)]
        if self.origins != "localhost":
            return [(b"access-control-allow-origin", self.origins.encode())]
        if not origin or not is_local_name(origin.decode("latin-1")):
            return []
        return [(b"access-control-allow-origin", origin)]

    def preflight(self) -> list[tuple[bytes, bytes]]:
        """Return what a browser asks before a page's request, next to the allowed origin. It sends no key then."""
        return [
            (b"access-control-allow-credentials", b"true" if self.has_credentials else b"false"),
            (b"access-control-allow-methods", self.methods.encode()),
            (b"access-control-allow-headers", self.allowed_headers.encode()),
        ]


def is_key(keys: Iterable[str], given: bytes) -> bool:
    """Return True if the key is one of these. The duration does not reveal which part of a key is correct."""
    return any(hmac.compare_digest(key.encode(), given) for key in keys)


def _bearer(header: bytes) -> bytes:
    """Return the key in the header Authorization. The name of the scheme has no case."""
    scheme, _, key = header.partition(b" ")
    return key.lstrip(b" ") if scheme.lower() == b"bearer" else header


def is_local_name(name: str) -> bool:
    """Return True if the host of an origin or address ("https://localhost:8000", "[::1]:8000") is this machine."""
    host = re.sub(r"^.*?://", "", name)
    host = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    if host == "localhost" or (host.endswith(".localhost") and len(host) > len(".localhost")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
