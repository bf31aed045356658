"""Builder and runner of llama.cpp's own EAGLE-3 and MTP driver, llama-speculative-simple, from the pinned source."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from llama_eagle.bench.measurement import Measurement
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import cache_dir

NATIVE = Path(__file__).resolve().parent.parent / "native"
REPAIRS = ("0001-amx-tile-config-barrier.patch",)  # without it a gcc 12 build crashes on AMX machines
TOOLS = ("llama-speculative-simple", "llama-bench", "mtp-rounds")
SERVER = "llama-server"
LOOKUPS = ("ngram-simple", "ngram-mod", "ngram-cache")  # llama.cpp's drafters without a model
MODEL_DRAFTS = {  # by architecture; other models: draft-simple
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "gemma4-assistant": "draft-mtp",
}


class PeerFailure(EnvironmentFailure):
    """A tool of llama.cpp that ended with an error."""


@dataclasses.dataclass(frozen=True)
class PeerJob:
    """A job for llama.cpp's tools: n tokens from one model."""

    model: Path
    n: int
    threads: int
    gpu_layers: int = 0
    type_k: str = "f16"
    type_v: str = "f16"


@dataclasses.dataclass(frozen=True)
class Peer:
    """The tools of one llama.cpp build."""

    folder: Path
    commit: str

    def decode(self, job: PeerJob) -> float:
        """Return tokens/s of plain decoding: llama-bench, job.n tokens from an empty context."""
        return self._bench(job, "-p", "0", "-n", str(job.n))

    def read(self, job: PeerJob) -> float:
        """Return tokens/s of evaluating a prompt of job.n tokens with llama-bench."""
        return self._bench(job, "-p", str(job.n), "-n", "0")

    def _bench(self, job: PeerJob, *arguments: str) -> float:
        where = ["-t", str(job.threads), "-ngl", str(job.gpu_layers), "-ctk", job.type_k, "-ctv", job.type_v]
        output = self._run(["llama-bench", "-m", str(job.model), "-r", "1", "-o", "json", *where, *arguments])
        return float(json.loads(output)[0]["avg_ts"])

    def speculate(
        self, job: PeerJob, draft: Path | None, prompt: str, n_draft: int, architecture: str = "eagle3"
    ) -> Measurement:
        """Measure greedy decoding with llama-speculative-simple; without a `draft` it uses the target's MTP head.

        Draft and target run with the same number of threads and GPU layers. architecture: of the draft.
        """
        kind = MODEL_DRAFTS.get(architecture, "draft-simple") if draft else "draft-mtp"
        options = ["--spec-draft-n-max", str(n_draft), "--spec-type", kind]
        if draft:
            threads, layers = str(job.threads), str(job.gpu_layers)
            options += ["-md", str(draft), "-td", threads, "-tbd", threads, "-ngld", layers]
        return self._speculate(job, prompt, options)

    def look_up(self, job: PeerJob, prompt: str, kind: str) -> Measurement:
        """Measure greedy decoding with one of LOOKUPS and its default settings."""
        return self._speculate(job, prompt, ["--spec-type", kind])

    def _speculate(self, job: PeerJob, prompt: str, options: list[str]) -> Measurement:
        threads, layers = str(job.threads), str(job.gpu_layers)
        command = [
            *("llama-speculative-simple", "-m", str(job.model), "-t", threads, "-tb", threads, "-ngl", layers),
            *("-ctk", job.type_k, "-ctv", job.type_v),
            *(
                "-p",
                prompt,
                "--no-escape",
                "-n",
                str(job.n),
                "--temp",
                "0",
                "-c",
                str(len(prompt) + job.n + 512),
                *options,
            ),
        ]
        output = self._run(command, merge=True)
        n_decoded, seconds = _numbers(r"decoded +(\d+) tokens in +([\d.]+) seconds", output)
        (n_drafted,), (n_accepted,) = _numbers(r"n_drafted = (\d+)", output), _numbers(r"n_accept +?= (\d+)", output)
        batches, single = _numbers(r"prompt eval time = +([\d.]+) ms(?s:.)*? eval time = +([\d.]+) ms", output)
        rounds = n_decoded - n_accepted
        round_ms, verify_ms = 1000 * seconds / rounds, (batches + single) / rounds
        return Measurement(
            tps=n_decoded / seconds,
            accept_rate=n_accepted / n_drafted if n_drafted else 0.0,
            mean_emitted=n_decoded / rounds,
            round_ms=round_ms,
            verify_ms=verify_ms,
            draft_ms=round_ms - verify_ms,  # everything except decodes of the target
        )

    def _run(self, command: list[str], merge: bool = False) -> str:
        """Run a tool and return stdout, or both streams with `merge`: the drivers log to stderr."""
        done = subprocess.run(
            [str(self.folder / command[0]), *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise PeerFailure(f"{command[0]} failed: {_reason(done.stdout if merge else done.stderr)}")
        return done.stdout


def _reason(log: str) -> str:
    """Return the line with the reason of a failure: an assertion, else the last error, else the last line."""
    lines = log.strip().splitlines() or ["no reason given"]
    asserted = [line for line in lines if "GGML_ASSERT" in line]
    errors = [line for line in lines if re.search(r"\berror\b|\bE\b", line)]
    return (asserted or errors or lines)[-1]


def build_peer(
    log: Path | None = None,
    tools: Sequence[str] = TOOLS,
    folder: Path | None = None,
    edit: Callable[[Path], None] = lambda source: None,
    options: Sequence[str] = (),
) -> Peer:
    """Compile the tools once per pinned source. The first time takes minutes.

    folder: default: in the user's cache. edit: changes the unpacked source. options: of cmake.
    """
    upstream = _upstream_module()
    pin = upstream.pinned()
    folder = folder or cache_dir() / "peers" / f"llama.cpp-{pin['llama_cpp_commit']}"
    binaries = folder / "build" / "bin"
    if not all((binaries / tool).is_file() for tool in tools):
        source = _prepare_source(upstream, pin, folder / "source")
        edit(source)
        defined = [*options, f"-DEAGLE_UPSTREAM_COMMIT={pin['llama_cpp_commit']}"]
        _compile(source, folder / "build", defined, log or folder / "build.log", tools)
    return Peer(binaries, pin["llama_cpp_commit"])


def _upstream_module() -> ModuleType:
    """Import native/cmake/upstream.py, which downloads and patches the source for our own build."""
    path = NATIVE / "cmake" / "upstream.py"
    if not path.is_file():
        raise EnvironmentFailure(
            "--peers upstream compiles llama.cpp's tools and requires llama-eagle's source tree. Run it from a clone "
            "installed with `pip install -e .`."
        )
    spec = importlib.util.spec_from_file_location("llama_eagle_upstream", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their own module
    spec.loader.exec_module(module)
    return module


def _prepare_source(upstream: ModuleType, pin: dict[str, str], dest: Path) -> Path:
    """Unpack the pinned source and apply only the patches in REPAIRS."""
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    try:
        if source := os.environ.get("LLAMA_CPP_SOURCE_DIR"):
            upstream.copy_tree(Path(source), dest)
        else:
            upstream.unpack(upstream.fetch_sdist(pin), dest)
        for name in REPAIRS:
            upstream.apply(NATIVE / "patches" / name, dest)
    except upstream.UpstreamError as error:
        raise EnvironmentFailure(str(error)) from None
    return dest


def _compile(source: Path, build: Path, defined: Sequence[str], log: Path, tools: Sequence[str]) -> None:
    options = [f"-DLLAMA_CPP_DIR={source}", f"-DEAGLE_NATIVE={NATIVE}", *defined]
    extra = [o for o in shlex.split(os.environ.get("CMAKE_ARGS", "")) if not o.startswith("-DLLAMA_BUILD")]
    configure = ["cmake", "-S", str(Path(__file__).parent / "upstream"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
    compile_ = ["cmake", "--build", str(build), "--parallel", str(os.cpu_count() or 1), "--target", *tools]
    with log.open("w") as file:
        for command in ([*configure, *options, *extra], compile_):
            try:
                done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
            except FileNotFoundError:
                raise EnvironmentFailure(
                    "cmake is not installed. Run `pip install cmake ninja` and install a C++ compiler."
                ) from None
            if done.returncode:
                raise EnvironmentFailure(f"compiling llama.cpp's tools failed. See {log}.")


def _numbers(pattern: str, text: str) -> tuple[float, ...]:
    match = re.search(pattern, text)
    if not match:
        raise EnvironmentFailure(
            f"llama-speculative-simple did not print {pattern.split()[0]!r}. Its output ends with: {text[-200:]}"
        )
    return tuple(float(group) for group in match.groups())
