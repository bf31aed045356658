"""Changes one operator at a time in a copy of our Python code, runs tests on it, and prints which changes they catch.

    python tests/fuzz/mutants.py --seed 1 --count 100               # with all tests of `make test`: hours
    python tests/fuzz/mutants.py --seed 1 --count 30 --near         # with the tests that import the changed module
    python tests/fuzz/mutants.py --only bindings/llama_eagle/drop_in   # places in these files alone

The same seed chooses the same places in the same sources. A change that survives means that a test is missing, or that
the change has no effect: look at each. The exit code is 5 if one survives.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {"llama_eagle": "bindings/llama_eagle"}
SOURCES |= {f"llama_eagle/{name}": name for name in ("convert", "train", "bench")}
# An editable install finds its own files before those of PYTHONPATH.
FINDERS = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'RedirectingFinder' not in type(f).__name__]\n"
OTHER: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip
OPERATOR = re.compile(r"is\s+not\b|not\s+in\b|\b(?:is|in|and|or)\b|[-+*/%<>=!&|]+")
MARKERS = "not slow and not gpu and not extended"
MAX_SECONDS = 3600


@dataclass(frozen=True)
class Place:
    """An operator in a source file, with another in its place. start, end: offsets in the text."""

    path: Path
    line: int
    start: int
    end: int
    other: str

    def changed(self, text: str) -> str:
        return text[: self.start] + self.other + text[self.end :]

    def __str__(self) -> str:
        text = (ROOT / self.path).read_text("utf-8")
        return f"{self.path}:{self.line}: {text[self.start : self.end]} -> {self.other}"


def places(path: Path) -> Iterator[Place]:
    """Yield the operators of a source file. Those of type annotations are left out: they have no effect."""
    text = (ROOT / path).read_text("utf-8")
    starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def offset(node: ast.expr, *, at_end: bool) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if at_end else (node.lineno, node.col_offset)
        assert line is not None and column is not None
        beginning = text[starts[line - 1] :].encode()[:column]  # columns count bytes
        return starts[line - 1] + len(beginning.decode())

    tree = ast.parse(text)
    annotations = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    for node in ast.walk(tree):
        if id(node) in annotations:
            continue
        for left, operator, right in _operations(node):
            begin = offset(left, at_end=True)
            between = text[begin : offset(right, at_end=False)]
            found = OPERATOR.search(re.sub(r"#.*", _blank, between))
            if found and type(operator) in OTHER:
                start, end = begin + found.start(), begin + found.end()
                yield Place(path, text.count("\n", 0, start) + 1, start, end, OTHER[type(operator)])


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        if (annotation := getattr(node, name, None)) is not None:
            yield from ast.walk(annotation)


def _operations(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST, ast.expr]]:
    if isinstance(node, ast.BinOp):
        yield node.left, node.op, node.right
    elif isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        yield from zip(operands, node.ops, operands[1:], strict=False)
    elif isinstance(node, ast.BoolOp):
        yield from ((left, node.op, right) for left, right in zip(node.values, node.values[1:], strict=False))


def chosen(seed: int, count: int, only: list[str]) -> list[Place]:
    files = [path.relative_to(ROOT) for folder in SOURCES.values() for path in sorted((ROOT / folder).rglob("*.py"))]
    files = [path for path in files if not path.is_relative_to("bench/studies") and path.name != "plots.py"]
    files = [path for path in files if not only or any(path.is_relative_to(each) for each in only)]
    found = [place for path in files for place in places(path)]
    return random.Random(seed).sample(found, min(count, len(found)))


def copy_package(folder: Path) -> None:
    """Write the package's Python files as they are installed. The library is that of the environment."""
    for name, source in sorted(SOURCES.items()):
        shutil.copytree(ROOT / source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "llama_eagle/demo").symlink_to(ROOT / "demo")
    (folder / "sitecustomize.py").write_text(FINDERS)


def path_in(folder: Path, path: Path) -> Path:
    name, source = next(item for item in sorted(SOURCES.items(), reverse=True) if path.is_relative_to(item[1]))
    return folder / name / path.relative_to(source)


def tests_near(path: Path) -> list[str]:
    """Return the test files that name the module, or a fixture that does."""
    module = path_in(Path(), path).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(test.relative_to(ROOT)) for test in tests if imports.search(test.read_text("utf-8"))]


def is_caught(folder: Path, tests: list[str]) -> bool:
    """Return True if a test fails on the package in `folder`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", MARKERS, *tests]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile() as output:
        try:
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in (0, 1, 2):
            output.seek(0)
            raise SystemExit(output.read().decode()[-2000:])
        return done.returncode != 0


def tried(folder: Path, place: Place, tests: list[str]) -> str:
    """Return "caught", "survived", or why neither is known."""
    if not tests:
        return "no test"
    if fails_unchanged(folder, tuple(tests)):
        return "tests fail without the change"
    file = path_in(folder, place.path)
    original = file.read_text("utf-8")
    file.write_text(place.changed(original), "utf-8")
    try:
        return "caught" if is_caught(folder, tests) else "survived"
    finally:
        file.write_text(original, "utf-8")


@cache
def fails_unchanged(folder: Path, tests: tuple[str, ...]) -> bool:
    return is_caught(folder, list(tests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of places")
    parser.add_argument("--count", type=int, default=100, help="number of changes")
    parser.add_argument("--only", nargs="*", default=[], metavar="PATH", help="files and folders to change")
    parser.add_argument("--near", action="store_true", help="run the tests that import the changed module alone")
    parser.add_argument("--list", action="store_true", help="print the places and change nothing")
    given = parser.parse_args()
    found = chosen(given.seed, given.count, given.only)
    if given.list:
        print(*found, sep="\n")
        return
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        copy_package(Path(name))
        for place in found:
            result = tried(Path(name), place, tests_near(place.path) if given.near else ["tests"])
            survivors += result != "caught"
            print(f"{result}: {place}", flush=True)
    print(f"{survivors} survived")
    sys.exit(5 if survivors else 0)


if __name__ == "__main__":
    main()
