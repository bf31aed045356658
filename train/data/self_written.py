"""Training data that the target writes itself: questions after its chat template's user prefix, and its answers.

Questions are sampled, most of them after given first words; answers are alternately greedy and sampled, since a draft
is used for both. Topics appear only in the system message of questions. Source of the method: Magpie (Xu et al. 2024),
which prompts an instruction-tuned model with the part of its template that precedes the user's message.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_eagle.errors import EagleError, InputError
from llama_eagle.progress import progress
from llama_eagle.serving.prompts import CHAT, TEXT, Journal, Record, Refused, in_parallel
from llama_eagle.train.data.documents import Document, Message

FILE = "conversations.jsonl"
PART = f"{FILE}.part"  # while it is written
N_DEFAULT = 1000  # conversations without a time limit
MARK = "QUESTIONMARKER"  # placeholder of a user's message in a rendered template
QUESTION_TOKENS = 256
QUESTION_LENGTH = (8, 2000)  # characters; shorter is rarely a question, longer rarely ends
QUESTION_SAMPLING = {"temperature": 1.0, "top_p": 0.95, "min_p": 0.02}
ANSWER_SAMPLING: tuple[dict[str, float], ...] = ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.95})
FOLLOW_UP = 4  # every fourth conversation has a second question
STARTED = 0.75  # share of first questions whose first words are given: tasks that the target would rarely ask for
MATERIAL = 3  # every third document is made from the user's data, where there is some
OPENING_LENGTH = (200, 800)  # characters of a text that the target continues
MIN_USABLE = 0.02  # share of attempts below which the target is no author
ATTEMPTS = 200  # before that is judged

TOPICS = (
    "", "everyday life", "cooking", "a Python program", "world history", "health and sleep", "mathematics", "travel",
    "a short story", "grammar and spelling", "physics", "biology", "an email to a colleague", "a summary of a text",
    "personal finance", "gardening", "music", "sports training", "a poem", "chemistry", "a job application",
    "a bug in a program", "SQL and databases", "geography", "philosophy", "parenting", "a shell command",
    "a list of ideas", "translation", "a step-by-step guide", "economics", "astronomy", "a table of facts",
    "law in plain words", "home repair", "art", "a definition", "a comparison of two things",
    "JavaScript and web pages",
    "climate and weather", "a letter of complaint", "books and films", "algorithms", "a birthday party", "politeness",
    "statistics", "the human body", "a business plan", "logic puzzles", "animals",
)  # fmt: skip
STARTS = (
    "Write a", "Write a short", "Write an", "Write a function that", "Write a program", "Explain", "Explain why",
    "What is", "What are", "What happens", "How do", "How does", "How can I", "Why", "Describe", "List", "Give me",
    "Give an example of", "Compare", "Summarize", "Translate into", "Plan", "Create a", "Is it better", "Which",
    "Imagine", "You are a", "Fix", "Rewrite", "Find", "Calculate", "I want to", "I have", "Can you", "Should I",
    "Tell me about", "Help me", "Convert", "Return",
)  # fmt: skip
OPENINGS = (
    "The", "In", "It was", "When", "A", "How to", "There are", "Most people", "def ", "# ", "import ", "Question:",
    "Once upon a time", "According to", "This", "We", "If", "For example,", "On Monday", "1.",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Limits of writing.

    seconds: time of the whole run, including earlier ones; None: no limit. max_length: tokens of a conversation. later:
    seconds per token that the run needs after writing.
    """

    n: int | None
    seconds: float | None
    max_length: int
    parallel: int
    seed: int
    later: float = 0.0

    def share_done(self, n: int, seconds: float, n_tokens: int) -> float:
        """Fraction of the data that is written: `n` conversations of `n_tokens`, in `seconds`. 1 at a limit."""
        needed = seconds + self.later * n_tokens
        shares = [n / self.n if self.n else 0.0, needed / self.seconds if self.seconds else 0.0]
        return min(1.0, max(shares))


