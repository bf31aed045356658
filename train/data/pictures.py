"""Pictures of the training data, prepared as the engine's vision encoder prepares them.

Decoding is that of sessions (llama_eagle/vision/pictures.py). Sizes and borders are those of libmtmd for the encoders
of Qwen3-VL and Qwen3.5 (tools/mtmd/mtmd-image.cpp: calc_size_preserved_ratio, img_tool::resize), in its precision.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from llama_eagle.errors import InputError
from llama_eagle.vision.pictures import Picture, decode_data_url, open_picture, read_file

ROWS = (8, 4096)  # of a picture, at least and at most; llama.cpp reads no others from an mmproj of these encoders
MAX_SIDE = 65536  # pixels, of a prepared picture
DATA_URL = "data:"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # one letter is a drive of Windows

ImageSource = Path | str  # a file, or a data URL


def find_image(name: str, folder: Path) -> ImageSource:
    """Return the source that a message names, relative to `folder`. Raises InputError for a missing file or a URL."""
    if name.startswith(DATA_URL):
        return name
    path = folder / (url2pathname(urlsplit(name).path) if name.startswith("file:") else name)
    with contextlib.suppress(OSError, ValueError):  # too long a name, as base64 without data: in front has
        if path.is_file():
            return path
    if (found := _URL.match(name)) and found[0] != "file:":
        raise InputError(f"image {name[:80]} is a URL of {found[0]} Save the picture, and name its file.")
    raise InputError(f"image {name[:200]} is missing (looked for {str(path)[:300]}).")


def read_image(image: ImageSource, name: str) -> bytes:
    return read_file(image) if isinstance(image, Path) else decode_data_url(image, name)


def open_image(image: ImageSource, source: str) -> Picture:
    """Return a picture, decoded once as a check. source: the data's file and line, for errors."""
    name = f"{source}: image {image}" if isinstance(image, Path) else f"{source}: an image in a data URL"
    return open_picture(read_image(image, name), name)


def row_size(picture: Picture, align: int) -> tuple[int, int]:
    """Return width and height in rows of `align` x `align` pixels. Raises InputError for an extreme size."""
    width, height = picture.width, picture.height
    smallest, largest = (n * align * align for n in ROWS)
    single, sides = np.float32, (width, height)
    found = [max(1, int(np.floor(single(side) / single(align) + single(0.5)))) for side in sides]
    n_pixels = found[0] * found[1] * align * align
    area = single(height) * single(width)
    if n_pixels > largest:
        scale = np.sqrt(area / single(largest))
        found = [max(1, int(np.floor(single(side) / scale / single(align)))) for side in sides]
    elif n_pixels < smallest:
        scale = np.sqrt(single(smallest) / area)
        found = [int(np.ceil(single(side) * scale / single(align))) for side in sides]
    if max(found) * align > MAX_SIDE:
        raise InputError(f"{picture.name}, {width} x {height} pixels, cannot be prepared. Use another size.")
    return found[0], found[1]


def prepared(picture: Picture, align: int) -> Any:
    """Return a PIL image of whole rows: the picture in its proportions, in the middle of a black one."""
    from PIL import Image

    image = Image.frombytes("RGB", (picture.width, picture.height), picture.pixels())
    columns, lines = row_size(picture, align)
    size = (columns * align, lines * align)
    if image.size == size:
        return image
    scale = min(np.float32(side) / np.float32(own) for side, own in zip(size, image.size, strict=True))
    inner = [min(int(np.ceil(np.float32(own) * scale)), side) for side, own in zip(size, image.size, strict=True)]
    resized = image.resize((inner[0], inner[1]), Image.Resampling.BICUBIC)
    whole = Image.new("RGB", size)
    whole.paste(resized, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return whole
