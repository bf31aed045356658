"""Commands ended at random moments: Ctrl-C, SIGTERM, hang-up, kill -9.

    python tests/fuzz/interrupt.py --cases 1000 --seed 1
    python tests/fuzz/interrupt.py --only 137          # one case again

After each: the command is gone, by the signal or whole; its folder holds whole files or none; nothing hidden stays,
but after kill -9; no process of its own lives on; and the same command runs to its end then. Prints how many cases of
each command ended how, and the longest time from signal to end; exit 1 where something went wrong.

One case in four starts a process as a user does. The others fork one that has imported everything, so that the signal
comes in the middle of the work and not of Python's start.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fixtures.targets import make_target
from fixtures.tiny_gguf import write_draft, write_target
from fixtures.training import make_training_target, write_jsonl

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
INTERRUPTED = 130
PATIENCE = 10.0  # seconds from the signal to the end; this machine may be busy
WHOLE = 600.0  # for a run that is left alone
SENTENCES = ("The quick brown fox jumps over the lazy dog. ", "We'll see 12345 times, isn't it? ", "def verify(ids): ")


@dataclass
class Job:
    """A command. Its outputs go to the folder OUT; `same`: they have the same bytes every time."""

    arguments: list[str]
    stdin: str = ""
    same: bool = True
    again: list[str] = field(default_factory=list)  # more arguments for a run after one that left something
    serves: bool = False
    forks: bool = True
    share: int = 4  # of the cases
    expected: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0


OUT = "OUT"


def make_models(folder: Path) -> None:
    folder.mkdir()
    write_target(folder / "target.gguf")
    write_draft(folder / "draft.gguf")
    source = make_target("qwen3vl", folder / "source")
    (source / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    make_training_target("qwen3", folder / "learner", hidden_size=32, intermediate_size=48)
    write_jsonl(folder / "text.jsonl", *({"text": SENTENCES[i % 3] * (2 + i % 4)} for i in range(60)))


def make_jobs(folder: Path) -> dict[str, Job]:
    names = ("target.gguf", "draft.gguf", "source", "learner", "text.jsonl")
    target, draft, source, learner, data = (folder / name for name in names)
    pair = ["-m", str(target), "-d", str(draft), "-t", "1"]
    course = ["--device", "cpu", "--dtype", "f32", "--draft-vocab", "96", "--steps", "2", "--max-length", "32"]
    course += ["--batch-size", "4", "--epochs", "3", "--eval-every", "5", "--save-every", "5", "--eval-share", "0.1"]
    convert = ["convert", str(source), "--overwrite", "-o", f"{OUT}/text.gguf", "--outtype"]
    return {
        "convert": Job([*convert, "bf16", "--mmproj", f"{OUT}/vision.gguf"]),
        "convert and quantize": Job([*convert, "q4_0"]),
        "quantize": Job(["quantize", str(target), f"{OUT}/out.gguf", "q4_0", "-t", "1", "--overwrite"]),
        "train": Job(
            ["train", "--target", str(learner), "--data", str(data), "-o", f"{OUT}/draft", *course],
            same=False,
            again=["--resume"],
            forks=False,  # torch computes on threads that a fork does not have
            share=1,
        ),
        "generate": Job(["generate", *pair, "--raw", "-p", "abc" * 60, "-n", "200", "-c", "1024"]),
        "chat": Job(["chat", *pair, "-c", "512", "-n", "30"], stdin="/stats\nabc\n/retry\ndef\n/save SAVED\nx\n"),
        "serve": Job(["serve", *pair, "-c", "128", "--parallel", "2", "--port", "0"], serves=True),
    }


class Run:
    """A command that runs, forked from here or started as a user does."""

    def __init__(self, job: Job, out: Path, extra: list[str], *, forked: bool) -> None:
        self.out = out
        words = [word.replace(OUT, str(out)) for word in (*job.arguments, *extra)]
        self._stdin = out.parent / "stdin"
        self._stdin.write_text(job.stdin.replace("SAVED", str(out / "saved")))
        self.log = out.parent / "log"
        with self._stdin.open() as given, self.log.open("w") as log:
            if forked:
                self.pid = _fork(words, given.fileno(), log.fileno())
            else:
                command = [sys.executable, "-m", "llama_eagle", *words]
                self.pid = subprocess.Popen(command, stdin=given, stdout=log, stderr=log).pid

    def end(self, patience: float) -> int | None:
        """Its exit status as subprocess has it; None where it does not end."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        return None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _fork(words: list[str], stdin: int, log: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, fd in ((0, stdin), (1, log), (2, log)):
            os.dup2(fd, number)
        sys.stdin, sys.stdout, sys.stderr = (open(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))  # noqa: PTH123, SIM115
        from llama_eagle.cli import main

        sys.argv[1:] = words
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def import_everything() -> None:
    import llama_eagle.convert.targets
    import llama_eagle.drop_in.llama
    import llama_eagle.quantize.quantize  # noqa: F401
    from llama_eagle.cli.app import command

    command()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hidden(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


def children_of(folder: Path) -> list[int]:
    """Processes whose command line names the models of this run."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"llama-server") and any(str(folder).encode() in word for word in words):
                    found.append(int(entry.name))
    return found


def is_whole(job: Job, name: str, data: bytes) -> bool:
    """A saved chat is as long as it had become: Ctrl-C ends an answer and not the chat."""
    if name == "saved":
        return is_json(data)
    return not job.same or data == job.expected.get(name)


def is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def faults(job: Job, run: Run, number: int, code: int | None, models: Path) -> Iterator[str]:
    """List the faults of a command that received a signal."""
    if code is None:
        yield f"still there {PATIENCE:.0f} s after {signal.Signals(number).name}"
        return
    allowed = {0, -number, INTERRUPTED if number == signal.SIGINT else -number}
    if code not in allowed:
        yield f"exit status {code} after {signal.Signals(number).name}"
    log = run.log.read_text(errors="replace")
    is_ours = "llama_eagle/cli" in log or "Traceback" not in log  # not where Python itself is still starting
    if is_ours and ("Traceback" in log or "internal error" in log):
        yield f"a traceback: {log.strip().splitlines()[-1]}"
    if number != signal.SIGKILL and (left := hidden(run.out)):
        yield f"left {left[0]}"
    for name, data in contents(run.out).items():
        is_hidden = number == signal.SIGKILL and name.startswith(".")
        if not is_hidden and not is_whole(job, name, data):
            yield f"half a file: {name}, {len(data)} bytes"
    if job.serves:
        until = time.monotonic() + PATIENCE
        while children_of(models) and time.monotonic() < until:
            time.sleep(0.01)
        if children_of(models):
            yield "llama-server lives on"


def faults_afterwards(job: Job, out: Path) -> Iterator[str]:
    """List the faults of the same command on the files that are left."""
    if job.serves:
        return
    resumes = job.again and (out / "draft" / "training_state.pt").exists()
    run = Run(job, out, job.again if resumes else [], forked=job.forks)
    code = run.end(WHOLE)
    if code != 0:
        yield f"the next run ended with {code}: {run.log.read_text(errors='replace').strip()[-200:]}"
        if code is None:
            run.kill()
    elif left := hidden(out):
        yield f"the next run left {left[0]}"
    elif job.same and contents(out) != job.expected:
        yield "the next run made something else"
    elif not job.same and set(contents(out)) != set(job.expected):
        yield f"the next run made {sorted(contents(out))}"


def measure(job: Job, folder: Path) -> None:
    """A run that is left alone, or a server until it listens: what it makes, and how long it takes."""
    out = folder / "out"
    out.mkdir(parents=True)
    start = time.monotonic()
    run = Run(job, out, [], forked=job.forks)
    if job.serves:
        while "listening on" not in run.log.read_text():
            assert time.monotonic() < start + WHOLE
            time.sleep(0.01)
        job.seconds = 1.5 * (time.monotonic() - start)
        os.kill(run.pid, signal.SIGTERM)
        assert run.end(WHOLE) == 0
        return
    code = run.end(WHOLE)
    assert code == 0, run.log.read_text()
    job.seconds, job.expected = time.monotonic() - start, contents(out)


def try_case(jobs: dict[str, Job], number: int, models: Path, folder: Path) -> tuple[str, str, float, list[str]]:
    """The command, how it ended, the seconds from signal to end, and what went wrong."""
    rng = random.Random(number)
    name = rng.choices(list(jobs), [job.share for job in jobs.values()])[0]
    job, sent = jobs[name], rng.choice(SIGNALS)
    forked = job.forks and rng.random() < 0.75
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir(parents=True)
    run = Run(job, out, [], forked=forked)
    time.sleep(rng.uniform(0, 1.1 * job.seconds + (0 if forked or not job.forks else 0.5)))
    start = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.pid, sent)
    code = run.end(PATIENCE)
    seconds = time.monotonic() - start
    wrong = list(faults(job, run, sent, code, models))
    if code is None:
        run.kill()
    if not wrong:
        wrong = list(faults_afterwards(job, out))
    how = "whole" if code == 0 else signal.Signals(sent).name
    return name, how, seconds, [f"{number}: {name}: {fault}" for fault in wrong]


def fuzz(numbers: range, seconds: float, folder: Path, report: Callable[[str], None] = print) -> list[str]:
    """List the faults of these cases, or of those that fit into the time."""
    # Elsewhere: torch's threads, once they have worked, do not survive a fork.
    making = multiprocessing.get_context("spawn").Process(target=make_models, args=(folder / "models",))
    making.start()
    making.join()
    import_everything()
    jobs = make_jobs(folder / "models")
    for i, job in enumerate(jobs.values()):
        measure(job, folder / f"whole-{i}")
    ends: collections.Counter[tuple[str, str]] = collections.Counter()
    longest: dict[str, float] = collections.defaultdict(float)
    wrong: list[str] = []
    until = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > until:
            break
        name, how, took, found = try_case(jobs, number, folder / "models", folder / "case")
        ends[name, how] += 1
        longest[name] = max(longest[name], took)
        wrong += found
        for fault in found:
            report(fault)
    report(f"{ends.total()} cases, {len(wrong)} wrong")
    for name in jobs:
        told = ", ".join(f"{how} {n}" for (job, how), n in sorted(ends.items()) if job == name)
        report(f"{name}: {told}; at most {longest[name]:.2f} s")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after these")
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    first = arguments.seed * 10_000_000
    numbers = range(first, first + arguments.cases)
    if arguments.only is not None:
        numbers = range(arguments.only, arguments.only + 1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, and what it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored under nohup
    with tempfile.TemporaryDirectory() as name:
        return 1 if fuzz(numbers, arguments.seconds, Path(name)) else 0


if __name__ == "__main__":
    sys.exit(main())
