"""Pictures in a text of token ids: each is a negative id, repeated for each of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from llama_eagle.errors import InputError, UsageError
from llama_eagle.vision.encoder import MARKER, Frame, VisionEncoder
from llama_eagle.vision.pictures import Picture, key_of, open_picture, read_file
from llama_eagle.vision.rows import EmbeddedRows

FIRST_ID = -2  # -1 is an unknown row
KEPT_BYTES = 64 << 20  # of pictures that no text in memory contains: the caller may still hold their ids

Encode = Callable[[str, bool], list[int]]  # called with a piece of text, and True if it is the first


@dataclass
class _Entry:
    key: str
    frame: Frame
    picture: Picture | None  # None: its rows may be in memory, but its file was freed


def with_markers(prompt: str, n_pictures: int) -> str:
    """Return a prompt with a marker for each picture. Without a marker, the pictures come first."""
    return prompt if MARKER in prompt else MARKER * n_pictures + prompt


class PicturesInText:
    """The pictures in texts, by id. The same picture has the same id, so that texts can be compared."""

    def __init__(self, encoder: VisionEncoder, on_encode: Callable[[Picture, int], None] | None = None) -> None:
        self.encoder = encoder
        self.n_encoded = 0  # pictures
        self._on_encode = on_encode
        self._entries: dict[int, _Entry] = {}
        self._ids: dict[str, int] = {}

    def picture(self, data: bytes, name: str) -> Picture:
        """Return the picture in a file's bytes. One that a text contains already is not decoded again."""
        entry = self._entries.get(self._ids.get(key_of(data), 0))
        return entry.picture if entry and entry.picture else open_picture(data, name)

    def open(self, image: bytes | str | PathLike[str], name: str) -> Picture:
        """Return the picture in a file, given as its name or its content.

        Raises `InputError` if it cannot be read, `UsageError` for other types.
        """
        if isinstance(image, bytes | bytearray | memoryview):
            return self.picture(bytes(image), name)
        if not isinstance(image, str | PathLike):
            raise UsageError(f"{name} is a {type(image).__name__}. Give a file name, or the content as bytes.")
        return self.picture(read_file(image), str(image))

    def ids(self, picture: Picture) -> list[int]:
        """Return the ids of a picture in a text: the tokens before it, its rows, the tokens after it."""
        if picture.key not in self._ids:
            self._add(picture.key, self.encoder.frame(picture))
        at = self._ids[picture.key]
        entry = self._entries[at] = self._entries.pop(at)  # the last one is the newest
        entry.picture = entry.picture or picture
        return [*entry.frame.before, *[at] * entry.frame.n_rows, *entry.frame.after]

    def join(self, texts: Sequence[str], pictures: Sequence[Picture], encode: Encode) -> list[int]:
        """Return the ids of texts with a picture between each two."""
        ids = encode(texts[0], True)
        for picture, text in zip(pictures, texts[1:], strict=True):
            ids += self.ids(picture) + (encode(text, False) if text else [])
        return ids

    def insert(self, prompt: str, pictures: Sequence[Picture], encode: Encode) -> list[int]:
        """Return a prompt's ids with pictures at its markers. Raises `UsageError` if their numbers differ."""
        texts = prompt.split(MARKER)
        if len(texts) - 1 != len(pictures):
            raise UsageError(
                f"the prompt has {len(texts) - 1} markers {MARKER} for {len(pictures)} pictures. Use one per picture."
            )
        return self.join(texts, pictures, encode)

    def rows(self, at: int) -> EmbeddedRows:
        """Encode a picture, and return its rows. Raises `InputError` if the picture is not available."""
        entry = self._entry(at)
        assert entry.picture is not None
        if self._on_encode is not None:
            self._on_encode(entry.picture, entry.frame.n_rows)
        rows = self.encoder.encode(entry.picture)
        self.n_encoded += 1
        return rows

    def _entry(self, at: int) -> _Entry:
        """Return a picture's entry. Raises `InputError` if the picture is not available."""
        entry = self._entries.get(at)
        if entry is None or entry.picture is None:
            raise InputError("the text contains a picture that is no longer available. Send it again.")
        return entry

    def n_rows(self, at: int) -> int:
        return self._entries[at].frame.n_rows if at in self._entries else 1

    def require_whole(self, text: NDArray[np.intc]) -> None:
        """Raise `InputError` for a picture in `text` [n] that is not available, or has too few or too many rows."""
        starts = np.flatnonzero(np.diff(text, prepend=0))
        ends = np.append(starts, len(text))[1:]
        is_picture = text[starts] <= FIRST_ID
        for start, end in zip(starts[is_picture].tolist(), ends[is_picture].tolist(), strict=True):
            size = self._entry(int(text[start])).frame.n_rows
            if (end - start) % size:
                raise InputError(
                    f"the text contains {end - start} rows of a picture that has {size}. Cut texts before or after "
                    "pictures."
                )

    def keep(self, *texts: NDArray[np.intc] | Sequence[int]) -> None:
        """Free the oldest pictures beyond `KEPT_BYTES` that none of these texts contains, but keep their ids."""
        held = {int(at) for text in texts for at in np.unique(np.asarray(text, np.intc)) if at <= FIRST_ID}
        room = KEPT_BYTES
        for at, entry in reversed(self._entries.items()):
            if at not in held and entry.picture is not None:
                room -= len(entry.picture.data)
                if room < 0:
                    entry.picture = None

    def describe(self, text: NDArray[np.intc]) -> dict[int, tuple[str, Frame]]:
        """Return the pictures of a text's ids [n], for `adopt`."""
        held = {int(at) for at in np.unique(text) if at <= FIRST_ID}
        return {at: (self._entries[at].key, self._entries[at].frame) for at in held if at in self._entries}

    def adopt(self, text: NDArray[np.intc], described: dict[int, tuple[str, Frame]]) -> NDArray[np.intc]:
        """Return the ids [n] of another table's text as ids of this one."""
        renamed = {at: self._ids.get(key) or self._add(key, frame) for at, (key, frame) in described.items()}
        return np.array([renamed.get(int(token), int(token)) for token in text], dtype=np.intc)

    def _add(self, key: str, frame: Frame) -> int:
        at = FIRST_ID - len(self._entries)
        self._entries[at] = _Entry(key, frame, None)
        self._ids[key] = at
        return at


def cut_before(text: NDArray[np.intc] | Sequence[int], n: int, pictures: PicturesInText | None) -> int:
    """Return the largest number of rows up to `n` that does not end within a picture."""
    if pictures is None or not 0 < n < len(text) or text[n] > -2 or text[n] != text[n - 1]:
        return n
    first = n
    while first > 0 and text[first - 1] == text[n]:
        first -= 1
    size = pictures.n_rows(int(text[n]))
    return first + (n - first) // size * size
