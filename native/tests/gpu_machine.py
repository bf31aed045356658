"""Build, test and measure on a machine with a GPU, in half an hour, and write a page of results.

    python native/tests/gpu_machine.py cuda OUT                  # or vulkan
    python native/tests/gpu_machine.py stand-in OUT --quick      # the rehearsal, without any GPU

Run it in a clone. It needs Python, make, a C++ compiler and the backend's toolkit. OUT gets results.json, results.md
and a log of each step. A step that fails does not stop the others; a step without time left is reported as not run.
--quick takes tiny models, some of the tests and 8 tokens, and leaves llama.cpp's own programs out: its figures mean
nothing, but it ends on two cores with a software device. --backend-library FILE is a backend that was built alone
(`make test-vulkan`): it joins the installed library. --library FOLDER is a whole build from another machine, with its
tests; it runs with the Python that runs this program, and llama.cpp's own programs are left out. --steps names some.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv" / "bin" / "python"
TYPES = ("f16", "q8_0", "q4_k_m")  # of the demo target, for exactness
PARITY = "@tests/device_tests.txt"  # as `make test-vulkan`
QUICK_TESTS = "(few and short or synthetic or choice) and not two and not tied"  # of these
QUICK_BENCH = ("--n-draft", "4", "-n", "8", "--repetitions", "1", "--depths", "8")  # a token a second on lavapipe
QUICK_ROUNDS = ("--rows", "2", "--runs", "4", "--model", "0.8B")
LONGEST = 17  # rows of a round
NOT_EXACT = 5  # exit code of `check --exact`


@dataclass(frozen=True)
class Backend:
    """cmake: options of its build. shows: the variable that names the devices to use; none: a stand-in."""

    cmake: tuple[str, ...] = ()
    shows: str | None = None


BACKENDS = {
    "cuda": Backend(("-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"), "CUDA_VISIBLE_DEVICES"),
    "vulkan": Backend(("-DGGML_VULKAN=ON",), "GGML_VK_VISIBLE_DEVICES"),
    "stand-in": Backend(),
}


@dataclass
class Result:
    """ok None: not run."""

    name: str
    ok: bool | None = None
    seconds: float = 0.0
    summary: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class Failed(Exception):
    """A command of a step failed; the message is for the page."""


class Machine:
    """Runs the steps' commands. minutes: for all of them."""

    def __init__(self, name: str, out: Path, options: argparse.Namespace) -> None:
        self.name, self.backend, self.out = name, BACKENDS[name], out
        self.quick: bool = options.quick
        self.steps: list[str] = options.steps or list(STEPS)
        self.library: Path | None = options.library and options.library.resolve()
        self.lib_folder = self.library or ROOT / "build" / f"gpu-{name}" / "bin"
        self.python = Path(sys.executable) if self.library else VENV
        self.joined: Path | None = options.backend_library and options.backend_library.resolve()
        self.end = time.monotonic() + 60 * options.minutes
        self.step = ""
        self.extra: dict[str, str] = {}  # environment of the step's commands

    @property
    def is_built(self) -> bool:
        """The library has the backend; else `fixtures.gpus` brings a device."""
        return self.backend.shows is not None and self.joined is None

    @property
    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def environment(self, *, visible: bool = True) -> dict[str, str]:
        """Return the environment of commands that use the library, with its devices or without."""
        found = {**os.environ, "LLAMA_EAGLE_CACHE": str(self.out / "cache"), **self.extra}
        if self.joined:
            found["LLAMA_EAGLE_TEST_GPU"] = f"{self.name}={self.joined}"
        elif self.backend.shows:
            found |= {"LLAMA_EAGLE_LIB_PATH": str(self.lib_folder), self.backend.shows: "0" if visible else ""}
        return found

    def run(self, *command: object, visible: bool = True, cwd: Path = ROOT, fails: bool = True) -> tuple[int, str]:
        """Exit code and standard output; the step's log gets all. Raises `Failed` for other codes than 0 if `fails`."""
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words, cwd=cwd, env=self.environment(visible=visible), capture_output=True,
                text=True, errors="replace", timeout=max(1.0, self.seconds_left), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            with (self.out / f"{self.step}.log").open("ab") as log:
                log.write(error.stdout or b"")
            raise Failed("no time was left") from None
        except OSError as error:
            raise Failed(str(error)) from None
        with (self.out / f"{self.step}.log").open("a") as log:
            log.write(f"$ {' '.join(words)}\n{done.stdout}\n{done.stderr}\n[{done.returncode}]\n")
        if fails and done.returncode:
            raise Failed(f"{Path(words[0]).name} ended with {done.returncode}: {last_line(done.stdout + done.stderr)}")
        return done.returncode, done.stdout

    def ours(self, program: object, *arguments: object, fails: bool = True) -> tuple[int, str]:
        """A Python program or module where it sees the device."""
        words = [str(word) for word in (program, *arguments)]
        if self.is_built:
            return self.run(self.python, *([] if words[0].endswith(".py") else ["-m"]), *words, fails=fails)
        return self.run(self.python, "-m", "fixtures.gpus", *words, cwd=ROOT / "tests", fails=fails)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


