"""Changes one operator at a time in a copy of our Python code, and prints which changes the tests of `make test` catch.

    python tests/fuzz/mutants.py --seed 1 2 3 --count 100   # all tests once, then seconds for each change
    python tests/fuzz/mutants.py --only convert/rope.py --tests tests/unit/test_convert_rotation.py

The same seed chooses the same places, also when other lines change. The copy contains all changes, each with a switch.
All tests run once with them off, which records the tests that reach each place: these run again with the change. A
change that survives means that a test is missing, or that the change has no effect: in that case name it in EQUIVALENT.
The exit code is 5 if any survives.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mutant_copy
from mutant_switches import OFF

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
PLUGINS = ("mutant_switches.py", "mutant_tests.py")  # next to the copy
FEW = 10  # of a file's tests come before all other files' further ones
Plan = Mapping[int, list[str]]
EQUIVALENT: dict[str, str] = {  # name of a place -> why the change has no effect
    "convert/drafts/write.py: n_rows = max(1, PIECE // shape[1]): // -> *": "the same rows are read in larger pieces",
    "bindings/llama_eagle/quantize/quantize.py: if shutil.disk_usage(output.parent).free < _BUFFER:: < -> <=": (
        "only a disk with exactly 256 MiB free differs"
    ),
}


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
        text = text_of(self.path)
        source = text.splitlines()[self.line - 1].strip()
        return f"{self.path}: {source}: {text[self.start : self.end]} -> {self.other}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name.partition(': ')[2]}"


@functools.cache
def text_of(path: Path) -> str:
    return (ROOT / path).read_text("utf-8")


def places(path: Path) -> Iterator[Place]:
    """Yield the operators of a source file. Those of type annotations are left out: they have no effect."""
    text = text_of(path)
    offset = mutant_copy.offsets(text)
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
    return sorted(found, key=lambda place: hashlib.sha256(f"{seed} {place.name}".encode()).digest())[:count]


def copy_package(folder: Path, numbered: Mapping[int, Place]) -> None:
    """Write the package's Python files as they are installed, with a switch for each change."""
    for name, source in sorted(SOURCES.items()):
        shutil.copytree(ROOT / source, folder / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "llama_eagle/demo").symlink_to(ROOT / "demo")
    (folder / "sitecustomize.py").write_text(FINDERS)
    for plugin in PLUGINS:
        shutil.copy(Path(__file__).with_name(plugin), folder)
    by_file: dict[Path, dict[int, Place]] = defaultdict(dict)
    for number, place in numbered.items():
        by_file[place.path][number] = place
    for path, chosen in by_file.items():
        path_in(folder, path).write_text(mutant_copy.with_switches(text_of(path), chosen), "utf-8")


def path_in(folder: Path, path: Path) -> Path:
    name, source = next(item for item in sorted(SOURCES.items(), reverse=True) if path.is_relative_to(item[1]))
    return folder / name / path.relative_to(source)