class Template:
    """A chat template. render: messages to text, without the prefix of an answer."""

    def __init__(self, render: Callable[[Sequence[Message]], str]) -> None:
        self._render = render

    def opening(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text before the user's next message, and the text that ends that message.

        Raises `InputError` for a template that does not print a user's message as it is.
        """
        before, found, after = self._render([*messages, {"role": "user", "content": MARK}]).partition(MARK)
        if not found:
            raise InputError("the target's chat template changes the user's message. Name training data by --data.")
        return before, next(iter(after.strip().splitlines()), "")


class Author:
    """Writes conversation after conversation through a server. ask: a request's path and body to its answer."""

    def __init__(
        self, ask: Callable[[str, Record], Record], template: Template | None, given: Sequence[Document], limits: Limits
    ) -> None:
        self._ask, self._template, self._limits = ask, template, limits
        self._questions = [first for document in given if (first := _first_question(document))]
        self._texts = [document.text for document in given if document.text]
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def write(self, number: int) -> Record | None:
        """Return one line of training data; None if the attempt gave nothing new."""
        try:
            if self._template is None:
                return self._continue(number)
            if number % MATERIAL == 0 and self._texts and (number % 2 or not self._questions):
                return self._continue(number)
            return self._converse(number)
        except Refused:  # too long for the context, or no text that a template takes
            return None

    def remember(self, record: Mapping[str, Any]) -> None:
        """Never ask the questions of this conversation again."""
        for message in record.get("messages", ()):
            if message["role"] == "user":
                self._is_new(str(message["content"]))

    def _converse(self, number: int) -> Record | None:
        messages: list[Message] = []
        n_tokens = 0
        for turn in range(2 if number % FOLLOW_UP == FOLLOW_UP - 1 else 1):
            question = self._question(number, messages) if turn or not self._is_given(number) else self._given(number)
            if question is None:
                break
            asked = [*messages, {"role": "user", "content": question}]
            answer = self._ask(CHAT, {"messages": asked, **self._answering(number)})
            choice = answer["choices"][0]
            reply = {key: value for key, value in choice["message"].items() if value is not None}
            if not (reply.get("content") or reply.get("reasoning_content")):
                break  # an empty answer teaches nothing
            n_tokens += answer["usage"]["completion_tokens"]
            messages = [*asked, reply]
            if choice["finish_reason"] != "stop":
                break
        return {"messages": messages, "n_tokens": n_tokens} if messages else None

    def _question(self, number: int, messages: Sequence[Message]) -> str | None:
        """Sample a new question; None for one that is known, cut or empty."""
        assert self._template is not None
        topic = TOPICS[number % len(TOPICS)]
        system = [{"role": "system", "content": f"You are a helpful assistant. The user asks about {topic}."}]
        before, end = self._opening(system if topic and not messages else messages)
        chosen = random.Random(self._seed(number))
        start = chosen.choice(STARTS) if not messages and chosen.random() < STARTED else ""
        body = {"prompt": before + start, "max_tokens": QUESTION_TOKENS, "seed": self._seed(number)}
        choice = self._ask(TEXT, {**body, **QUESTION_SAMPLING, "stop": [end] if end else []})["choices"][0]
        text = (start + choice["text"]).strip() if choice["text"].strip(" .?!") else ""
        is_whole = choice["finish_reason"] == "stop" and QUESTION_LENGTH[0] <= len(text) <= QUESTION_LENGTH[1]
        return text if is_whole and self._is_new(text) else None

    def _opening(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the text before a question and the text that ends it.

        The topic is omitted if the template refuses a system message.
        """
        assert self._template is not None
        try:
            return self._template.opening(messages)
        except InputError:
            return self._template.opening([message for message in messages if message["role"] != "system"])

    def _is_given(self, number: int) -> bool:
        return number % MATERIAL == 0 and bool(self._questions)

    def _given(self, number: int) -> str | None:
        question = self._questions[number // MATERIAL % len(self._questions)]
        return question if self._is_new(question) else None

    def _continue(self, number: int) -> Record | None:
        """Let the target continue a text: a piece of the user's, or one of a few words."""
        chosen = random.Random(self._seed(number))
        opening = OPENINGS[number % len(OPENINGS)]
        if self._texts:
            text = chosen.choice(self._texts)
            start = chosen.randrange(max(1, len(text) - OPENING_LENGTH[0]))
            opening = text[start : start + chosen.randint(*OPENING_LENGTH)]
        sampling = self._answering(number) if self._texts else {**self._answering(number), **QUESTION_SAMPLING}
        answer = self._ask(TEXT, {"prompt": opening, **sampling})
        text = opening + answer["choices"][0]["text"]
        return {"text": text, "n_tokens": answer["usage"]["completion_tokens"]} if text.strip() else None

    def _answering(self, number: int) -> Record:
        sampling = ANSWER_SAMPLING[number % len(ANSWER_SAMPLING)]
        return {"max_tokens": self._limits.max_length, "seed": self._seed(number), **sampling}

    def _seed(self, number: int) -> int:
        return (self._limits.seed + number) % (2**32 - 1)

    def _is_new(self, question: str) -> bool:
        key = " ".join(re.findall(r"\w+", question.casefold()))
        with self._lock:
            is_new = bool(key) and key not in self._known
            self._known.add(key)
        return is_new


def _first_question(document: Document) -> str | None:
    first = next((message["content"] for message in document.messages if message["role"] == "user"), None)
    return first if isinstance(first, str) else None


@dataclass(frozen=True)
class Written:
    """The result: the file, its conversations and generated tokens, and the seconds that all runs took for them."""

    path: Path
    n: int
    n_tokens: int
    seconds: float


def write_data(author: Author, journal: Journal, path: Path, limits: Limits) -> Written:
    """Write until a limit of `limits` is reached; conversations of an earlier run count.

    Raises `EagleError` when the target writes next to nothing usable.
    """
    before = max((record["elapsed_s"] for record in journal.answers.values()), default=0.0)
    for record in journal.answers.values():
        author.remember(record)
    start = time.monotonic()
    n_tokens = sum(_n_tokens(record, limits) for record in journal.answers.values())

    def elapsed() -> float:
        return before + time.monotonic() - start

    def share_done() -> float:
        return limits.share_done(len(journal.answers), elapsed(), n_tokens)

    n_tried = 0
    numbers = itertools.count(max(journal.answers, default=-1) + 1)
    attempts = in_parallel(author.write, numbers, limits.parallel)
    with progress("writing training data", done=share_done()) as on_progress, closing(attempts):
        while share_done() < 1:
            number, found = next(attempts)
            n_tried += 1
            if found is not None:
                n_tokens += _n_tokens(found, limits)
                journal.add(number, {**found, "elapsed_s": round(elapsed(), 1)})
            if n_tried >= ATTEMPTS and len(journal.answers) < MIN_USABLE * n_tried:
                raise EagleError("the target wrote hardly any question. Name training data by --data FILE.")
            on_progress(share_done())
    if not journal.answers:
        raise EagleError("no time was left for a single conversation. Give more --hours, or --data FILE.")
    n_written = sum(record["n_tokens"] for record in journal.answers.values())
    written = Written(path, len(journal.answers), n_written, elapsed())
    journal.finish()
    return written


def has_conversation(part: Path) -> bool:
    """Return whether a journal has a finished conversation. The last line of a killed run may be incomplete."""
    lines = part.read_bytes().split(b"\n")[1:] if part.exists() else []  # the first one names the settings
    return any(map(_is_conversation, lines))


def _is_conversation(line: bytes) -> bool:
    try:
        return "answer" in json.loads(line)
    except ValueError:
        return False


def _n_tokens(record: Record, limits: Limits) -> int:
    """Estimate the tokens of a conversation, questions included, by the characters of its answers."""
    messages = record.get("messages", ())
    n_all = sum(_n_characters(message) for message in messages)
    n_answers = sum(_n_characters(message) for message in messages if message["role"] == "assistant")
    n_tokens = record["n_tokens"] * n_all / n_answers if n_answers else record["n_tokens"]
    return min(round(n_tokens), limits.max_length)


def _n_characters(message: Message) -> int:
    return sum(len(message.get(name) or "") for name in ("content", "reasoning_content"))
