"""Pictures from files, data URLs and, where that is allowed, from other machines: checked before they are decoded."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llama_eagle.errors import InputError, UsageError

MAX_PIXELS = 100_000_000
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Picture:
    """A picture's file. name: for messages. key: its hash, the same for the same rows. width, height: pixels, as it is
    seen."""

    name: str
    key: str
    width: int
    height: int
    data: bytes

    def pixels(self) -> bytes:
        """RGB, line by line."""
        return bytes(_decoded(self.data, self.name).tobytes())


@dataclass(frozen=True)
class Sources:
    """Where pictures named by an address may come from, beside data URLs. folder: local files below it."""

    folder: Path | None = None
    remote: bool = False


def key_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_picture(data: bytes, name: str) -> Picture:
    """The picture in a file's bytes, decoded once to see that it can be. Raises `InputError` where it cannot."""
    image = _decoded(data, name)
    return Picture(name, key_of(data), image.width, image.height, data)


def _decoded(data: bytes, name: str) -> Any:
    """A PIL image, turned as its EXIF says. Raises `InputError` for what is no picture, damaged or huge."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PIL's own, of sizes near its limit
            with Image.open(io.BytesIO(data)) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    raise _too_large(name)
                return ImageOps.exif_transpose(opened).convert("RGB")
    except InputError:
        raise
    except Image.DecompressionBombError:  # PIL's own limit, which is higher
        raise _too_large(name) from None
    except Exception as error:  # each format's decoder raises its own
        reason = "it is in no format of pictures" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise InputError(f"{name} cannot be read as a picture: {reason}. Give a sound PNG or JPEG.") from None


def _too_large(name: str) -> InputError:
    return InputError(f"{name} has more than {MAX_PIXELS // 10**6} million pixels. Scale it down.")


def read_file(path: str | PathLike[str]) -> bytes:
    """Raises `InputError` when it cannot be read."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} has more than {MAX_BYTES >> 20} MiB. Give a smaller picture.")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Give a picture's file.") from None


def fetch(url: str, sources: Sources, name: str) -> bytes:
    """The file that an OpenAI message's image_url names. Raises `UsageError` for an address that is not allowed."""
    scheme = urlsplit(url[:200]).scheme.lower()
    if scheme == "data":
        return _data_of(url, name)
    if scheme in ("http", "https"):
        if not sources.remote:
            raise UsageError(
                f"{name} is the address {url[:80]}: pictures from other machines are not fetched. Send a data URL, or "
                "allow them (image_urls=True)."
            )
        from llama_eagle.vision.download import download

        return download(url, name, MAX_BYTES)
    if scheme in ("file", "") or Path(url).is_absolute():
        return read_file(_allowed_file(url, sources, name))
    raise UsageError(f"{name}: {scheme}: is no kind of address that pictures are read from. Send a data URL.")


def _data_of(url: str, name: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InputError(f"{name}: the data URL is not of the form data:image/png;base64,... Correct it.")
    if len(body) > MAX_BYTES * 4 // 3:
        raise InputError(f"{name} has more than {MAX_BYTES >> 20} MiB. Give a smaller picture.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{name}: its data URL is no base64 ({error}). Correct it.") from None


def _path_of(url: str) -> Path:
    from urllib.request import url2pathname

    return Path(url2pathname(urlsplit(url).path))


def _allowed_file(url: str, sources: Sources, name: str) -> Path:
    path = _path_of(url) if url.startswith("file:") else Path(url)
    if sources.folder is None:
        raise UsageError(f"{name} is a local file: reading those is not allowed. Send a data URL, or set image_folder.")
    folder = Path(sources.folder).resolve()
    found = (folder / path).resolve()
    if not found.is_relative_to(folder):
        raise UsageError(f"{name}: {path} is not below image_folder, {folder}. Move it there, or send a data URL.")
    return found