def run_tests(folder: Path, *options: str, **environment: str) -> bool:
    """Run the tests on the package in `folder`. Return False if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutant_tests", "-p", "no:cacheprovider", "-m", MARKERS]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run([*command, *options], cwd=ROOT, env=environment, stdout=sys.stderr).returncode == 0


def results(folder: Path, numbered: Mapping[int, Place], given: argparse.Namespace) -> dict[int, str]:
    """Return the test that catches each change, or an empty string."""
    everywhere = folder / "all"
    copy_package(everywhere, numbered)
    (everywhere / "reached").touch()
    run_tests(everywhere, f"-n{given.jobs}", *given.tests)
    setup, seconds, broken = durations(everywhere / "times")
    reached: dict[int, set[str]] = defaultdict(set)
    for line in (everywhere / "reached").read_text().splitlines():
        place, _, test = line.partition("\t")
        reached[int(place)].add(test)
    plan = {
        number: list(quickest(names & seconds.keys() - broken, setup, seconds, given.seconds))
        for number, names in reached.items()
    }
    with ThreadPoolExecutor(given.jobs) as pool:
        parts = [dict(list(plan.items())[start :: given.jobs]) for start in range(given.jobs)]
        run = [pool.submit(_try, folder / f"part-{i}", numbered, part, given.tests) for i, part in enumerate(parts)]
        found = {number: test for each in run for number, test in each.result().items()}
    (everywhere / "reached").unlink()
    for number, names in reached.items():
        if "" in names and not found[number]:  # it runs at import, which is over when a process is forked
            (everywhere / "active").write_text(str(number))
            without = [f"--deselect={test}" for test in broken]
            is_caught = not run_tests(everywhere, "-x", f"-n{given.jobs}", *without, *given.tests)
            found[number] = "a test that imports it" if is_caught else ""
    return found


def _try(folder: Path, numbered: Mapping[int, Place], plan: Plan, tests: Sequence[str]) -> dict[int, str]:
    copy_package(folder, numbered)
    (folder / "plan").write_text(json.dumps(plan))
    (folder / "active").write_text(str(OFF))
    run_tests(folder, *tests, MUTANTS_PLAN=str(folder / "plan"))
    lines = (folder / "results").read_text().splitlines() if plan else []
    return {int(place): test for place, _, test in (line.partition(" ") for line in lines)}


def durations(path: Path) -> tuple[dict[str, float], dict[str, float], set[str]]:
    """Return the seconds of each file's fixtures and of each test, and the tests that failed without a change."""
    setup: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    broken = set()
    for name, is_setup, has_failed, duration in map(json.loads, path.read_text().splitlines()):
        if is_setup:
            setup[file_of(name)] = max(setup[file_of(name)], duration)
        else:
            seconds[name] += duration
        if has_failed:
            broken.add(name)
    return setup, seconds, broken


def quickest(
    tests: Collection[str], setup: Mapping[str, float], seconds: Mapping[str, float], limit: float
) -> Iterator[str]:
    """Yield the tests, quick files first, as many as take `limit` seconds. Those of a file share fixtures."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=seconds.__getitem__):
        by_file[file_of(test)].append(test)
    parts = [part for each in by_file.values() for part in (each[:FEW], each[FEW:]) if part]
    cost = {part[0]: setup[file_of(part[0])] + sum(map(seconds.__getitem__, part)) for part in parts}
    spent = 0.0
    for part in sorted(parts, key=lambda part: cost[part[0]]):
        spent += setup[file_of(part[0])]
        for test in part:
            spent += seconds[test]
            if spent < limit:
                yield test


def file_of(test: str) -> str:
    return test.partition("::")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="seeds of the choice of places")
    parser.add_argument("--count", type=int, default=100, help="number of changes for each seed")
    parser.add_argument("--only", nargs="*", default=[], metavar="PATH", help="files and folders to change")
    parser.add_argument("--tests", nargs="*", default=["tests"], metavar="PATH", help="tests to run")
    parser.add_argument("--jobs", type=int, default=3, help="processes that run tests")
    parser.add_argument("--seconds", type=float, default=300, help="of tests for a change, by their recorded times")
    parser.add_argument("--list", action="store_true", help="print the places and change nothing")
    given = parser.parse_args()
    by_seed = {seed: chosen(seed, given.count, given.only) for seed in given.seed}
    if given.list:
        for each in by_seed.values():
            print(*each, sep="\n")
        return
    every = dict.fromkeys(place for each in by_seed.values() for place in each)
    numbered = dict(enumerate(place for place in every if place.name not in EQUIVALENT))
    with tempfile.TemporaryDirectory() as name:
        caught = results(Path(name), numbered, given)
    by_place = {place: caught.get(number, "") for number, place in numbered.items()}
    for place, test in by_place.items():
        print(f"caught by {test}: {place}" if test else f"survived: {place}")
    for seed, each in by_seed.items():
        left = [place for place in each if place in by_place]
        survivors = sum(not by_place[place] for place in left)
        print(f"seed {seed}: {survivors} of {len(each)} survived, {len(each) - len(left)} are equivalent")
    sys.exit(5 if not all(by_place.values()) else 0)


if __name__ == "__main__":
    main()
