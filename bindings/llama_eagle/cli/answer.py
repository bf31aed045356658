"""Output of answers on stdout: plain text, or rendered Markdown on a terminal."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from llama_eagle import console

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*")  # a line that closes a block of code
LINE = 200  # characters that are kept of a line, to recognize a FENCE
SHORT = 2000  # characters of a block that is parsed at each line
COLORS = re.compile(r"\x1b\[[\d;]*m")


def make_answer(*, plain: bool) -> PlainAnswer | RenderedAnswer:
    """Return the writer of one answer: plain for files, pipes and dumb terminals."""
    is_simple = plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    return PlainAnswer() if is_simple else RenderedAnswer()


class PlainAnswer:
    """Writes each piece at once; on a terminal, drafted tokens are in colour."""

    def write(self, text: str, drafted: bool = False) -> None:
        console.begin_answer()
        console.stream(text, drafted)

    def think(self, text: str) -> None:
        console.begin_answer()
        console.write(text, console.DIM)

    def end_thinking(self) -> None:
        console.stream("\n\n")

    def close(self) -> None:
        """End without another line, as after an error."""
        console.end_answer()

    def end(self) -> None:
        print(flush=True)
        console.end_answer()


class Block:
    """The unfinished block: its pieces, and whether it may contain a complete one.

    Parsing it again at each line would take quadratic time. A block of code is parsed when a line seems to close it.
    Any other block is parsed at each line while it is short, and later when it has grown by an eighth.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []  # (text, style)
        self._size = 0  # characters
        self._due = 0  # size at which it is parsed again
        self._line = ""  # beginning of the last line
        self._is_code = False

    def add(self, text: str, style: str) -> None:
        self.pieces.append((text, style))
        self._size += len(text)
        first, *others = text.split("\n")
        lines = [self._line + first, *others]
        if self._is_code and any(FENCE.fullmatch(line) for line in lines[:-1]):
            self._due = 0
        self._line = lines[-1][:LINE]

    @property
    def is_due(self) -> bool:
        return self._size >= self._due

    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)

    def last(self, n: int) -> list[tuple[str, str]]:
        """Return the pieces of at least the last `n` characters.

        They begin at a multiple of `n`, because each other beginning wraps a paragraph differently.
        """
        n += self._size % n
        found: list[tuple[str, str]] = []
        for text, style in reversed(self.pieces):
            if n <= 0:
                break
            found.append((text[-n:], style))
            n -= len(text)
        return found[::-1]

    def parse(self, text: str) -> int:
        """Return how many characters of `text`, the text of all pieces, belong to complete blocks."""
        self._is_code, self._due = False, self._size + max(self._size - SHORT, 0) // 8
        tokens = [token for token in _parser().parse(text) if token.level == 0 and token.map]
        if not tokens:
            return 0
        last = tokens[-1]
        begin, end = last.map
        lines = list(io.StringIO(text, newline=""))  # the parser's lines: splitlines would also split at U+2028
        if last.type != "fence":
            return len("".join(lines[:begin]))
        if end - begin > 1 and _closes(lines[end - 1], last.markup):
            return len("".join(lines[:end]))
        self._is_code, self._due = True, sys.maxsize
        return len("".join(lines[:begin]))


