"""Documents as token sequences with the tokens to be learned marked."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_eagle.errors import ConfigError, EagleError, InputError
from llama_eagle.sessions.chats.abilities import REASONING
from llama_eagle.sessions.chats.messages import text_of
from llama_eagle.train.data.documents import MAX_NAMED, Document, Message, image_parts, is_learned
from llama_eagle.train.data.pictures import DATA_URL, ImageSource, find_image, read_image
from numpy.typing import NDArray

MIN_LENGTH = 4  # tokens; a shorter sequence has no slot worth learning
NEXT: Message = {"role": "user", "content": "Go on."}
THINK, THINK_END = "<think>", "</think>"
_NO_REASONING = re.compile(r"^\s*((<think>\s*)?</think>)?\s*")
_TAGS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
_OPEN_TAG = re.compile(r"[<\[][^<>\[\]]*$")
FRAME = ("<|vision_start|>", "<|vision_end|>")  # texts around a picture's rows, as libmtmd writes them


@dataclass(frozen=True)
class Sample:
    """tokens: [n] int32, an image's token once for each of its rows. mask: [n], true for the tokens to be predicted.
    images: files, in the order of their tokens. grids: height and width of each in rows."""

    source: str
    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    images: tuple[ImageSource, ...] = ()
    grids: tuple[tuple[int, int], ...] = ()

    @property
    def n_learned(self) -> int:
        """Tokens that some slot predicts: the first two are none's prediction."""
        return int(self.mask[2:].sum())


@dataclass(frozen=True)
class Turn:
    """A rendered conversation that ends with an answer, which begins at `start`."""

    text: str
    start: int


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered conversation. Pieces are tokenized apart, as a prompt and its answer are."""

    text: str
    is_learned: bool


@dataclass(frozen=True)
class Chat:
    """A conversation with a marker in place of each picture. grids: height and width of the pictures in rows."""

    document: Document
    messages: tuple[Message, ...]
    images: tuple[ImageSource, ...]
    grids: tuple[tuple[int, int], ...]
    marker: str

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the template. An answer with reasoning was written with thinking enabled."""
        thinks = {"enable_thinking": True} if any(map(_reasoning, self.messages)) else {}
        return {"tools": list(self.document.tools) or None, **thinks}


@dataclass
class Faults:
    """Faulty documents: the first message, and the places of all."""

    first: str = ""
    places: list[str] = field(default_factory=list)

    def add(self, place: str, error: EagleError) -> None:
        self.first = self.first or str(error)
        self.places.append(place)

    def raise_any(self) -> None:
        if not self.places:
            return
        others = self.places[1 : 1 + MAX_NAMED]
        more = len(self.places) - 1 - len(others)
        told = f" Faulty, too: {', '.join(others)}{f' and {more} more' if more else ''}." if others else ""
        raise InputError(f"{self.first}{told}")


