"""Rules of plain English that a program can check: docstrings, help texts, messages, comments, patches and pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_eagle.cli.app import command

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "demo/README.md",
    *sorted((ROOT / "native/patches").rglob("*.md")),
]  # fmt: skip
FOLDERS = ("bindings", "convert", "bench", "demo", "train", "packaging", "tests")
# Paths, or beginnings of paths, that do not follow the rules yet. This list only gets shorter.
NOT_YET_VERBS = ("tests/e2e/", "tests/fuzz/", "tests/native/", "tests/parity/", "tests/unit/")

CLAUSES = {"What", "Who", "Which", "Whether", "Where", "When", "How", "Of", "So", "To", "If"}
# First words of a function's summary that are no imperative verb.
NO_VERBS = {
    "A", "After", "All", "An", "And", "As", "At", "Back", "Before", "Behind", "Both", "But", "By", "Each", "Either",
    "Every", "For", "From", "In", "Into", "It", "Its", "Neither", "No", "None", "Not", "Nothing", "Of", "On", "One",
    "Only", "Or", "Our", "Over", "Same", "Some", "Such", "Than", "That", "The", "Their", "Them", "These", "They",
    "This", "Those", "Three", "Two", "Under", "Until", "Up", "Upon", "Without", "With", "You", "Your",
}  # fmt: skip
VERBS_IN_S = {"Address", "Discuss", "Express", "Focus", "Guess", "Pass", "Press", "Process"}
FRAGMENTS = CLAUSES | {"Or", "And", "But", "It", "Its", "Instead", "Likewise", "By", "In", "Than"}
TURNS = re.compile(
    r"""\b(?:beside(?!s)|dear(?:er|est)?|so\ (?:many|much)|of\ which|likewise|seldom|whoever|whatever
    |go(?:es)?\ on|stands|comes|by\ what|as\ (?:it\ lies|they\ lie)|(?:is|are|be|been|was|were)\ told
    |tells|what\ drafts|where\ (?:it|that)\ (?:pays|does)|in\ turns|asks?\ into|of\ before)\b""",
    re.VERBOSE | re.IGNORECASE,
)


# A sentence states its subject first; the condition follows.
CLAUSE_FIRST = re.compile(
    r"(?:^(?:[-*|]|\d+\.)?\ ?|[.:;]\ )(?:If|When|While|Where|Although|Because|Since|Unless|Until|Whether|What)\ \w",
    re.VERBOSE,
)


def sources(left_out: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(left_out):
                yield name, ast.parse(path.read_text("utf-8"))


def summaries(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node, text.splitlines()[0]


def is_verb(word: str) -> bool:
    """Guess from its form: capitalized, an infinitive, and not a word that begins a noun phrase."""
    is_third_person = word.endswith("s") and word not in VERBS_IN_S
    return word.isalpha() and word[0].isupper() and word not in NO_VERBS and not is_third_person


def needs_verb(node: ast.AST) -> bool:
    """Return True for functions; properties, fixtures and tests are described by noun phrases or statements."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
        return False
    decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
    return "property" not in decorators and "fixture" not in decorators


def begins_with_clause(summary: str) -> bool:
    return first_word(summary) in CLAUSES


def lacks_verb(node: ast.AST, summary: str) -> bool:
    return needs_verb(node) and not is_verb(first_word(summary))


def first_word(summary: str) -> str:
    return re.split(r"[\s,:.]", summary)[0]


def test_no_summary_line_is_a_clause() -> None:
    faults = [
        f"{name}:{getattr(node, 'lineno', 1)}: {summary}"
        for name, tree in sources()
        for node, summary in summaries(tree)
        if begins_with_clause(summary)
    ]
    assert not faults, "\n".join(faults)


def test_summary_lines_of_functions_begin_with_a_verb() -> None:
    faults = [
        f"{name}:{getattr(node, 'lineno', 1)}: {summary}"
        for name, tree in sources(NOT_YET_VERBS)
        for node, summary in summaries(tree)
        if lacks_verb(node, summary)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ('def f():\n    """What it returns."""', True),
        ('def f():\n    """The number of tokens."""', True),
        ('def f():\n    """`text` without controls."""', True),
        ('def f():\n    """Returns the number of tokens."""', True),
        ('def f():\n    """Return the number of tokens."""', False),
        ('class C:\n    """A policy of draft lengths."""', False),
        ('class C:\n    """How drafts are made."""', True),
        ('@property\ndef f(self):\n    """The number of tokens."""', False),
        ('"""Of the drafts."""', True),
    ],
)
def test_the_rule_of_summaries(code: str, fault: bool) -> None:
    found = [begins_with_clause(text) or lacks_verb(node, text) for node, text in summaries(ast.parse(code))]
    assert any(found) is fault