class RenderedAnswer:
    """Renders each block of Markdown once it is complete.

    The unfinished block is shown below as wrapped text, with drafted tokens in colour.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(no_color=not console.use_color(), highlight=False)
        self._block = Block()
        self._live: Any = None
        self._has_printed = False

    def write(self, text: str, drafted: bool = False) -> None:
        self._add(text, "cyan" if drafted else "")
        if "\n" in text:
            self._print_complete()

    def think(self, text: str) -> None:
        self._add(text, "dim")

    def end_thinking(self) -> None:
        shown = self._styled()
        self._clear()
        self._print(shown)

    def close(self) -> None:
        """Render the unfinished block."""
        if not self._block.pieces:
            console.end_answer()
            return
        text = self._block.text()
        is_thinking = any(style == "dim" for _, style in self._block.pieces)
        shown = self._styled() if is_thinking else _markdown(text)
        self._clear()
        if text.strip():
            self._print(shown)
        console.end_answer()

    def end(self) -> None:
        self.close()
        if not self._has_printed:
            self._console.print()

    def _add(self, text: str, style: str) -> None:
        self._block.add(console.printable(text), style)
        if self._live is None:
            from rich.live import Live

            self._live = Live(get_renderable=self._tail, console=self._console, transient=True, refresh_per_second=12)
            self._live.start()
            console.begin_answer()

    def _styled(self) -> Any:
        from rich.text import Text

        return Text.assemble(*self._block.pieces)

    def _tail(self) -> Any:
        """Return the last lines of the unfinished block: lines above the top of the screen cannot be erased."""
        from rich.text import Text

        width, height = self._console.width, self._console.height
        lines = Text.assemble(*self._block.last(max(width * height, 1))).wrap(self._console, width)
        return Text("\n").join(list(lines)[-max(height - 1, 1) :])

    def _print_complete(self) -> None:
        """Render the complete blocks: all before the last one, which may still grow, and a closed block of code."""
        if not self._block.is_due:
            return
        text, pieces = self._block.text(), self._block.pieces
        n_complete = self._block.parse(text)
        if not n_complete:
            return
        self._clear()
        self._print(_markdown(text[:n_complete]))
        for piece, style in _after(pieces, n_complete):
            self._add(piece, style)

    def _print(self, shown: Any) -> None:
        """Print a block after one empty line, because rich's own spacing differs by element."""
        with self._console.capture() as captured:
            self._console.print(shown)
        lines = captured.get().splitlines()
        while lines and _is_empty(lines[0]):
            del lines[0]
        while lines and _is_empty(lines[-1]):
            del lines[-1]
        sys.stdout.write("\n" * self._has_printed + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        self._has_printed = True

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._block = None, Block()


class View:
    """Shows the deltas of one answer; `content` is its text so far, without thinking."""

    def __init__(self, shows_thinking: bool, plain: bool) -> None:
        self.content = ""
        self._answer = make_answer(plain=plain)
        self._shows_thinking = shows_thinking
        self._is_thinking = False

    def show(self, delta: dict[str, Any], *, drafted: bool) -> None:
        if thought := delta.get("reasoning_content"):
            self._think(thought)
        if piece := delta.get("content"):
            self._end_thinking()
            self.content += piece
            self._answer.write(piece, drafted)

    def end(self) -> None:
        self._end_thinking()
        self._answer.end()

    def close(self) -> None:
        """Close after an error, without another line."""
        self._answer.close()

    def _think(self, text: str) -> None:
        if self._shows_thinking:
            self._answer.think(text)
        elif not self._is_thinking:
            console.note("(thinking)")
        self._is_thinking = True

    def _end_thinking(self) -> None:
        if self._is_thinking and self._shows_thinking:
            self._answer.end_thinking()
        self._is_thinking = False


def _is_empty(line: str) -> bool:
    return not COLORS.sub("", line).strip()


def _after(pieces: list[tuple[str, str]], n: int) -> Iterator[tuple[str, str]]:
    """Yield the pieces after the first `n` characters."""
    for text, style in pieces:
        if len(text) > n:
            yield text[n:], style
        n = max(n - len(text), 0)


def _closes(line: str, opening: str) -> bool:
    """Return True if the line closes a block of code: the characters of its `opening`, or more of them."""
    found = FENCE.fullmatch(line.removesuffix("\n"))
    return line.endswith("\n") and found is not None and found[1].startswith(opening)


def _parser() -> Any:
    """Return a parser that keeps HTML as text, because rich would drop it."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _markdown(text: str) -> Any:
    """Return a renderable with the line breaks of the text, code that can be copied, and tables with whole words."""
    from rich import box
    from rich.markdown import CodeBlock, Markdown, TableElement
    from rich.syntax import Syntax

    class Code(CodeBlock):
        def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
            code = str(self.text).rstrip()
            yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, background_color="default")

    class Lines(TableElement):
        def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
            table: Any
            for table in super().__rich_console__(console, options):
                table.box, table.pad_edge, table.collapse_padding = box.SQUARE, True, False
                for column in table.columns:
                    column.overflow = "fold"  # rich would cut long words
                yield table

    class Answer(Markdown):
        elements = {**Markdown.elements, "fence": Code, "code_block": Code, "table_open": Lines}  # noqa: RUF012

    shown = Answer(text, code_theme="ansi_dark", hyperlinks=False)
    shown.parsed = _parser().parse(text)
    for token in shown.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return shown
