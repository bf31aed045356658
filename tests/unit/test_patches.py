"""The patch series is complete and documented, and what is ready for upstream applies to the unpatched tree."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "native" / "patches"
READY = PATCHES / "upstream-ready"
SERIES = (PATCHES / "series").read_text(encoding="utf-8").split()
FIELDS = ("Subject", "Origin", "Forwarded", "Drop-When", "Tests", "Last-Update")
READY_FIELDS = ("Subject", "Purpose", "Measurement", "Risk", "Threads", "Series")
TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PATCHES.rglob("*.md")]


# Size of the series: hunks, upstream files, characters of added and removed lines (lines could become longer). These
# numbers only get smaller (goal: 200 hunks, 60 files), because each hunk is work at every update of llama.cpp.
LARGEST = (247, 72, 47471)


def header(patch: Path) -> str:
    return patch.read_text(encoding="utf-8").split("\n--- ")[0]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def touched(patch: Path) -> set[str]:
    return set(re.findall(r"^--- a/(\S+)$", patch.read_text(encoding="utf-8"), re.MULTILINE))


def copy_touched(patch: Path, pristine: Path, folder: Path) -> Path:
    for name in touched(patch):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pristine / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    return load(ROOT / "native" / "cmake" / "upstream.py")


@pytest.fixture(scope="module")
def pristine(upstream: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the pinned llama.cpp that a patch changes, from the source that the build uses."""
    folder = tmp_path_factory.mktemp("pristine")
    if source := os.environ.get("LLAMA_CPP_SOURCE_DIR"):
        upstream.copy_tree(Path(source), folder)
        return folder
    wanted = set().union(*(touched(patch) for patch in PATCHES.rglob("*.patch")))
    with tarfile.open(upstream.fetch_sdist(upstream.pinned())) as files:
        for member in files:
            name = member.name.partition("/vendor/llama.cpp/")[2]
            if name in wanted:
                member.name = name
                files.extract(member, folder, filter="data")
    return folder


def test_files_are_compiled_again_exactly_if_they_changed(upstream: ModuleType, tmp_path: Path) -> None:
    """An object is newer than the old tree's files; a file of the new tree that differs has to be newer than it."""
    old, new = tmp_path / "old", tmp_path / "new"
    release, built = 1_000, 2_000  # times in seconds
    contents = {"patched": "p p", "other patch": "p q", "patch dropped": "p r", "untouched": "r r"}
    for name, content in contents.items():
        for tree, text in zip((old, new), content.split(), strict=True):
            (tree / "src").mkdir(parents=True, exist_ok=True)
            (tree / "src" / name).write_text(text)
            os.utime(tree / "src" / name, (release, release if text == "r" else built))
    os.utime(new / "src/patched")
    os.utime(new / "src/other patch")
    upstream.keep_times(old, new)
    newer = {path.name for path in (new / "src").iterdir() if path.stat().st_mtime > built}
    assert newer == {"other patch", "patch dropped"}


def test_the_series_names_every_patch_in_order() -> None:
    assert sorted(path.name for path in PATCHES.glob("*.patch")) == SERIES
    assert len(SERIES) <= 40  # one that joins a concern of another joins its file


def test_the_series_does_not_grow() -> None:
    hunks, files, characters = 0, set[str](), 0
    for name in SERIES:
        text = (PATCHES / name).read_text("utf-8").split("\n--- ", 1)[1]
        hunks += len(re.findall(r"^@@ ", text, re.MULTILINE))
        files |= touched(PATCHES / name)
        changed = re.findall(r"^(?:\+(?!\+\+ b/)|-(?!-- a/))(.*)$", text, re.MULTILINE)
        characters += sum(map(len, changed))
    size = (hunks, len(files), characters)
    assert all(n <= most for n, most in zip(size, LARGEST, strict=True)), f"{size} exceeds {LARGEST}"


@pytest.mark.parametrize("name", SERIES)
def test_headers_are_complete(name: str) -> None:
    assert [f for f in FIELDS if not re.search(rf"^{f}: \S", header(PATCHES / name), re.MULTILINE)] == []


@pytest.mark.parametrize("name", SERIES)
def test_tests_of_a_patch_exist(name: str) -> None:
    named = re.search(r"^Tests: (.*(?:\n .*)*)", header(PATCHES / name), re.MULTILINE)
    assert named is not None
    assert [f for f in re.findall(r"\b(?:tests|native)/[\w/.]+\w", named[1]) if not (ROOT / f).exists()] == []


def test_texts_name_patches_that_exist() -> None:
    missing = []
    for text in TEXTS:
        found = re.findall(r"(?:patch|patches/)`? ?(0\d{3})\b(-[\w-]+\.patch)?", text.read_text(encoding="utf-8"))
        missing += [(text.name, *each) for each in found if not any(n.startswith("".join(each)) for n in SERIES)]
    assert missing == []


@pytest.mark.parametrize("name", SERIES)
def test_a_patch_of_the_series_needs_no_other(name: str, upstream: ModuleType, pristine: Path, tmp_path: Path) -> None:
    upstream.apply(PATCHES / name, copy_touched(PATCHES / name, pristine, tmp_path), relocate=True)


@pytest.mark.parametrize("patch", sorted(READY.glob("*.patch")), ids=lambda path: path.stem)
def test_what_is_ready_applies_alone(patch: Path, pristine: Path, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git applies the patch")
    tree = copy_touched(patch, pristine, tmp_path / "tree")
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}  # or git looks at a repository around it
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=tree, env=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("patch", sorted(READY.glob("*.patch")), ids=lambda path: path.stem)
def test_what_is_ready_is_explained(patch: Path) -> None:
    text = header(patch)
    assert [f for f in READY_FIELDS if not re.search(rf"^{f}: \S", text, re.MULTILINE)] == []
    ours = re.search(r"^Series: (\d{4})$", text, re.MULTILINE)
    assert ours is not None
    (name,) = (n for n in SERIES if n.startswith(ours[1]))
    assert f"Forwarded: no, ready in upstream-ready/{patch.name}" in header(PATCHES / name)


def test_the_study_of_memory_bandwidth_finds_the_places_that_it_changes(pristine: Path) -> None:
    paced = load(ROOT / "bench" / "studies" / "paced.py")
    for path, additions in (
        (ROOT / "native" / paced.GRAPH, paced.OURS),
        (pristine / "ggml/src/ggml-cpu/ggml-cpu.c", paced.UPSTREAM),
    ):
        text = path.read_text(encoding="utf-8")
        assert [text.count(after) for after, _ in additions] == [1] * len(additions), path
