#!/usr/bin/env python3
"""Download the pinned llama.cpp and apply our patch series. Standard library only: it runs inside isolated builds.

    upstream.py prepare DEST      fetch, verify, unpack into DEST and patch; a stamp makes it idempotent
    upstream.py hash              sha256 over the patch series
    upstream.py refresh SRC       rewrite the patches' line numbers against a pristine tree, in series order

The source is pinned by hash, so patches must apply without fuzz and without offsets. Anything else means that a patch
no longer matches the code that it was written for, and stops the build.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)$")
STAMP = ".llama-eagle-stamp"


class UpstreamError(Exception):
    """Error that stops the build with one line."""


def pinned() -> dict[str, str]:
    lines = (NATIVE / "UPSTREAM").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def series() -> list[Path]:
    names = (NATIVE / "patches" / "series").read_text(encoding="utf-8").split()
    return [NATIVE / "patches" / name for name in names]


def series_hash() -> str:
    digest = hashlib.sha256()
    for patch in series():
        digest.update(patch.name.encode() + b"\0" + patch.read_bytes() + b"\0")
    return digest.hexdigest()


# --- fetch -----------------------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Create and return the folder of downloads: in the user's cache, or in `build` if that cannot be written."""
    try:
        base = os.environ.get("LLAMA_EAGLE_CACHE") or os.environ.get("XDG_CACHE_HOME")
        if not base:
            base = os.environ.get("LOCALAPPDATA") or str(Path.home() / ".cache")
        cache = Path(base) / "llama-eagle" / "upstream"
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    except (OSError, RuntimeError):  # the second: a user without a home
        pass
    cache = NATIVE.parent / "build" / "downloads"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def download(pin: dict[str, str], folder: Path) -> None:
    """Download the sdist with pip, so that its indexes, proxies and certificates apply.

    pip runs the archive's own build code to get its name and version, but only after it has checked the pinned hash.
    """
    requirement = f"{pin['package']}=={pin['version']}"
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{pin['sha256']}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", pin["package"], "-d", str(folder)]
    command += ["--require-hashes", "-r", str(requirements)]
    # The metadata step of the sdist must not see options that are meant for our own build.
    env = {k: v for k, v in os.environ.items() if k not in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise UpstreamError(
            f"pip could not download the source of {requirement}; "
            f"set LLAMA_CPP_SOURCE_DIR to an unpacked copy to build offline\n{tail}"
        )


def fetch_sdist(pin: dict[str, str]) -> Path:
    cache = cache_dir()
    sdist = cache / f"{pin['package'].replace('-', '_')}-{pin['version']}.tar.gz"
    if sdist.is_file() and sha256(sdist) == pin["sha256"]:
        return sdist
    with tempfile.TemporaryDirectory(dir=cache) as tmp:
        download(pin, Path(tmp))
        found = list(Path(tmp).glob("*.tar.gz"))
        if len(found) != 1:
            raise UpstreamError(f"pip downloaded {[f.name for f in found]} instead of one source archive")
        actual = sha256(found[0])
        if actual != pin["sha256"]:
            raise UpstreamError(f"{found[0].name} has sha256 {actual}, but native/UPSTREAM pins {pin['sha256']}")
        found[0].replace(sdist)
    return sdist


def unpack(sdist: Path, dest: Path) -> None:
    """Unpack vendor/llama.cpp of the sdist. Keep modification times, so that unpatched files are not rebuilt."""
    with tarfile.open(sdist) as archive:
        top = archive.next().name.split("/")[0]
        prefix = f"{top}/vendor/llama.cpp/"
        members = [m for m in archive.getmembers() if m.name.startswith(prefix)]
        for member in members:
            member.name = member.name[len(prefix) :]
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(dest, members=members, **options)


def copy_tree(source: Path, dest: Path) -> None:
    tree = source / "vendor" / "llama.cpp" if (source / "vendor" / "llama.cpp").is_dir() else source
    if not (tree / "ggml" / "CMakeLists.txt").is_file():
        raise UpstreamError(f"LLAMA_CPP_SOURCE_DIR={source} holds no llama.cpp tree")
    shutil.copytree(tree, dest, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))