class SampleMaker:
    """images: how many rows an image becomes, see target.py; None when the target has no vision."""

    def __init__(self, tokenizer: Any, max_length: int, images: Any = None) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.images = images
        self._faults = Faults()

    def make(self, documents: Iterable[Document]) -> list[Sample]:
        """Make samples of at most max_length tokens. A long text is split; a conversation is cut at its end.

        Raises InputError for documents that make no sample, all of them at once.
        """
        self._faults = Faults()
        samples: list[Sample] = []
        for document in documents:
            try:
                samples += [sample for sample in self._samples(document) if len(sample.tokens) >= MIN_LENGTH]
            except InputError as error:
                self._faults.add(document.source, error)
        self._faults.raise_any()
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
        chat = self._chat(document)
        if chat is not None:
            for pieces in self._conversations(chat):
                yield self._sample(chat, pieces)

    def _windows(self, document: Document) -> Iterator[Sample]:
        ids = self.tokenizer.encode(document.text, add_special=True)
        self._require_no_rows(document.source, ids)
        tokens = np.array(ids, np.int32)
        for start in range(0, len(tokens), self.max_length):
            part = tokens[start : start + self.max_length]
            yield Sample(document.source, part, np.ones(len(part), np.bool_))

    def _require_no_rows(self, source: str, tokens: list[int]) -> None:
        """Raise InputError for a text with the token that stands for a picture's rows."""
        if self.images is not None and self.images.token in tokens:
            name = self.tokenizer.decode([self.images.token])
            raise InputError(f"{source}: its text contains {name}, the token of a picture's rows. Remove it.")

    # --- conversations ---------------------------------------------------------------------------------------

    def _chat(self, document: Document) -> Chat | None:
        """Return a conversation with its pictures; None if some are faulty, which is noted."""
        marker = f"<|picture {secrets.token_hex(8)}|>"
        images, grids, n_faults = list[ImageSource](), list[tuple[int, int]](), len(self._faults.places)
        for part in (part for message in document.messages for part in image_parts(message)):
            try:
                images.append(find_image(part["image"], document.folder))
                if self.images is None:
                    raise InputError(
                        "has an image, but the target has no vision tower. Use a checkpoint of Qwen3-VL or Qwen3.5 as "
                        "the target, not a GGUF, or leave the line out."
                    )
                grids.append(self.images.grid(images[-1], document.source))
            except InputError as error:
                told = error if str(error).startswith(document.source) else InputError(f"{document.source}: {error}")
                name = "a data URL" if part["image"].startswith(DATA_URL) else part["image"][:40]
                self._faults.add(f"{document.source} ({name})", told)
        if len(self._faults.places) > n_faults:
            return None
        messages = tuple(_with_marker(message, marker) for message in document.messages)
        return Chat(document, messages, tuple(images), tuple(grids), marker)

    def _conversations(self, chat: Chat) -> list[list[Piece]]:
        """Return one list of pieces, or one per answer.

        One list suffices if each turn is rendered alike as the last turn and as history. Templates such as Qwen3's drop
        the reasoning of earlier turns.
        """
        turns = [self._turn(chat, i) for i, message in enumerate(chat.messages) if is_learned(message)]
        whole = turns[-1].text
        if all(whole.startswith(turn.text) for turn in turns):
            return [_cut(whole, [(turn.start, len(turn.text)) for turn in turns])]
        return [_cut(turn.text, [(turn.start, len(turn.text))]) for turn in turns]

    def _turn(self, chat: Chat, i: int) -> Turn:
        """Return message i after its prompt, as the target reads and writes them.

        Raises InputError if the chat template does not show where the answer begins, or not all of it.
        """
        before, answered = chat.messages[:i], chat.messages[: i + 1]
        prompt, text = self._render(chat, before, is_prompt=True), self._render(chat, answered)
        found = Turn(text, len(prompt)) if text.startswith(prompt) else self._aligned(chat, i, prompt, text)
        if found is not None and THINK_END in self.tokenizer.chat_template:
            found = _with_reasoning(chat.messages[i], found, prompt)
        problem = "the beginning" if found is None else _missing(chat.messages[i], found)
        if found is None or problem:
            raise InputError(
                f"{chat.document.source}: the target's chat template does not show {problem} of message {i + 1}, an "
                "answer. Leave it out, or give the rendered conversation as text."
            )
        return self._without_next(chat, answered, found, prompt)

    def _without_next(self, chat: Chat, answered: tuple[Message, ...], turn: Turn, prompt: str) -> Turn:
        """Return a turn without the beginning of another answer, which some templates write after all messages."""
        n = min(_n_same(turn.text[::-1], prompt[::-1]), len(turn.text) - turn.start)
        end = turn.text[len(turn.text) - n :]
        tags = list(_TAGS.finditer(end))
        if not tags or self._render(chat, (*answered, NEXT)).startswith(turn.text):
            return turn
        first = tags[0].end() if len(tags) > 1 else tags[0].start()  # the end of a turn, unless the header is one tag
        return Turn(turn.text[: len(turn.text) - n + first], turn.start)

    def _aligned(self, chat: Chat, i: int, prompt: str, text: str) -> Turn | None:
        """Return message i after its prompt for a template that changes the prompt when an answer follows.

        Templates move the system message (Mistral), drop an opening of reasoning (DeepSeek) or the reasoning of earlier
        answers (LFM2), or end the last message in another way (Hermes). The answer is found by a mark at the end of the
        message before it. Return None if that message is not shown once, at its place.
        """
        before = chat.messages[:i]
        opening = self._after_mark(chat, before, -1, is_prompt=True)
        answer = self._after_mark(chat, chat.messages[: i + 1], i - 1)
        if not i or opening is None or answer is None or not (prompt.endswith(opening) and text.endswith(answer)):
            return None
        ending = self._after_mark(chat, before, -1)
        header = opening.removeprefix(ending or "")
        head = prompt[: len(prompt) - len(opening)]
        n = _n_common(opening, answer)
        if header.strip() and header in answer:
            return Turn(prompt + answer.partition(header)[2], len(prompt))
        return Turn(head + answer, len(head) + n) if not _TAGS.sub("", opening[n:]).strip() else None

    def _after_mark(self, chat: Chat, messages: tuple[Message, ...], at: int, *, is_prompt: bool = False) -> str | None:
        """Return the text after the content of message `at`; None if the template does not show that once."""
        if not messages:
            return None
        mark = f"MARK{secrets.token_hex(8)}"
        marked = list(messages)
        marked[at] = _with_text(messages[at], mark)
        try:
            _, *after = self._render(chat, tuple(marked), is_prompt=is_prompt).split(mark)
        except InputError:
            return None
        return after[0] if len(after) == 1 else None

    def _render(self, chat: Chat, messages: tuple[Message, ...], *, is_prompt: bool = False) -> str:
        if not self.tokenizer.chat_template:
            raise ConfigError("the target has no chat template: chat data cannot be used. Give plain text.")
        source = chat.document.source
        try:
            text = str(self.tokenizer.render(messages, is_prompt=is_prompt, **chat.variables))
        except EagleError as error:
            raise InputError(f"{source}: the target's chat template refuses it: {error}") from None
        n_images = sum(str(message["content"]).count(chat.marker) for message in messages)
        if text.count(chat.marker) != n_images:
            raise InputError(f"{source}: the target's chat template shows another number of images than {n_images}.")
        return text

    def _sample(self, chat: Chat, pieces: list[Piece]) -> Sample:
        """Tokenize pieces, with a token for each row of a picture."""
        source, ids, mask, grids = chat.document.source, list[int](), list[bool](), list[tuple[int, int]]()
        end = 0
        for piece in pieces:
            for n, text in enumerate(piece.text.split(chat.marker)):
                if n:
                    rows = self._rows(chat.grids[len(grids)])
                    grids.append(chat.grids[len(grids)])
                    ids, mask = ids + rows, mask + [False] * len(rows)
                    end = len(ids)
                tokens = self.tokenizer.encode(text, add_special=False) if text else []
                self._require_no_rows(source, tokens)
                ids, mask = ids + tokens, mask + [piece.is_learned] * len(tokens)
        if end >= self.max_length:
            raise InputError(f"{source}: its images end at token {end}, past --max-length {self.max_length}; raise it.")
        tokens_array, mask_array = np.array(ids, np.int32), np.array(mask, np.bool_)
        images = chat.images[: len(grids)]
        return Sample(source, tokens_array[: self.max_length], mask_array[: self.max_length], images, tuple(grids))

    def _rows(self, grid: tuple[int, int]) -> list[int]:
        """Return the tokens of a picture: its rows between those of its frame."""
        before, after = (self.tokenizer.encode(text, add_special=False) for text in FRAME)
        return [*before, *[self.images.token] * (grid[0] * grid[1]), *after]


