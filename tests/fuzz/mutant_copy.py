"""Copy of the package in which each of the chosen changes has a switch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mutants import Place

IMPORT = "from mutant_switches import is_on as _is_on"


def with_switches(text: str, chosen: Mapping[int, Place]) -> str:
    """Return the source with `CHANGED if _is_on(NUMBER) else ORIGINAL` in place of expressions with a chosen operator.

    Whole expressions of a statement are replaced, because another operator may bind otherwise.
    """
    offset = offsets(text)
    tree = ast.parse(text)
    spans = [(offset(node, at_end=False), offset(node, at_end=True)) for node in _expressions(tree)]
    groups: dict[tuple[int, int], dict[int, Place]] = {}
    for number, place in chosen.items():
        around = (span for span in spans if span[0] <= place.start and place.end <= span[1])
        groups.setdefault(min(around, key=lambda span: span[1] - span[0]), {})[number] = place
    for (begin, end), each in sorted(groups.items(), reverse=True):
        changes = (
            f"({text[begin : place.start]}{place.other}{text[place.end : end]}) if _is_on({number}) else "
            for number, place in each.items()
        )
        text = f"{text[:begin]}({''.join(changes)}({text[begin:end]})){text[end:]}"
    return _with_import(text)


def offsets(text: str) -> Callable[..., int]:
    """Return a function that gives the offset in the text of a node's beginning or end."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def offset(node: ast.expr, *, at_end: bool) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if at_end else (node.lineno, node.col_offset)
        assert line is not None and column is not None
        beginning = text[starts[line - 1] :].encode()[:column]  # columns count bytes
        return starts[line - 1] + len(beginning.decode())

    return offset


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the largest expressions of the statements that are values: another expression may take their place."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_part = isinstance(child, ast.Slice | ast.Starred) or isinstance(getattr(child, "ctx", None), _STORED)
            if isinstance(child, ast.expr) and not is_part:
                yield child
            elif isinstance(child, ast.AST) and name not in ("annotation", "returns"):
                yield from _expressions(child)


_STORED = (ast.Store, ast.Del)


def _with_import(text: str) -> str:
    """Add the import of the switches before the first statement that is neither a docstring nor `__future__`."""
    lines = text.split("\n")
    body = ast.parse(text).body
    first = next(node for node in body if not _is_head(node))
    at = min([first.lineno, *(node.lineno for node in getattr(first, "decorator_list", []))])
    return "\n".join([*lines[: at - 1], IMPORT, *lines[at - 1 :]])


def _is_head(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
