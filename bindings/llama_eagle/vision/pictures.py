"""Pictures from files, data URLs and, if allowed, other machines. They are checked before they are decoded."""

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
from urllib.parse import SplitResult, unquote, urlsplit

from llama_eagle.errors import InputError, UsageError

MAX_PIXELS = 100_000_000
MAX_BYTES = 64 << 20
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF")


@dataclass(frozen=True)
class Picture:
    """A picture's file.

    name: for messages. key: hash of the file, equal for equal rows. width, height: pixels, after rotation.
    """

    name: str
    key: str
    width: int
    height: int
    data: bytes

    def pixels(self) -> bytes:
        """Return the RGB values, line by line."""
        return bytes(_decoded(self.data, self.name).tobytes())


@dataclass(frozen=True)
class Sources:
    """Allowed sources of pictures, in addition to data URLs. folder: local files below it. remote: http and https."""

    folder: Path | None = None
    remote: bool = False


def key_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_picture(data: bytes, name: str) -> Picture:
    """Return the picture in a file's bytes, decoded once as a check. Raises `InputError` if it cannot be decoded."""
    image = _decoded(data, name)
    return Picture(name, key_of(data), image.width, image.height, data)


def _decoded(data: bytes, name: str) -> Any:
    """Return a PIL image in RGB, rotated by its EXIF data. Raises `InputError` for other, damaged or huge files."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PIL warns about sizes near its limit
            Image.init()
            # Others may start programs: PIL reads EPS with Ghostscript.
            with Image.open(io.BytesIO(data), formats=[kind for kind in FORMATS if kind in Image.OPEN]) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    raise _too_large(name)
                has_range = opened.format in ("PNG", "PPM")  # PIL's mode for their 16 bits may be that of 32
                return _as_rgb(ImageOps.exif_transpose(opened), name, has_range=has_range)
    except InputError:
        raise
    except Image.DecompressionBombError:  # PIL's own limit, which is higher
        raise _too_large(name) from None
    except Exception as error:  # each format's decoder raises its own
        reason = "unknown format" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise InputError(f"{name} cannot be read as a picture: {reason}. Use a valid PNG or JPEG file.") from None


def _as_rgb(image: Any, name: str, *, has_range: bool) -> Any:
    """Return the image in RGB: transparent parts on white, as Qwen's own code does, and 16 bits scaled to 8.

    `convert` alone would show the hidden colors of transparent pixels, usually black, and clip 16 bits to white.
    has_range: values of 32 bits are those of 16.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and has_range):
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("RGB")
    if image.mode in ("I", "F"):
        raise InputError(f"{name} has 32 bits per value, whose range is unknown. Save it with 8 or 16 bits.")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        colors = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colors.size, "white"), colors).convert("RGB")
    return image.convert("RGB")


def _too_large(name: str) -> InputError:
    return InputError(f"{name} has more than {MAX_PIXELS // 10**6} million pixels. Scale it down.")


def read_file(path: str | PathLike[str]) -> bytes:
    """Return the content of a file. Raises `InputError` if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # the second: a null byte or a surrogate in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r}: cannot be read ({reason}). Give the file of a picture.") from None
    if len(data) > MAX_BYTES:
        raise _too_long(str(path))
    return data


def fetch(url: str, sources: Sources, name: str) -> bytes:
    """Return the file that an OpenAI message's image_url names.

    Raises `UsageError` for a source that is not allowed.
    """
    scheme = _split(url[:200], name).scheme.lower()
    if scheme == "data":
        return decode_data_url(url, name)
    if scheme in ("http", "https"):
        if not sources.remote:
            raise UsageError(
                f"{name} is the URL {url[:80]}: pictures from other machines are not allowed. Send a data URL, or "
                "allow them (image_urls=True)."
            )
        from llama_eagle.vision.download import download

        return download(url, name, MAX_BYTES)
    if scheme in ("file", "") or Path(url).is_absolute():
        return read_file(_allowed_file(url, sources, name))
    raise UsageError(f"{name}: pictures are not read from {scheme}: URLs. Send a data URL.")


def _split(url: str, name: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{name}: {url[:80]!r} is no URL ({error}). Send a data URL.") from None


def decode_data_url(url: str, name: str) -> bytes:
    """Decode a data URL as browsers do: whitespace, escapes and missing padding are allowed."""
    head, comma, body = url.partition(",")
    if not comma or not head.replace(" ", "").lower().endswith(";base64"):
        raise InputError(f"{name}: the data URL is not of the form data:image/png;base64,... Correct it.")
    text = "".join((unquote(body) if "%" in body else body).split())
    if len(text) > MAX_BYTES * 4 // 3:
        raise _too_long(name)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{name}: its data URL is not base64 ({error}). Correct it.") from None


def _too_long(name: str) -> InputError:
    return InputError(f"{name} has more than {MAX_BYTES >> 20} MiB. Use a smaller picture.")


def _allowed_file(url: str, sources: Sources, name: str) -> Path:
    from urllib.request import url2pathname

    parts = _split(url, name)
    path = Path(url2pathname(parts.path) if parts.scheme == "file" else url)
    if sources.folder is None:
        raise UsageError(f"{name} is a local file, which is not allowed. Send a data URL, or set image_folder.")
    folder = Path(sources.folder).resolve()
    try:
        found = (folder / path).resolve()
    except ValueError as error:  # a null byte or a surrogate
        raise UsageError(f"{name}: {str(path)[:80]!r} is no file name ({error}). Correct it.") from None
    if not found.is_relative_to(folder):
        raise UsageError(f"{name}: {path} is not below image_folder, {folder}. Move it there, or send a data URL.")
    return found
