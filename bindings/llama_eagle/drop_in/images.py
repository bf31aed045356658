"""Chats with images: OpenAI's messages, with the rows of each picture in place of its address."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_eagle.drop_in.answers.prompt import ForHandler
from llama_eagle.errors import InputError, UsageError
from llama_eagle.sessions.chats.media import with_marks
from llama_eagle.vision.in_text import Encode, PicturesInText
from llama_eagle.vision.pictures import Picture, Sources, fetch


class ImageReader:
    """Reader of the images of chats. sources: allowed origins of images."""

    def __init__(self, pictures: PicturesInText, sources: Sources) -> None:
        self.pictures = pictures
        self.sources = sources

    def read(self, llama: Any, messages: Sequence[Mapping[str, Any]], template: str) -> tuple[Any, list[Any]]:
        """Return an instance that knows the positions of images, and messages of text, for a chat handler of text.

        template: joins the texts of a message; "" if there is none. Raises `InputError` or `UsageError` for an image
        that cannot be read.
        """
        chat = _Chat(self, template, f"<|picture {secrets.token_hex(8)}|>", [])
        turns = [chat.as_text(message) for message in messages]
        return _WithImages(llama, chat), turns


@dataclass
class _Chat:
    """One request. marker: placeholder of a picture in the rendered template; no text contains it."""

    reader: ImageReader
    template: str
    marker: str
    found: list[Picture]

    def as_text(self, message: Any) -> Any:
        """Return a message with pictures as a message of text, which every template supports. Others are unchanged."""
        return with_marks(self.template, message, _is_image, self._mark_of, "text and image_url")

    def _mark_of(self, part: Mapping[str, Any]) -> str:
        address = part.get("image_url")
        url = address.get("url") if isinstance(address, Mapping) else address
        name = f"image {len(self.found) + 1}"
        if not isinstance(url, str):
            raise UsageError(f"{name} has no url. Send a data URL.")
        data = fetch(url, self.reader.sources, name)
        self.found.append(self.reader.pictures.picture(data, name))
        return self.marker

    def tokens(self, text: str, encode: Encode) -> list[int]:
        texts = text.split(self.marker)
        if len(texts) - 1 != len(self.found):
            raise InputError(
                f"the chat template renders {len(texts) - 1} of {len(self.found)} images. Use a template that renders "
                "the text of all messages."
            )
        return self.reader.pictures.join(texts, self.found, encode)


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"


class _WithImages(ForHandler):
    """Tokenizes texts with the rows of pictures in their places."""

    def __init__(self, llama: Any, chat: _Chat) -> None:
        super().__init__(llama)
        self._chat = chat

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        def encode(part: str, is_first: bool) -> list[int]:
            return list(self._llama.tokenize(part.encode(), add_bos=add_bos and is_first, special=special))

        tokens = self._chat.tokens(text.decode(), encode)
        self._llama._require_memory().require_room(tokens)
        return tokens