# --- steps ------------------------------------------------------------------------------------------------------------


def build(machine: Machine, result: Result) -> None:
    """The Python package, and the library with the backend in a folder of its own."""
    if machine.library:
        result.summary = f"given: {machine.library.name}"
        return
    machine.run("make", "install")
    if not machine.is_built:
        result.summary = "the package"
        return
    cmake, folder = machine.python.parent / "cmake", machine.lib_folder.parent
    options = [
        "-G",
        "Ninja",
        "-DLLAMA_EAGLE_TESTS=ON",
        "-DLLAMA_EAGLE_SERVER=OFF",
        f"-DPython3_EXECUTABLE={machine.python}",
    ]
    if machine.name == "vulkan":
        options += machine.run(ROOT / "native/tests/vulkan_headers.sh", ROOT / "build/vulkan-headers")[1].split()
    machine.run(cmake, "-S", ROOT, "-B", folder, *options, *machine.backend.cmake)
    machine.run(cmake, "--build", folder, "--parallel", os.cpu_count() or 1)
    result.summary = "the package, and the library with " + " ".join(machine.backend.cmake)


def devices(machine: Machine, result: Result) -> None:
    """Report of `doctor`; there must be a GPU."""
    report = json.loads(machine.ours("llama_eagle", "doctor", "--json")[1])
    result.data = report
    if not report["gpu_backends"]:
        raise Failed("the library sees no GPU")
    result.summary = ", ".join(f"{gpu['name']}: {gpu['description']}" for gpu in report["gpu_backends"])


def programs(machine: Machine) -> list[Path]:
    folders = [machine.lib_folder] if machine.is_built else sorted(ROOT.glob("build/py3-*/bin"))
    return sorted(path for path in folders[-1].glob("test_*") if os.access(path, os.X_OK) and path.is_file())


def native(machine: Machine, result: Result) -> None:
    """The programs of native/tests. One that has no device for a part of itself says so."""
    paths = programs(machine)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        ends = list(pool.map(lambda path: machine.run(path, fails=False), paths))
    found = {path.name: end for path, end in zip(paths, ends, strict=True)}
    failed = [name for name, (code, _) in found.items() if code]
    partly = {name: re.findall("^not run: (.*)", text, re.MULTILINE) for name, (_, text) in found.items()}
    result.data = {"failed": failed, "not_run": {name: lines for name, lines in partly.items() if lines}}
    result.summary = f"{len(found) - len(failed)} of {len(found)} programs pass"
    if result.data["not_run"]:
        result.summary += f"; partly not run: {', '.join(result.data['not_run'])}"
    if failed or not found:
        raise Failed(f"{result.summary}; failed: {', '.join(failed) or 'none is built'}")


