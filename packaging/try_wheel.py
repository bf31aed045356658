"""Installs the packages of `make wheel` where there is no compiler and no source, and uses them there.

    python packaging/try_wheel.py build/wheels

Run by a Python that has this tree installed: what the packages write is compared with what the library built here
writes. Every CPU library of the wheel that this machine can run is tried: the best one is taken away, and the next.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "How does Django handle signals?"
N_TOKENS = 96
GREEDY = ("--temp", "0", "-n", str(N_TOKENS), "-t", "2", "--json")
TOOLS = ("cc", "gcc", "g++", "clang", "cmake", "ninja", "make", "git", "ccache")
OTHER_SUMS = ("ggml-cpu-sse42", "ggml-cpu-x64")  # half as wide: near ties may fall otherwise
KEPT = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


class Failed(Exception):
    """A check of the packages that failed."""


@dataclass(frozen=True)
class Room:
    """A virtual environment whose PATH holds nothing else, in a folder of its own."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def package(self) -> Path:
        return next(self.folder.glob("venv/lib/python*/site-packages/llama_eagle"))

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        return {"PATH": str(self.programs), "HOME": str(self.folder), "LANG": "C.UTF-8", **kept}

    def run(self, program: str, *words: object, codes: tuple[int, ...] = (0,)) -> str:
        command = [str(self.programs / program), *map(str, words)]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if done.returncode not in codes:
            raise Failed(f"{program} {words[0]} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def eagle(self, *words: object, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        return dict(json.loads(self.run("llama-eagle", *words, codes=codes)))


@dataclass(frozen=True)
class Pair:
    """The demo's target and its draft."""

    target: Path
    draft: Path

    def words(self, draft: bool) -> tuple[object, ...]:
        return ("generate", "-m", self.target, "-d", self.draft if draft else "none", "-p", QUESTION, *GREEDY)


def say(what: str) -> None:
    print(what, flush=True)


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


def furnish(folder: Path, wheels: Path) -> Room:
    room = Room(folder)
    venv.create(folder / "venv", with_pip=True)
    found = [tool for tool in TOOLS if shutil.which(tool, path=str(room.programs))]
    require(not found, f"the clean environment has {found}")
    (wheel,) = wheels.glob("llama_eagle-*.whl")
    room.run("pip", "install", "--quiet", "--only-binary", ":all:", "--find-links", wheels.resolve(), wheel.resolve())
    installed = sum(path.stat().st_size for path in room.package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed {installed / 1e6:.1f} MB")
    return room


def check_import(room: Room) -> None:
    def shortest(code: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            room.run("python", "-c", code)
            times.append(time.perf_counter() - start)
        return min(times) * 1000

    bare = shortest("pass")
    library = "from llama_eagle.native.calls import library; library()"
    say(f"import llama_eagle: {shortest('import llama_eagle') - bare:.0f} ms; with its libraries loaded: "
        f"{shortest(library) - bare:.0f} ms")  # fmt: skip


def check_doctor(room: Room) -> str:
    """Run the doctor and return the selected CPU library, or "" if none runs here."""
    report = room.eagle("doctor", "--json", codes=(0, 4))
    require(Path(report["library_path"]) == room.package / "lib", f"libraries of {report['library_path']}")
    if any("no CPU library" in problem for problem in report["problems"]):
        return ""
    require(report["problems"] == [], f"doctor: {report['problems']}")
    return str(report["cpu_library"])


def check_demo(room: Room) -> Pair:
    """Run the demo, whose pair all other checks use. It exits with 5 if texts differ."""
    work = room.folder / "demo"
    room.run("llama-eagle", "demo", "--json", "--work", work)
    return Pair(work / "q8_0/target-q8_0.gguf", work / "q8_0/draft-q8_0.gguf")


def text_of(room: Room, pair: Pair) -> str:
    """Return the text, after checking that it is the same with and without a draft."""
    texts = [room.eagle(*pair.words(draft))["text"] for draft in (True, False)]
    require(texts[0] == texts[1], f"the draft changes the text: {texts}")
    return str(texts[0])


def native_text(pair: Pair) -> str:
    command = [sys.executable, "-m", "llama_eagle", *map(str, pair.words(draft=True))]
    done = subprocess.run(command, cwd=pair.target.parent, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["text"])


@contextmanager
def served(room: Room, pair: Pair) -> Iterator[str]:
    """Run the server for the duration of the block and yield its address."""
    command = [
        str(room.programs / "llama-eagle"),
        "serve",
        "-m",
        pair.target,
        "-d",
        pair.draft,
        "--port",
        "0",
        "-t",
        "2",
    ]
    process = subprocess.Popen(command, cwd=room.folder, env=room.environment, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        require("listening on" in line, f"the server printed {line!r}")
        yield line.split()[-1]
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(30)
    require(code == 130, f"the server ended with {code}")


def check_readme(room: Room) -> None:
    """Check README and the tables of docs with tests of `make walk`. Other pages need more than the packages."""
    files = [ROOT / "tests/e2e" / name for name in ("test_readme.py", "test_docs.py")]
    marks = "not slow and not gpu and not extended"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", marks, *map(str, files)]
    environment = room.environment | {"LLAMA_EAGLE_TEST_PYTHON": str(room.programs / "python")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    require(done.returncode == 0, f"README is not kept: {done.stdout[-3000:]}{done.stderr}")
    say(f"README and docs: {done.stdout.splitlines()[-1].strip('= ')}")


def check_server(room: Room, pair: Pair, native: str) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": N_TOKENS}
    with served(room, pair) as address:
        request = urllib.request.Request(
            f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine
        with opener.open(request, timeout=120) as answer:
            reply = json.load(answer)
    text = reply["choices"][0]["message"]["content"]
    require(text.strip() == native.strip(), f"the server answers {text!r}")
    require(reply["timings"]["draft_n_accepted"] > 0, "the server's draft is never accepted")


def check_variants(room: Room, pair: Pair, native: str) -> None:
    """Check the best CPU library, then remove it and check the next, until none is left."""
    while name := check_doctor(room):
        start = time.perf_counter()
        same = text_of(room, pair) == native
        require(same or name in OTHER_SUMS, f"{name}: the text differs from that of the library built here")
        seconds = time.perf_counter() - start
        say(f"{name}: {'the same text' if same else 'a text of its own'}, with a draft and without; {seconds:.1f} s")
        (room.package / "lib" / f"lib{name}.so").unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description="Tries the packages of `make wheel`.")
    parser.add_argument("wheels", type=Path, help="the folder with both wheels")
    wheels = parser.parse_args().wheels
    with tempfile.TemporaryDirectory() as folder:
        try:
            room = furnish(Path(folder), wheels)
            check_import(room)
            say(f"doctor: {check_doctor(room)}")
            pair = check_demo(room)
            say("demo: as expected")
            native = native_text(pair)
            check_server(room, pair, native)
            say("serve: the same text")
            check_readme(room)
            check_variants(room, pair, native)
        except Failed as failure:
            print(f"error: {failure}", file=sys.stderr)
            return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
