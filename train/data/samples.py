"""Documents as token sequences with the tokens to be learned marked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_eagle.errors import ConfigError, InputError
from llama_eagle.train.data.documents import Document, Message
from numpy.typing import NDArray

MIN_LENGTH = 4  # tokens; a shorter sequence has no slot worth learning


@dataclass(frozen=True)
class Sample:
    """tokens: [n] int32, an image's token once for each of its rows. mask: [n], true for the tokens to be predicted.
    images: files, in the order of their tokens. grids: height and width of each in rows."""

    source: str
    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    images: tuple[Path, ...] = ()
    grids: tuple[tuple[int, int], ...] = ()

    @property
    def n_learned(self) -> int:
        """Tokens that some slot predicts: the first two are none's prediction."""
        return int(self.mask[2:].sum())


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered conversation. Pieces are tokenized apart, as a prompt and its answer are."""

    text: str
    is_learned: bool


class SampleMaker:
    """images: how many rows an image becomes, see target.py; None when the target has no vision."""

    def __init__(self, tokenizer: Any, max_length: int, images: Any = None) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.images = images

    def make(self, documents: Iterable[Document]) -> list[Sample]:
        """Make samples of at most max_length tokens. A long text is split; a conversation is cut at its end."""
        samples = [s for document in documents for s in self._samples(document) if len(s.tokens) >= MIN_LENGTH]
        kept = [sample for sample in samples if sample.n_learned]
        if not kept:
            raise InputError(
                f"nothing to learn in {len(samples)} samples of the data: too short, or no assistant message within "
                f"{self.max_length} tokens. Give more data, or a larger --max-length."
            )
        return kept

    def _samples(self, document: Document) -> Iterator[Sample]:
        if not document.messages:
            yield from self._windows(document)
            return
        for pieces in self._conversations(document):
            yield self._chat(document, pieces)

    def _windows(self, document: Document) -> Iterator[Sample]:
        tokens = np.array(self.tokenizer(document.text, verbose=False)["input_ids"], np.int32)
        for start in range(0, len(tokens), self.max_length):
            part = tokens[start : start + self.max_length]
            yield Sample(document.source, part, np.ones(len(part), np.bool_))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    # --- conversations ---------------------------------------------------------------------------------------

    def _conversations(self, document: Document) -> list[list[Piece]]:
        """Return one list of pieces, or one per answer.

        One list suffices if each turn is rendered alike as the last turn and as history. Templates such as Qwen3's drop
        the reasoning of earlier turns.
        """
        messages = document.messages
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        answers = [self._answer(document, i) for i in turns]
        whole = answers[-1][0]
        if all(whole.startswith(text) for text, _ in answers):
            return [_cut(whole, [(start, len(text)) for text, start in answers])]
        return [_cut(text, [(start, len(text))]) for text, start in answers]

    def _answer(self, document: Document, i: int) -> tuple[str, int]:
        """Return the conversation up to and including message i, and where the generated part of it begins."""
        prompt = self._render(document, document.messages[:i], prompt=True)
        text = self._render(document, document.messages[: i + 1])
        return text, _n_common(prompt, text)

    def _render(self, document: Document, messages: tuple[Message, ...], prompt: bool = False) -> str:
        if not self.tokenizer.chat_template:
            raise ConfigError("the target has no chat template: chat data cannot be used. Give plain text.")
        try:
            text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)
        except Exception as error:  # a template's own code can raise anything
            raise InputError(f"{document.source}: the target's chat template refuses it: {error}") from None
        return str(text)

    def _chat(self, document: Document, pieces: list[Piece]) -> Sample:
        ids: list[int] = []
        mask: list[bool] = []
        for piece in pieces:
            tokens = self._encode(piece.text)
            ids += tokens
            mask += [piece.is_learned] * len(tokens)
        tokens_array, mask_array = np.array(ids, np.int32), np.array(mask, np.bool_)
        images = _images(document)
        if images:
            return self._with_images(document, tokens_array, mask_array, images)
        return Sample(document.source, tokens_array[: self.max_length], mask_array[: self.max_length])

    def _with_images(
        self, document: Document, tokens: NDArray[np.int32], mask: NDArray[np.bool_], images: tuple[Path, ...]
    ) -> Sample:
        """Repeat every image token once per row of its image."""
        if self.images is None:
            raise InputError(f"{document.source}: has an image, but the target has no vision tower.")
        places = np.flatnonzero(tokens == self.images.token)
        if len(places) != len(images):
            raise InputError(
                f"{document.source}: {len(images)} images, but the chat template renders {len(places)} image tokens."
            )
        grids = tuple(self.images.grid(image, document.source) for image in images)
        repeats = np.ones(len(tokens), np.int64)
        repeats[places] = [height * width for height, width in grids]
        tokens, mask = np.repeat(tokens, repeats), np.repeat(mask, repeats)
        end = int(np.flatnonzero(tokens == self.images.token)[-1]) + 1
        if end >= self.max_length:
            raise InputError(
                f"{document.source}: its images end at token {end}, past --max-length {self.max_length}; raise it."
            )
        return Sample(document.source, tokens[: self.max_length], mask[: self.max_length], images, grids)


def digest(samples: Iterable[Sample]) -> str:
    """Return a digest of the tokens to learn and their images."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(sample.tokens.tobytes() + sample.mask.tobytes())
        for image in sample.images:
            found.update(image.read_bytes())
    return found.hexdigest()


def _n_common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cut(text: str, answers: list[tuple[int, int]]) -> list[Piece]:
    pieces, end = [], 0
    for start, stop in answers:
        pieces += [Piece(text[end:start], False), Piece(text[start:stop], True)]
        end = stop
    return [piece for piece in pieces if piece.text]


def _images(document: Document) -> tuple[Path, ...]:
    found = []
    for message in document.messages:
        content = message["content"]
        for part in content if isinstance(content, list) else []:
            if part["type"] == "image":
                path = document.folder / part["image"]
                if not path.is_file():
                    raise InputError(f"{document.source}: image {part['image']} is missing (looked for {path}).")
                found.append(path)
    return tuple(found)