def sanitizer(machine: Machine, result: Result) -> None:
    """NVIDIA's compute-sanitizer over our kernels."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if machine.name != "cuda" or not Path(tool).exists():
        result.ok, result.summary = None, "there is no compute-sanitizer for this backend, or it is not installed"
        return
    for check in ("memcheck", "racecheck"):
        for name in ("test_gdn_replay", "test_exact_devices"):
            machine.run(tool, "--tool", check, "--error-exitcode", 1, machine.lib_folder / name)
    result.summary = "memcheck and racecheck find nothing in test_gdn_replay and test_exact_devices"


def parity(machine: Machine, result: Result) -> None:
    """Logits, choices, drafts and text at every offload, against the CPU."""
    report = machine.out / "parity.xml"
    given = ["env", f"LLAMA_EAGLE_TEST_GPU={machine.name}"] if machine.is_built else []
    some = ["-k", QUICK_TESTS] if machine.quick else []
    tests = ("-m", "pytest", PARITY, *some, f"--junitxml={report}")
    code, text = machine.run(*given, machine.python, *tests, visible=False, fails=False)
    suite = ElementTree.parse(report).getroot()[0]
    result.data = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = [case.get("name") for case in suite.iter("testcase") if len(case) and case[0].tag != "skipped"]
    result.data["failed"] = failed
    result.summary = f"{result.data['tests'] - len(failed) - result.data['skipped']} of {result.data['tests']} pass"
    if code:
        raise Failed(f"{result.summary}; {', '.join(map(str, failed)) or last_line(text)}")


def exactness(machine: Machine, result: Result) -> None:
    """Comparison of the bits of a row alone and in a batch, with all layers on the device."""
    machine.extra = {"LLAMA_EAGLE_EXACT": "1"}
    for outtype in TYPES[:1] if machine.quick else TYPES:
        target = machine.out / f"demo-{outtype}.gguf"
        if not target.exists():
            machine.run(
                machine.python, "-m", "llama_eagle", "convert", ROOT / "demo/target", "-o", target, "--outtype", outtype
            )
        arguments = ("check", target, "--exact", "-ngl", -1, "--json")
        code, text = machine.ours("llama_eagle", *arguments, fails=False)
        if code not in (0, NOT_EXACT):
            raise Failed(f"check of {outtype} ended with {code}: {last_line(text)}")
        result.data[outtype] = code == 0
    yes = [name for name, same in result.data.items() if same]
    result.summary = f"the same bits alone and in batches: {', '.join(yes) or 'none'} of {', '.join(result.data)}"
    if machine.name == "cuda" and len(yes) < len(result.data):
        raise Failed(result.summary)  # elsewhere nobody promised it


def speed(machine: Machine, result: Result) -> None:
    """Replay against snapshots, rounds of 1 to 17 rows."""
    which = QUICK_ROUNDS if machine.quick else ("--rows", LONGEST)
    arguments = ("--n-gpu-layers", -1, *which, "--json")
    _, report = machine.ours(ROOT / "bench/studies/round_state.py", *arguments)
    result.data = json.loads(report)
    best, *_, worst = sorted(row["ratio"] for row in result.data["speed"])
    result.summary = f"snapshots take {best:.2f} to {worst:.2f} times as long as replay"


def against_upstream(machine: Machine, result: Result) -> None:
    """Plain decoding, drafts of every length, and llama.cpp's own EAGLE-3."""
    shape = ("tiny", *QUICK_BENCH) if machine.quick else ("0.8b",)
    peers = () if machine.quick or machine.library else ("--peers", "upstream")
    machine.extra = {"CMAKE_ARGS": " ".join(machine.backend.cmake)}  # llama.cpp's tools have the same backend
    arguments = ("bench", "--synthetic", *shape, "--accept", 0.7, "--type", "q8_0", *peers, "-ngl", -1, "--json")
    _, text = machine.ours("llama_eagle", *arguments)
    result.data = json.loads(text)
    result.summary = f"best over plain decoding {result.data['best_over_plain']:.2f}"
    if result.data["best_over_upstream"] is not None:
        result.summary += f", over llama.cpp's own {result.data['best_over_upstream']:.2f}"


STEPS: dict[str, Callable[[Machine, Result], None]] = {
    "build": build,
    "devices": devices,
    "native": native,
    "sanitizer": sanitizer,
    "parity": parity,
    "exactness": exactness,
    "speed": speed,
    "bench": against_upstream,
}


def perform(machine: Machine) -> list[Result]:
    results = []
    for name in machine.steps:
        step, result = STEPS[name], Result(name, True)
        results.append(result)
        start, machine.step, machine.extra = time.monotonic(), name, {}
        (machine.out / f"{name}.log").unlink(missing_ok=True)
        print(f"{name}: {(step.__doc__ or '').strip()}", file=sys.stderr)
        try:
            if machine.seconds_left <= 0:
                raise Failed("no time was left")
            step(machine, result)
        except Failed as failure:
            result.ok, result.summary = False if machine.seconds_left > 0 else None, str(failure)
        except (ValueError, KeyError, OSError, ElementTree.ParseError) as error:  # an output that is none
            result.ok, result.summary = False, f"{type(error).__name__}: {error}"
        result.seconds = time.monotonic() - start
        if name == "build" and not result.ok:
            break
    return results


def page(machine: Machine, results: list[Result]) -> str:
    """results.md"""
    said = {True: "yes", False: "NO", None: "not run"}
    lines = [f"# {machine.name}, {time.strftime('%Y-%m-%d')}", ""]
    if machine.quick:
        lines += ["A rehearsal: tiny models, some of the tests, a benchmark of 8 tokens. Its figures mean nothing.", ""]
    lines += ["| step | fine | seconds | result |", "|---|---|---|---|"]
    lines += [f"| {r.name} | {said[r.ok]} | {r.seconds:.0f} | {r.summary.replace('|', ' ')} |" for r in results]
    for result in results:
        if result.name == "speed" and result.data:
            lines += ["", "| rows | snapshots, ms | replay, ms | ratio |", "|---|---|---|---|"]
            lines += [
                f"| {row['rows']} | {row['snapshots_ms']:.2f} | {row['replay_ms']:.2f} | {row['ratio']:.2f} |"
                for row in result.data["speed"]
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=30, help="for everything (30)")
    parser.add_argument("--backend-library", type=Path, help="libggml-vulkan.so, say; default: a build with it is made")
    parser.add_argument("--library", type=Path, help="folder of a build with its tests; default: it is built")
    parser.add_argument("--steps", nargs="*", choices=STEPS, help="default: all")
    parser.add_argument("--quick", action="store_true", help="a rehearsal")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    machine = Machine(options.backend, out, options)
    results = perform(machine)
    (out / "results.json").write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    (out / "results.md").write_text(page(machine, results))
    print(page(machine, results))
    sys.exit(any(result.ok is False for result in results))


if __name__ == "__main__":
    main()
