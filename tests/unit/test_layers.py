"""Layers of the package's folders: imports point downwards, no files import each other, and folders stay small."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bindings/llama_eagle"

# A module may import its own layer and those below it.
LAYERS = (
    ("errors",),
    ("arguments", "files", "file_kinds", "console", "hub", "pairs", "progress"),
    ("native",),
    ("gguf",),
    ("quantize",),
    ("convert",),
    ("vision",),
    ("sessions",),
    ("drafting", "diagnosis", "store"),
    ("generation",),
    ("drop_in", "integrations", "serving"),
    ("synthetic", "train"),
    ("bench",),
    ("demo",),
    ("cli",),
    ("__init__", "__main__"),
)
Name = tuple[str, ...]  # of a file or module
HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}
LARGEST_ROOM = 14  # modules side by side


def modules() -> Iterator[tuple[str, Path]]:
    """(room, file) of everything that the package consists of; a module at the top is a room of its own."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path
    for room in ("convert", "train", "bench", "demo"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if "studies" not in path.parts:
                yield room, path


def imported_names(path: Path) -> Iterator[str]:
    """Return a file's imports from the package, with dots: at its top, late, and for types alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.startswith("llama_eagle."))


def imported_rooms(path: Path) -> Iterator[str]:
    for name in imported_names(path):
        if (room := name.split(".")[1]) in HEIGHT:
            yield room


def imports_of_files() -> dict[str, set[str]]:
    """The files that each file imports, by their names as modules."""
    files = {}
    for _, path in modules():
        folder = PACKAGE if path.is_relative_to(PACKAGE) else ROOT
        parts = ("llama_eagle", *path.relative_to(folder).with_suffix("").parts)
        files[".".join(parts).removesuffix(".__init__")] = path

    def file_of(name: str) -> str:
        return name if name in files else name.rpartition(".")[0]

    return {name: {file_of(other) for other in imported_names(path)} - {name} for name, path in files.items()}


def test_every_room_has_a_layer() -> None:
    assert {room for room, _ in modules()} <= HEIGHT.keys()


def test_no_import_points_upward() -> None:
    upward = [
        f"{path.relative_to(ROOT)}: {room} imports {other}"
        for room, path in modules()
        for other in imported_rooms(path)
        if HEIGHT[other] > HEIGHT[room]
    ]
    assert not upward


def circles(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that are left when files that import none of the rest, or that none imports, are taken out."""
    left = dict(imports)
    while ends := [
        name
        for name, others in left.items()
        if not others & left.keys() or not any(name in imported for imported in left.values())
    ]:
        for name in ends:
            del left[name]
    return {name: others & left.keys() for name, others in left.items()}


def test_no_files_import_each_other() -> None:
    assert not circles(imports_of_files())


def imports_of_folders(by_file: Mapping[Name, Iterable[Name]], depth: int) -> dict[str, set[str]]:
    """Return the folders that each folder imports, both cut to `depth` names. Files are given by their names' parts."""
    found = defaultdict[str, set[str]](set)
    for path, others in by_file.items():
        folder, rest = (["/".join(each[:-1][:depth]) for each in group] for group in ([path], others))
        found[folder[0]] |= {*rest} - {*folder}
    return found


def test_no_folders_of_a_room_import_each_other() -> None:
    """A room's own files may use its folders and be used by them."""
    by_file = {(*name.split("."),): [(*o.split("."),) for o in others] for name, others in imports_of_files().items()}
    for depth in range(3, max(map(len, by_file))):
        in_folders = {
            path: [o for o in others if len(o) > depth] for path, others in by_file.items() if len(path) > depth
        }
        assert not circles(imports_of_folders(in_folders, depth))


# --- C++ ---------------------------------------------------------------------------------------------------------


NATIVE = ROOT / "native"


def target_of(path: Path) -> str:
    """Return the folder of one of llama.cpp's targets, or "include"."""
    parts = path.relative_to(NATIVE).parts
    return parts[1] if parts[0] == "src" else parts[0]


def includes() -> dict[Path, set[Path]]:
    """Return our own files that each file includes, by name alone: from its target's folder, or from include/."""
    files = [path for folder in ("src", "include") for path in sorted((NATIVE / folder).rglob("*.*"))]
    by_name = {(target_of(path), path.name): path for path in files}
    assert len(by_name) == len(files), "two files of a target have one name"
    pattern = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
    found: dict[Path, set[Path]] = {}
    for path in files:
        names = pattern.findall(path.read_text("utf-8"))
        places = ((folder, name) for name in names for folder in (target_of(path), "include"))
        found[path] = {by_name[place] for place in places if place in by_name} - {path}
    return found


def test_no_native_files_or_folders_include_each_other() -> None:
    by_file = {path.relative_to(NATIVE).parts: [p.relative_to(NATIVE).parts for p in others]
               for path, others in includes().items()}  # fmt: skip
    assert not circles({"/".join(path): {"/".join(other) for other in others} for path, others in by_file.items()})
    for depth in range(2, max(map(len, by_file))):
        assert not circles(imports_of_folders(by_file, depth))


def test_no_function_returns_the_memory_of_all_threads() -> None:
    """The server calls ours from several threads."""
    shared = re.compile(r"\b(?:gmtime|localtime|ctime|asctime|strtok|setlocale|tmpnam|readdir)\(")
    assert not [str(path) for path in includes() if shared.search(path.read_text("utf-8"))]


@pytest.mark.parametrize("suffixes", [(".py",), (".cpp", ".h", ".cu", ".cuh")])
def test_rooms_can_be_overlooked(suffixes: tuple[str, ...]) -> None:
    folders = [PACKAGE, *(ROOT / name for name in ("convert", "train", "bench", "demo", "native/src"))]
    crowded = {
        str(folder.relative_to(ROOT)): len(stems)
        for top in folders
        for folder in (top, *top.rglob("*/"))
        if len(stems := {path.stem for path in folder.iterdir() if path.suffix in suffixes}) > LARGEST_ROOM
    }
    assert not crowded
