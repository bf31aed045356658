"""Answers to a file of prompts: several at a time through one server, resumable, in the order of the file.

While work is in progress, `OUTPUT.part` holds one JSON line for each answer, in the order of their completion. The
output itself appears at the end, whole.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TextIO, TypeVar

from llama_eagle.errors import EnvironmentFailure, InputError, UsageError
from llama_eagle.files import read_text, write_error, write_whole
from llama_eagle.serving.llama_server.loopback import open_url

Record = dict[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TEXT_SUFFIXES = (".txt", ".md")
MAX_NAMED = 5  # faulty lines in an error
FIRST_LINE = '{"identity": '  # beginning of a journal


@dataclass(frozen=True)
class Prompt:
    """One prompt of the file: messages of a chat, or a text.

    number: 0-based, in the file's order. record: the input line's other keys, which the answer's line keeps.
    """

    number: int
    text: str = ""
    messages: tuple[Record, ...] = ()
    record: Mapping[str, Any] | None = None

    @property
    def chat(self) -> tuple[Record, ...]:
        """The messages; a text is the user's."""
        return self.messages or ({"role": "user", "content": self.text},)


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts: JSON lines with a string, `prompt` or `messages`; in .txt and .md files, one text per line.

    Raises `InputError` with the numbers of the faulty lines.
    """
    lines = read_text(path).split("\n")
    prompts: list[Prompt] = []
    faults: list[str] = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(len(prompts), line.rstrip("\r"), path.suffix.lower() in TEXT_SUFFIXES))
        except ValueError as error:
            faults.append(f"line {place}: {error}")
    if faults:
        more = f"; and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
        raise InputError(f"{path}: {'; '.join(faults[:MAX_NAMED])}{more}. Correct or remove these lines.")
    if not prompts:
        raise InputError(f"{path}: contains no prompts.")
    return prompts


def _prompt(number: int, line: str, is_text: bool) -> Prompt:
    """Parse one line. Raises ValueError with the reason if it is invalid."""
    try:
        found = line if is_text else json.loads(line, parse_constant=_no_json)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"contains a lone surrogate, {error.object[error.start]!r}, which is no character") from None
    except NotJson:
        raise
    except ValueError:  # 1e999, or a whole number of thousands of digits
        raise ValueError("contains a number that is too large") from None
    if isinstance(found, str):
        found = {"prompt": found}
    messages, text = (found.get("messages"), found.get("prompt")) if isinstance(found, dict) else (None, None)
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return Prompt(number, messages=tuple(messages), record=found)
    if messages is None and isinstance(text, str) and text:
        return Prompt(number, text=text, record=found)
    raise ValueError("neither a text nor an object with `messages` (a list of objects) or `prompt` (a text)")


class NotJson(ValueError):
    """A constant of JavaScript that JSON lacks."""


def _no_json(constant: str) -> Any:
    raise NotJson(f"{constant} is not JSON. Write null")


@dataclass(frozen=True)
class Questions:
    """Form of the requests: chats with the model's template, or texts to continue.

    body: additional keys of each request. seed: the n-th prompt gets seed + n (None: random).
    """

    is_chat: bool
    body: Mapping[str, Any]
    seed: int | None = None

    def request(self, prompt: Prompt) -> tuple[str, Record]:
        """Return path and body."""
        seed = {} if self.seed is None else {"seed": (self.seed + prompt.number) % (2**32 - 1)}
        if not self.is_chat:
            return TEXT, {**self.body, **seed, "prompt": prompt.text}
        return CHAT, {**self.body, **seed, "messages": list(prompt.chat)}

    def record(self, prompt: Prompt, answer: Mapping[str, Any]) -> Record:
        """Build the output line: the input's keys, the chat or text with its answer, finish reason and token count."""
        choice = answer["choices"][0]
        end = {"finish_reason": choice["finish_reason"], "n_tokens": answer["usage"]["completion_tokens"]}
        given = dict(prompt.record or {})
        if not self.is_chat:
            return {**given, "text": prompt.text + choice["text"], **end}
        return {**given, "messages": [*prompt.chat, choice["message"]], **end}