# --- messages ----------------------------------------------------------------------------------------------------


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts of raised errors and of calls of `console`, with their lines."""
    for node in ast.walk(tree):
        is_raise = isinstance(node, ast.Raise) and node.exc is not None
        is_output = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("console.")
        if is_raise or is_output:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                    yield part.lineno, part.value


def test_messages_use_plain_words() -> None:
    faults = [
        f"{name}:{line}: {found[0]!r} in {text!r}"
        for name, tree in sources(("tests/",))
        for line, text in messages(tree)
        if (found := TURNS.search(text))
    ]
    assert not faults, "\n".join(faults)


# --- help --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    root = command()
    yield "root", root
    yield from root.commands.items()


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield a place and the help of every command, argument and option."""
    for name, each in commands():
        yield name, each.help or ""
        for parameter in each.params:
            yield f"{name} {parameter.name}", getattr(parameter, "help", None) or ""


def fault_of_help(text: str) -> str | None:
    if len(text.split()) < 3:
        return "missing or too short"
    if not text[0].isupper() or not text.endswith("."):
        return "is no sentence: begin with a capital, end with a period"
    if re.split(r"[\s,:.]", text)[0] in FRAGMENTS:
        return "is a fragment"
    found = TURNS.search(text)
    return found and f"has {found[0]!r}"


def test_help_texts_are_sentences() -> None:
    faults = [f"{place} {fault}: {text}" for place, text in help_texts() if (fault := fault_of_help(text))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", True),
        ("Or a target of your own.", True),
        ("0: off.", True),
        ("Of the data, held out.", True),
        ("Try look-up first where it pays.", True),
        ("Temperature of sampling (0: greedy)", True),
        ("Temperature of sampling (0: greedy).", False),
    ],
)
def test_the_rule_of_help_texts(text: str, fault: bool) -> None:
    assert bool(fault_of_help(text)) is fault


# --- comments and patches ----------------------------------------------------------------------------------------


def python_comments() -> Iterator[tuple[str, str]]:
    """Yield places and texts of the comments of every Python file, tests included."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
                if token.type == tokenize.COMMENT:
                    yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string


def native_comments() -> Iterator[tuple[str, str]]:
    """Yield places and texts of the comments of every C, C++ and CUDA file."""
    for path in sorted((ROOT / "native").rglob("*")):
        if path.suffix in (".h", ".c", ".cpp", ".cu", ".cuh"):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
                if found := re.search(r"(?:^|\s)//(.*)|^\s*/?\*(.*)", line):
                    yield f"{path.relative_to(ROOT)}:{number}", found[1] or found[2] or ""


def own_text_of_patches() -> Iterator[tuple[str, str]]:
    """Yield places and texts of the headers of patches and of the comments that patches add."""
    for path in sorted((ROOT / "native/patches").rglob("*.patch")):
        head, _, hunks = path.read_text("utf-8").partition("\n--- ")
        yield from ((path.name, line) for line in head.splitlines())
        yield from ((path.name, each) for each in re.findall(r"^\+(?:.*\s)?(?://|#) (.*)$", hunks, re.MULTILINE))


@pytest.mark.parametrize("texts", [python_comments, native_comments, own_text_of_patches])
def test_comments_and_patches_use_plain_words(texts: Callable[[], Iterator[tuple[str, str]]]) -> None:
    faults = [f"{place}: {found[0]!r} in {text!r}" for place, text in texts() if (found := TURNS.search(text))]
    assert not faults, "\n".join(faults)


# --- pages -------------------------------------------------------------------------------------------------------


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page, without its code and its quotations of programs."""
    is_code = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "", line)


def faults_of_pages(pattern: re.Pattern[str], parts: Callable[[Path], Iterator[tuple[int, str]]]) -> str:
    """Return a line for each part of a page that the pattern matches."""
    return "\n".join(
        f"{page.relative_to(ROOT)}:{number}: {found[0]!r} in {text!r}"
        for page in PAGES
        for number, text in parts(page)
        if (found := pattern.search(text))
    )


def test_pages_use_plain_words() -> None:
    faults = faults_of_pages(TURNS, prose)
    assert not faults, faults


def paragraphs(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line's number and the text of each paragraph, list item and table row, without headings."""
    first, lines = 0, list[str]()
    for number, line in [*prose(page), (0, "")]:
        begins = not line.strip() or line.startswith("#") or re.match(r" *([-*|]|\d+\.) ", line)
        if begins and lines:
            yield first, " ".join(lines)
            lines = []
        if line.strip() and not line.startswith("#"):
            first = first if lines else number
            lines.append(line.strip())


def test_sentences_of_pages_begin_with_their_subject() -> None:
    faults = faults_of_pages(CLAUSE_FIRST, paragraphs)
    assert not faults, faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("If a server dies, the call raises an error.", True),
        ("- While its rows are\nin memory, it is kept.", True),
        ("It stops. When it starts again, it reads the file.", True),
        ("The call raises an error if a server dies.", False),
        ("## If it fails\n\nIt stops.", False),
    ],
)
def test_the_rule_of_sentences(tmp_path: Path, text: str, fault: bool) -> None:
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    assert any(CLAUSE_FIRST.search(paragraph) for _, paragraph in paragraphs(page)) is fault
