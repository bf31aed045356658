"""Output: data on stdout, notes and warnings on stderr, one JSON object with --json."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TextIO

TINT, DIM, PLAIN = "\033[36m", "\033[2m", "\033[0m"  # drafted tokens; thinking; all else
TABLE_WIDTH = 110  # columns of a table in a file or a pipe
# Control characters, and those that change the direction of writing: a terminal obeys them instead of showing them.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class _State:
    json = False
    translate: Callable[[str], str] = staticmethod(str)
    is_answering = False  # an answer is being written to stdout
    held: ClassVar[list[str]] = []  # warnings that wait for its end


def prepare_streams() -> None:
    """Make the three standard streams accept every character, and replace closed ones by the null device.

    Otherwise a file of ours would get the number of a closed stream, and the messages of native code with it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if name == "stdin" else "backslashreplace")


def use_json(wanted: bool) -> None:
    _State.json = wanted


def uses_json() -> bool:
    return _State.json


def translate_messages(translate: Callable[[str], str]) -> None:
    """Pass every note, warning and error through `translate`: messages of the library name arguments of Python."""
    _State.translate = staticmethod(translate)


@contextmanager
def kept_settings() -> Iterator[None]:
    """Restore the settings of `use_json` and `translate_messages` at the end of the block."""
    before = _State.json, _State.translate
    try:
        yield
    finally:
        use_json(before[0])
        translate_messages(before[1])


def printable(text: str) -> str:
    """Return `text` with control characters escaped as \\x1b or \\u202e, except tabs and line ends.

    Names of files and models may contain them.
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def data(text: str) -> None:
    """Print a line of data, in text mode."""
    print(printable(text))


def stream(text: str, drafted: bool = False) -> None:
    """Print a piece of an answer at once; in colour if it was drafted."""
    write(text, TINT if drafted else "")


def write(text: str, color: str) -> None:
    """Print a piece of an answer: on a terminal in `color` and with control characters escaped."""
    shown = printable(text) if sys.stdout.isatty() else text
    sys.stdout.write(f"{color}{shown}{PLAIN}" if color and sys.stdout.isatty() and use_color() else shown)
    sys.stdout.flush()


def begin_answer() -> None:
    """Declare that an answer is being written, until `end_answer`."""
    _State.is_answering = True


def end_answer() -> None:
    """Declare the end of an answer, and write the warnings that waited for it."""
    _State.is_answering = False
    while _State.held:
        warn(_State.held.pop(0))


def warn_after_answer(text: str) -> None:
    """Write a warning now, or after the answer that is being written."""
    if _State.is_answering:
        _State.held.append(text)
    else:
        warn(text)


def size(n_bytes: int) -> str:
    """Format a size for people: 31 MiB, 4.2 GiB."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def table(value: Any) -> None:
    """Print a rich table, as data in text mode. Its title and caption may be wider than the table."""
    from rich.console import Console

    out = Console(no_color=not (sys.stdout.isatty() and use_color()), width=width(), highlight=False)
    title, caption, value.title, value.caption = value.title, value.caption, None, None
    for part in filter(None, (title, value, caption)):
        out.print(part, markup=False)


def width() -> int:
    """Return the number of columns of stdout, or TABLE_WIDTH if it is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else TABLE_WIDTH


def compact_table(headings: Sequence[str], *, title: str, caption: str | None = None) -> Any:
    """Return an empty rich table, narrow enough for 80 columns; columns of digits are never truncated."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, heading in enumerate(headings):
        out.add_column(heading, justify="right" if i else "left", no_wrap=bool(i))
    return out


def result(value: dict[str, Any]) -> None:
    """Print the one object of --json; escape non-ASCII characters if the stream is not UTF-8.

    Infinities and NaN, which JSON cannot represent, are null.
    """
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(_finite(value), ensure_ascii=not is_unicode, allow_nan=False)
    sys.stdout.write(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note(text: str) -> None:
    """Write a remark for people to stderr, only if it is a terminal."""
    if on_terminal():
        _to_stderr(_State.translate(text))


def log(text: str) -> None:
    """Write a line to stderr, even if it is not a terminal: progress, and messages of a server."""
    _to_stderr(text)
    sys.stderr.flush()


def warn(text: str) -> None:
    """Write a warning to stderr. With --json, a field of the object states the same fact."""
    _to_stderr(_State.translate(f"warning: {' '.join(text.split())}"))


def failure(kind: str, message: str, code: int) -> None:
    """Write an error as one line to stderr, and with --json also as one object to stdout."""
    message = _State.translate(message)
    with suppress(OSError):
        if _State.json:
            result({"error": {"type": kind, "message": message, "exit_code": code}})
    with suppress(OSError):
        error(message)


def shows_causes() -> bool:
    """Return True if LLAMA_EAGLE_DEBUG is 1: tracebacks and causes are shown."""
    return os.environ.get("LLAMA_EAGLE_DEBUG") == "1"


def trace(error: BaseException) -> None:
    """Write the traceback of an error and of all its causes to stderr, if LLAMA_EAGLE_DEBUG is 1."""
    if not shows_causes():
        return
    import traceback

    each: BaseException | None = error
    while each is not None:
        each.__suppress_context__ = False  # "from None" hides the causes from those who do not ask for them
        each = each.__cause__ or each.__context__
    sys.stderr.write(printable("".join(traceback.format_exception(error))))


def error(message: str) -> None:
    """Write an error as one line to stderr."""
    _to_stderr(_State.translate(f"error: {message}"))


def prose(text: str, hang: int = 0) -> None:
    """Print sentences as data. `hang`: indentation of continuation lines, in columns."""
    _write_lines(text, sys.stdout, hang)


def _to_stderr(text: str) -> None:
    _write_lines(text, sys.stderr)


def _write_lines(text: str, stream: TextIO, hang: int = 0) -> None:
    """Write lines, wrapped between words on a terminal."""
    lines = printable(text).split("\n")
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        wrapper = textwrap.TextWrapper(max(width, 20 + hang), subsequent_indent=" " * hang)
        wrapper.break_long_words = wrapper.break_on_hyphens = False
        lines = [part for line in lines for part in wrapper.wrap(line) or [""]]
    print("\n".join(lines), file=stream)


def on_terminal() -> bool:
    return sys.stderr.isatty()


def use_color() -> bool:
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