def digest(samples: Iterable[Sample]) -> str:
    """Return a digest of the tokens to learn and their images."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(sample.tokens.tobytes() + sample.mask.tobytes())
        for image in sample.images:
            found.update(read_image(image, sample.source))
    return found.hexdigest()


def _n_same(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _n_common(a: str, b: str) -> int:
    """Return the number of characters with which both begin, without a part of a tag."""
    n = _n_same(a, b)
    return len(_OPEN_TAG.sub("", a[:n])) if n < len(a) else n


def _reasoning(message: Message) -> str:
    """Return the reasoning of an answer, which has a key of its own or begins the content."""
    if message["role"] != "assistant":
        return ""
    content = message.get("content")
    inline = content.rpartition(THINK_END)[0].rpartition(THINK)[2] if isinstance(content, str) else ""
    return next((message[key].strip() for key in REASONING if isinstance(message.get(key), str)), inline.strip())


def _with_reasoning(message: Message, turn: Turn, prompt: str) -> Turn:
    """Return an answer after its reasoning, which the target writes, though its template drops it from the history."""
    reasoning, answer = _reasoning(message), turn.text[turn.start :]
    if reasoning in answer or prompt.rstrip().endswith(THINK_END):
        return turn
    begin = "" if prompt.rstrip().endswith(THINK) else f"{THINK}\n"
    return Turn(f"{prompt}{begin}{reasoning}\n{THINK_END}\n\n{_NO_REASONING.sub('', answer)}", len(prompt))


def _missing(message: Message, turn: Turn) -> str:
    """Return the part of an answer that its rendered text lacks; "" for none."""
    answer = turn.text[turn.start :]
    parts = message["content"] if isinstance(message["content"], list) else [{"text": message["content"] or ""}]
    texts = [str(part.get("text", "")).rpartition(THINK_END)[2] for part in parts]
    names = Counter(call["function"]["name"] for call in message.get("tool_calls") or ())
    missing = {
        "the content": any(text.strip() not in answer for text in texts),
        "the calls": any(answer.count(name) < n for name, n in names.items()),
        "the reasoning": _reasoning(message) not in answer,
    }
    return next((part for part, applies in missing.items() if applies), "")


def _cut(text: str, answers: list[tuple[int, int]]) -> list[Piece]:
    pieces, end = [], 0
    for start, stop in answers:
        pieces += [Piece(text[end:start], False), Piece(text[start:stop], True)]
        end = stop
    return [piece for piece in pieces if piece.text]


def _with_marker(message: Message, marker: str) -> Message:
    """Return a message with a marker in place of each picture, as sessions render it."""
    if not image_parts(message):
        return message
    picture = {"type": "media_marker", "text": marker}
    content = text_of([picture if part["type"] == "image" else part for part in message["content"]])
    return {**message, "content": content}


def _with_text(message: Message, text: str) -> Message:
    """Return a message whose content ends with `text`."""
    content = message["content"] or ""
    is_list = isinstance(content, list)
    return {**message, "content": [*content, {"type": "text", "text": text}] if is_list else content + text}
