"""Output: data on stdout, notes and warnings on stderr, one JSON object with --json."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

TINT, DIM, PLAIN = "\033[36m", "\033[2m", "\033[0m"  # tokens that had been drafted; thinking
TABLE_WIDTH = 110  # of a table that goes to a file or a pipe
# What steers a terminal instead of being shown: control characters, and those that turn the direction of writing.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class _State:
    json = False


def prepare_streams() -> None:
    """Three streams that take every character, whatever the shell has closed and its locale cannot say.

    A closed one becomes the null device: otherwise a file of ours would get its number, and native code's messages.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if name == "stdin" else "backslashreplace")


def use_json(wanted: bool) -> None:
    _State.json = wanted


def printable(text: str) -> str:
    """`text` with its control characters as \\x1b or \\u202e, but for tabs and line ends: names come from files."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def data(text: str) -> None:
    """A line of data, in text mode."""
    print(printable(text))


def stream(text: str, drafted: bool = False) -> None:
    """A piece of an answer as it comes, in colour what had been drafted."""
    write(text, TINT if drafted else "")


def write(text: str, color: str) -> None:
    """A piece of a line of data: on a terminal in `color`, and steering nothing there."""
    shown = printable(text) if sys.stdout.isatty() else text
    sys.stdout.write(f"{color}{shown}{PLAIN}" if color and sys.stdout.isatty() and use_color() else shown)
    sys.stdout.flush()


def size(n_bytes: int) -> str:
    """For people: 31 MiB, 4.2 GiB."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def table(value: Any) -> None:
    """A rich table, as data in text mode."""
    from rich.console import Console

    color = sys.stdout.isatty() and use_color()
    Console(no_color=not color, width=width()).print(value)


def width() -> int:
    """Columns of stdout, TABLE_WIDTH where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else TABLE_WIDTH


def compact_table(headings: Sequence[str], *, title: str, caption: str | None = None) -> Any:
    """A rich table without rows yet, narrow enough for 80 columns; columns of digits are never cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, heading in enumerate(headings):
        out.add_column(heading, justify="right" if i else "left", no_wrap=bool(i))
    return out


def result(value: dict[str, Any]) -> None:
    """The one object of --json; escaped where the stream is not UTF-8."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, ensure_ascii=not is_unicode)
    sys.stdout.write(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def note(text: str) -> None:
    """A remark for a person, on a terminal only."""
    if on_terminal():
        _tell(text)


def log(text: str) -> None:
    """Write a line to stderr, also where it is a file: progress, and what a server reports."""
    _tell(text)
    sys.stderr.flush()


def warn(text: str) -> None:
    """Something the user should know wherever stderr goes; the same fact is a field of --json."""
    _tell(f"warning: {' '.join(text.split())}")


def failure(kind: str, message: str, code: int) -> None:
    """One line on stderr; with --json one object on stdout as well."""
    with suppress(OSError):
        if _State.json:
            result({"error": {"type": kind, "message": message, "exit_code": code}})
    with suppress(OSError):
        error(message)


def error(message: str) -> None:
    """A line on stderr."""
    _tell(f"error: {message}")


def prose(text: str, hang: int = 0) -> None:
    """Data that is sentences; `hang`: columns by which all but the first line of each are set in."""
    _write_lines(text, sys.stdout, hang)


def _tell(text: str) -> None:
    """On stderr."""
    _write_lines(text, sys.stderr)


def _write_lines(text: str, stream: TextIO, hang: int = 0) -> None:
    """A terminal gets lines that end between words."""
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