def prepare(dest: Path, source: str | None) -> None:
    pin = pinned()
    stamp = f"{pin['sha256']} {series_hash()} {source or ''}\n"
    stamp_file = dest / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return
    fresh = dest.with_name(f"{dest.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    if source:
        copy_tree(Path(source), fresh)
    else:
        unpack(fetch_sdist(pin), fresh)
    for patch in series():
        apply(patch, fresh)
    keep_times(dest, fresh)
    (fresh / STAMP).write_text(stamp, encoding="utf-8")
    shutil.rmtree(dest, ignore_errors=True)
    fresh.rename(dest)


def keep_times(old: Path, new: Path) -> None:
    """Give the files of a new tree the times of equal files in the old one, and changed files a later time.

    What is equal is not compiled again; a file that lost its patch is, although it has the time of the release.
    """
    for path in new.rglob("*"):
        before = old / path.relative_to(new)
        if not path.is_file() or not before.is_file():
            continue
        states = before.stat(), path.stat()
        if (states[0].st_size, states[0].st_mtime_ns) == (states[1].st_size, states[1].st_mtime_ns):
            continue
        if before.read_bytes() == path.read_bytes():
            os.utime(path, ns=(states[0].st_atime_ns, states[0].st_mtime_ns))
        elif states[1].st_mtime_ns <= states[0].st_mtime_ns:
            os.utime(path)


# --- patches ---------------------------------------------------------------------------------------------------------


@dataclass
class Hunk:
    """One hunk. `old` and `new`: the lines before and after, including context; `start` counts from 0."""

    start: int
    old: list[str]
    new: list[str]
    body: list[str]
    section: str


@dataclass
class FilePatch:
    path: str
    hunks: list[Hunk]


def parse(patch: Path) -> tuple[list[str], list[FilePatch]]:
    """Split a patch into its header (free text) and its file parts."""
    lines = patch.read_text(encoding="utf-8").splitlines()
    header: list[str] = []
    files: list[FilePatch] = []
    i = 0
    while i < len(lines):
        if lines[i].startswith("--- a/") and i + 1 < len(lines) and lines[i + 1].startswith("+++ b/"):
            files.append(FilePatch(lines[i + 1][6:].split("\t")[0], []))
            i += 2
        elif files and (match := HUNK.match(lines[i])):
            i, hunk = _parse_hunk(lines, i + 1, match, patch)
            files[-1].hunks.append(hunk)
        else:
            if not files:
                header.append(lines[i])
            i += 1
    if not files or not all(f.hunks for f in files):
        raise UpstreamError(f"patch {patch.name}: no hunks found")
    return header, files


def _parse_hunk(lines: list[str], i: int, match: re.Match[str], patch: Path) -> tuple[int, Hunk]:
    n_old, n_new = int(match[2] or 1), int(match[4] or 1)
    hunk = Hunk(int(match[1]) - 1, [], [], [], match[5])
    while i < len(lines) and (len(hunk.old) < n_old or len(hunk.new) < n_new):
        mark, text = (lines[i][:1] or " "), lines[i][1:]
        if mark not in " +-":
            break
        if mark in " -":
            hunk.old.append(text)
        if mark in " +":
            hunk.new.append(text)
        hunk.body.append(mark + text)
        i += 1
    if len(hunk.old) != n_old or len(hunk.new) != n_new:
        raise UpstreamError(f"patch {patch.name}: hunk at line {i} does not have the length it states")
    return i, hunk


def apply(patch: Path, tree: Path, *, relocate: bool = False) -> list[FilePatch]:
    """Apply a patch completely or not at all. With `relocate` a hunk may have moved, if its place is unique."""
    _, files = parse(patch)
    results: dict[Path, list[str]] = {}
    for part in files:
        target = tree / part.path
        if not target.is_file():
            raise UpstreamError(f"patch {patch.name}: {part.path} does not exist in this llama.cpp")
        lines = target.read_text(encoding="utf-8").split("\n")
        shift = 0
        for number, hunk in enumerate(part.hunks, 1):
            at = hunk.start + shift
            if relocate:
                at = _locate(lines, hunk, at, f"{patch.name}: {part.path} hunk {number}")
                hunk.start = at - shift
            if lines[at : at + len(hunk.old)] != hunk.old:
                raise UpstreamError(f"patch {patch.name}: hunk {number} of {part.path} does not match at line {at + 1}")
            lines[at : at + len(hunk.old)] = hunk.new
            shift += len(hunk.new) - len(hunk.old)
        results[target] = lines
    for target, lines in results.items():
        target.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    return files


def _locate(lines: list[str], hunk: Hunk, guess: int, what: str) -> int:
    size = len(hunk.old)
    places = [i for i in range(len(lines) - size + 1) if lines[i : i + size] == hunk.old]
    if guess in places:
        return guess
    if len(places) != 1:
        raise UpstreamError(f"{what}: context found at {len(places)} places")
    return places[0]


def refresh(source: Path) -> None:
    """Rewrite the line numbers after the series has changed. The hunks do not change otherwise."""
    with tempfile.TemporaryDirectory() as tmp:
        copy_tree(source, Path(tmp))
        for patch in series():
            header, _ = parse(patch)
            files = apply(patch, Path(tmp), relocate=True)
            out = list(header)
            for part in files:
                out += [f"--- a/{part.path}", f"+++ b/{part.path}"]
                shift = 0
                for h in part.hunks:
                    out.append(f"@@ -{h.start + 1},{len(h.old)} +{h.start + 1 + shift},{len(h.new)} @@{h.section}")
                    out += h.body
                    shift += len(h.new) - len(h.old)
            patch.write_text("\n".join(out) + "\n", encoding="utf-8", newline="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    p_prepare = commands.add_parser("prepare")
    p_prepare.add_argument("dest", type=Path)
    commands.add_parser("hash")
    commands.add_parser("refresh").add_argument("source", type=Path)
    args = parser.parse_args()
    try:
        if args.command == "prepare":
            prepare(args.dest, os.environ.get("LLAMA_CPP_SOURCE_DIR") or None)
        elif args.command == "refresh":
            refresh(args.source)
        else:
            print(series_hash())
    except (UpstreamError, OSError) as error:  # the second: a full disk, for example
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