class Journal:
    """Answers so far, on disk. Only a run with the same `identity` (prompts and settings) continues them.

    overwrite: discard the answers of another run, instead of refusing to.
    """

    def __init__(self, output: Path, identity: str, overwrite: bool) -> None:
        self._path = output.with_name(f"{output.name}.part")
        self._output = output
        self.answers: dict[int, Record] = {}
        if self._path.exists():
            self._read(identity, overwrite)
        with self._failures():
            self._file: TextIO = self._path.open("a" if self.answers else "w", encoding="utf-8")
            if not self.answers:
                self._write({"identity": identity})

    def _read(self, identity: str, overwrite: bool) -> None:
        """Read the finished answers. The last line may be incomplete; its prompt is answered again."""
        text = self._path.read_text("utf-8", errors="replace")
        whole = [found for line in text.split("\n") if isinstance(found := _parsed(line), dict)]
        answers = {int(found["number"]): found["answer"] for found in whole[1:] if "answer" in found}
        if not whole or whole[0].get("identity") != identity:
            if overwrite or (not answers and _is_journal(text)):
                return
            raise UsageError(
                f"{self._path} belongs to other prompts or settings. Repeat that command to continue it, or start "
                "over with --overwrite."
            )
        self.answers = answers
        with self._failures():
            write_whole(self._path, lambda path: path.write_text(self._text(identity), "utf-8"))

    def _text(self, identity: str) -> str:
        entries = [{"identity": identity}, *({"number": n, "answer": found} for n, found in self.answers.items())]
        return "".join(f"{json.dumps(entry)}\n" for entry in entries)

    def add(self, number: int, answer: Record) -> None:
        self.answers[number] = answer
        with self._failures():
            self._write({"number": number, "answer": answer})

    def _write(self, entry: Record) -> None:
        self._file.write(f"{json.dumps(entry)}\n")
        self._file.flush()

    def finish(self) -> None:
        """Write the output, in order, and remove the journal."""
        lines = (json.dumps(self.answers[n], ensure_ascii=False, allow_nan=False) for n in sorted(self.answers))
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", errors="backslashreplace")
        self.close()
        with self._failures():
            write_whole(self._output, lambda path: path.write_bytes(text))
        self._path.unlink()

    def close(self) -> None:
        """Close the file. The write that found a full disk has reported it already."""
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(error, self._path, 0) from None


def _is_journal(text: str) -> bool:
    """Return True for a journal, even one whose first line is incomplete; other files may have its name."""
    return text.startswith(FIRST_LINE) or FIRST_LINE.startswith(text)


def _parsed(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def identity(prompts: Sequence[Prompt], *settings: object) -> str:
    """Return a digest of prompts and settings."""
    found = hashlib.sha256(repr(settings).encode())
    for prompt in prompts:
        found.update(json.dumps(prompt.record).encode())
    return found.hexdigest()


def answer_all(
    address: str,
    key: str,
    prompts: Sequence[Prompt],
    questions: Questions,
    journal: Journal,
    parallel: int,
    on_answer: Callable[[Record], None],
) -> None:
    """Answer the prompts that the journal lacks, `parallel` at a time. A refused prompt's answer is its `error`.

    Raises `EnvironmentFailure` if the connection to the server is lost.
    """
    waiting = iter([prompt for prompt in prompts if prompt.number not in journal.answers])
    answered = in_parallel(lambda prompt: _answer(address, key, prompt, questions), waiting, parallel)
    with closing(answered):
        for prompt, record in answered:
            journal.add(prompt.number, record)
            on_answer(record)


def in_parallel(
    work: Callable[[Item], Result], items: Iterator[Item], n: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with the result of `work`, in the order of completion, `n` at a time.

    An item is taken when there is room for it. Closing the generator starts no further work.
    """
    running: dict[Future[Result], Item] = {}
    pool = ThreadPoolExecutor(n)
    try:
        while True:
            for item in itertools.islice(items, n - len(running)):
                running[pool.submit(work, item)] = item
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(address: str, key: str, prompt: Prompt, questions: Questions) -> Record:
    try:
        return questions.record(prompt, post(address, key, *questions.request(prompt)))
    except Refused as refusal:
        return {**(prompt.record or {}), "error": str(refusal)}


class Refused(Exception):
    """The server refused a request; the message is its reason."""


def post(address: str, key: str, path: str, body: Record) -> Record:
    """Send a request to our own server and return its answer.

    Raises `Refused` with the server's reason, and `EnvironmentFailure` if the connection is lost.
    """
    with _response(address, key, path, body) as response:
        found: Record = json.load(response)
        return found


def stream(address: str, key: str, path: str, body: Record) -> Generator[Record, None, None]:
    """Yield the events of a streamed answer. Closing the generator ends the request. Raises the errors of `post`."""
    with _response(address, key, path, {**body, "stream": True}) as response:
        for line in response:
            event = _parsed(line.removeprefix(b"data: "))  # blank lines and [DONE] are no objects
            if isinstance(event, dict):
                yield event


@contextmanager
def _response(address: str, key: str, path: str, body: Record) -> Iterator[HTTPResponse]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(address + path, json.dumps(body).encode(), headers)
    try:
        with open_url(request) as response:
            yield response
    except urllib.error.HTTPError as error:
        raise Refused(_reason(error)) from None
    except (OSError, ValueError, HTTPException) as error:
        raise EnvironmentFailure(f"connection to the server lost ({error}). Repeat the command to continue.") from None


def _reason(error: urllib.error.HTTPError) -> str:
    body = error.read().decode(errors="replace")
    found = _parsed(body)
    try:
        return str(found["error"]["message"])
    except (TypeError, KeyError):
        return body or str(error)
