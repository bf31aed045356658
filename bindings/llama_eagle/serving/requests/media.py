"""Media of a chat's messages: marks in their texts, and the files for the child."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_eagle.errors import UsageError
from llama_eagle.sessions.chats.media import with_marks

KINDS = {"image_url": "image", "input_audio": "audio", "input_video": "video", "video_url": "video"}
NAMES = {"image": "images", "audio": "sound", "video": "videos"}
SCHEMES = tuple(f"data:{kind}/" for kind in NAMES)
BEGINNINGS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "Qk")  # of PNG, JPEG, GIF and BMP in base64
MAX_BYTES = 10 << 20  # of a file of another machine
NO_URLS = "this server fetches no URLs: send the data as data:image/...;base64,..."


def fetches_urls() -> bool:
    """Return True if pictures of other machines are allowed. A client could use them to reach any address."""
    return os.environ.get("LLAMA_EAGLE_REMOTE_MEDIA") == "1"


@dataclass
class MediaReader:
    """Reader of one chat's media. mark: text in place of each. kinds: "image", "audio", "video", those that are read.

    folder: of files that requests may name. files: what has been read, in base64.
    """

    mark: str
    kinds: Collection[str]
    folder: str = ""
    files: list[str] = field(default_factory=list)

    def with_marks(self, template: str, message: Any) -> Any:
        """Return a message with marks in place of its media. Raises `UsageError` for media that are not read.

        Media in results of tools that are not read become texts instead: no user can take them out of the history.
        """
        is_result = isinstance(message, Mapping) and message.get("role") == "tool"

        def is_media(part: Any) -> bool:
            kind = part.get("type") if isinstance(part, Mapping) else None
            is_known = isinstance(kind, str) and kind in KINDS
            return is_known and not (is_result and not self._is_readable(part))

        return with_marks(template, message, is_media, self._mark_of, "text and image_url")

    def _is_readable(self, part: Mapping[str, Any]) -> bool:
        if KINDS[part["type"]] not in self.kinds:
            return False
        if part["type"] != "image_url":
            return True
        url = _address(part)
        if url.startswith("http"):
            return fetches_urls()
        return url.partition(";base64,")[2].startswith(BEGINNINGS)

    def _mark_of(self, part: Mapping[str, Any]) -> str:
        kind = KINDS[part["type"]]
        if kind not in self.kinds:
            raise UsageError(f"this server reads no {NAMES[kind]}: start it with --mmproj and an encoder that does")
        self.files.append(self._file(_address(part)))
        return self.mark

    def _file(self, url: str) -> str:
        """Return the content in base64, which the child decodes and checks."""
        if url.startswith("http"):
            return _fetched(url)
        if url.startswith("file://"):
            return _read(url.removeprefix("file://"), self.folder)
        data = url
        if url.startswith("data:"):
            head, comma, data = url.partition(",")
            if not comma or "," in data or not head.startswith(SCHEMES) or not head.endswith("base64"):
                raise UsageError(f"the address {url[:40]!r} is not of the form data:image/...;base64,...: correct it")
        if not data:
            raise UsageError("an image or sound is empty: send its data in base64")
        return data


def _address(part: Mapping[str, Any]) -> str:
    """Return the address or the data of a part; "" if it has none."""
    given = part.get(part["type"])
    found = (given.get("data") or given.get("url")) if isinstance(given, Mapping) else given
    return found if isinstance(found, str) else ""


def _fetched(url: str) -> str:
    if not fetches_urls():
        raise UsageError(NO_URLS)
    from llama_eagle.vision.download import download

    return base64.b64encode(download(url, "the picture", MAX_BYTES)).decode()


def _read(name: str, folder: str) -> str:
    """Return a file below the folder in base64."""
    if not folder:
        raise UsageError("file:// URLs are not allowed: start the server with --media-path")
    try:
        root = Path(folder).resolve()
        path = (root / name).resolve()
        data = path.read_bytes() if path.is_relative_to(root) else None
    except (OSError, ValueError):  # the second: a null byte or a surrogate
        raise UsageError(f"the file {name[:80]!r} cannot be read: correct its name") from None
    if data is None:
        raise UsageError(f"the file {name[:80]!r} is not below --media-path: move it there")
    return base64.b64encode(data).decode()
