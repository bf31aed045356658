"""Changes one operator at a time in a copy of our Python code, runs tests on it, and prints which changes they catch.

    python tests/fuzz/mutants.py --seed 1 --count 100               # with all tests of `make test`: hours
    python tests/fuzz/mutants.py --seed 1 --count 30 --near         # with the test files that are nearest to the change
    python tests/fuzz/mutants.py --only bindings/llama_eagle/drop_in   # places in these files alone

The same seed chooses the same places in the same sources. A change that survives means that a test is missing, or that
the change has no effect: in that case name it in EQUIVALENT. The exit code is 5 if any survives.
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
from collections.abc import Collection, Iterator
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
MAX_FILES = 8  # of tests, with --near
NO_TESTS = 5  # pytest's exit code
EQUIVALENT: dict[str, str] = {}  # name of a place -> why the change has no effect


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

    @property
    def name(self) -> str:
        """The file, the source line and the change. It remains the same when lines are inserted before."""
        text = (ROOT / self.path).read_text("utf-8")
        source = text.splitlines()[self.line - 1].strip()
        return f"{self.path}: {source}: {text[self.start : self.end]} -> {self.other}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name.partition(': ')[2]}"


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


def tests_near(path: Path) -> list[list[str]]:
    """Return groups of test files, nearest first: those that import the module, then those that import its users.

    The tests of a command are those that run it.
    """
    imports, tests = _graph()
    if "commands" in path.parts:
        word = re.compile(rf"""["']{path.stem}["']""")
        first = [test for test in tests if word.search((ROOT / test).read_text("utf-8"))]
        return [first[:MAX_FILES]]
    groups: list[list[str]] = []
    found: set[str] = set()
    modules, reached = {_module(path)}, set[str]()
    while modules and len(found) < MAX_FILES:
        group = [test for test, names in tests.items() if test not in found and not names.isdisjoint(modules)]
        group = sorted(group, key=lambda test: len(tests[test]))[: MAX_FILES - len(found)]
        groups += [group] if group else []
        found.update(group)
        reached |= modules
        modules = {name for name, names in imports.items() if not names.isdisjoint(modules)} - reached
    return groups


def _module(path: Path) -> str:
    name = path_in(Path(), path).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


@cache
def _graph() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the modules that each module imports, and those that each test file imports, also by its fixtures."""
    files = [path.relative_to(ROOT) for folder in SOURCES.values() for path in sorted((ROOT / folder).rglob("*.py"))]
    imports = {_module(path): _imported(path) for path in files}
    fixtures = {path.stem: _imported(path.relative_to(ROOT)) for path in (ROOT / "tests/fixtures").glob("*.py")}
    tests = {}
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        names = _imported(test.relative_to(ROOT))
        used = (fixtures.get(name.removeprefix("fixtures."), set()) for name in names)
        tests[str(test.relative_to(ROOT))] = names.union(*used) & imports.keys()
    return imports, tests


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def first_failure(folder: Path, tests: list[str], without: Collection[str] = ()) -> str:
    """Run tests on the package in `folder`. Return the first that fails, or an empty string. without: tests to omit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", MARKERS]
    command += [*(f"--deselect={test}" for test in without), *tests]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile() as output:
        try:
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            return tests[0]
        output.seek(0)
        text = output.read().decode(errors="replace")
    if done.returncode in (0, NO_TESTS):
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    if found is None:
        raise SystemExit(text[-2000:])
    return found[1]


def tried(folder: Path, place: Place, groups: list[list[str]]) -> str:
    """Return "caught" with a test, "equivalent", or "survived"."""
    if place.name in EQUIVALENT:
        return "equivalent"
    file = path_in(folder, place.path)
    original = file.read_text("utf-8")
    broken: set[str] = set()  # they fail without the change, too
    for group in groups:
        while True:
            file.write_text(place.changed(original), "utf-8")
            try:
                test = first_failure(folder, group, broken)
            finally:
                file.write_text(original, "utf-8")
            if not test:
                break
            if not first_failure(folder, [test]):
                return f"caught by {test}"
            broken.add(test)
    return "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of places")
    parser.add_argument("--count", type=int, default=100, help="number of changes")
    parser.add_argument("--only", nargs="*", default=[], metavar="PATH", help="files and folders to change")
    parser.add_argument("--near", action="store_true", help="run the nearest test files alone")
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
            result = tried(Path(name), place, tests_near(place.path) if given.near else [["tests"]])
            survivors += result == "survived"
            print(f"{result}: {place}", flush=True)
    print(f"{survivors} survived")
    sys.exit(5 if survivors else 0)


if __name__ == "__main__":
    main()
