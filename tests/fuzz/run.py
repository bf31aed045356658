"""Mutated GGUF files, each validated, loaded and generated with in a process of its own, and folders, converted there.

    python tests/fuzz/run.py drafts --cases 20000 --seed 1
    python tests/fuzz/run.py targets --cases 10000 --seed 1
    python tests/fuzz/run.py folders --cases 10000 --seed 1
    python tests/fuzz/run.py tokenizers --cases 10000 --seed 1
    python tests/fuzz/run.py targets --only 4711           # one case again; its file is kept

Prints how the cases ended and, for those that went wrong, what reproduces them; exit 1 if there are any.
"""

from __future__ import annotations

import argparse
import collections
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fixtures.dflash import CASES as DFLASH_CASES
from fixtures.dflash import make_dflash
from fixtures.eagle3_checkpoints import CASES, make_draft, make_target_gguf
from fixtures.gemma4 import make_gemma4_pair
from fixtures.tiny_gguf import Variant, write_draft, write_target
from fuzz import folder_cases, tokenizer_keys
from fuzz.folder_cases import FolderSeed
from fuzz.gguf_file import MUTATIONS, Mutation, mutated

ENVIRONMENT = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # no debugger at an abort
PATIENCE = 20.0  # seconds for a file that takes a small part of one
EXTENDED = "everything"  # the draft with biases, norms and more layers
BLOCKS = {"dflash": "dflash-window", "dflash2": "dflash2", "dspark": "dspark-no-confidence"}
FAMILIES = ("qwen3", "qwen2", "llama3", "qwen3vl", "qwen3moe", "qwen35moe", "qwen3next")
LAYERS = 4


@dataclass(frozen=True)
class Seed:
    """Files to start from; the draft is mutated where there is one, else the target. words: for the worker."""

    target: Path
    draft: Path | None = None
    mutations: tuple[Mutation, ...] = MUTATIONS
    words: tuple[str, ...] = ()

    @property
    def changed(self) -> Path:
        return self.draft or self.target


def make_seeds(kind: str, folder: Path, families: tuple[str, ...] = FAMILIES) -> list[Seed] | list[FolderSeed]:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "folders":
        return folder_cases.make_seeds(folder, ("qwen35", *families))
    if kind == "tokenizers":
        paths = tokenizer_keys.write_kinds(folder)
        return [Seed(path, mutations=tokenizer_keys.MUTATIONS, words=("text",)) for path in paths]
    if kind == "drafts":
        from llama_eagle.convert.drafts import DraftOptions, convert_draft

        stock = Seed(write_target(folder / "target.gguf"), write_draft(folder / "draft.gguf"))
        other = make_target_gguf(folder / "other.gguf")
        checkpoint = make_draft(folder / "checkpoint", CASES[EXTENDED])
        convert_draft(checkpoint, other, folder / "extended.gguf", DraftOptions(outtype="f32"))
        for kind, case in BLOCKS.items():
            source = make_dflash(folder / kind, DFLASH_CASES[case])
            convert_draft(source, other, folder / f"{kind}.gguf", DraftOptions(outtype="f32"))
        pair = make_gemma4_pair(folder / "gemma4")
        small = write_target(folder / "small.gguf", Variant(hidden=32))
        others = [Seed(other, folder / f"{kind}.gguf") for kind in ("extended", *BLOCKS)]
        return [stock, *others, Seed(stock.target, small), Seed(pair.gguf, pair.draft)]
    from fixtures.targets import HYBRID, make_target
    from llama_eagle.convert.targets import TargetOptions, convert_target

    seeds = [Seed(write_target(folder / "qwen35.gguf"))]
    for family in families:
        source = make_target(family, folder / family, num_hidden_layers=LAYERS, mtp=family in HYBRID)
        convert_target(source, folder / f"{family}.gguf", TargetOptions(outtype="bf16"))
        seeds.append(Seed(folder / f"{family}.gguf"))
    return seeds


class Worker:
    """A process that is started again after each case that ends it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, line: str) -> str:
        """Return the result of a case: the worker's answer, "hang", or the signal that ended it."""
        if self.process is None:
            command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        answer = self.process.stdout.readline() if ready else ""
        if answer:
            return answer.rstrip("\n")
        self.process.kill()
        code = self.process.wait()
        self.process = None
        return f"signal {-code}" if ready else "hang"

    def restart(self) -> None:
        self.close()
        self.process = None

    @property
    def peak_mib(self) -> int:
        """The most memory that the process has had, 0 where the system does not tell or there is none."""
        status = Path(f"/proc/{self.process.pid}/status") if self.process is not None else None
        lines = status.read_text().splitlines() if status is not None and status.exists() else []
        return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")), 0)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def run_sound(worker: Worker, seed: Seed | FolderSeed, folder: Path) -> str:
    """Run the inputs without mutations."""
    if isinstance(seed, FolderSeed):
        shutil.rmtree(folder / "case", ignore_errors=True)
        return worker.ask(folder_cases.place(seed, None, folder / "case"))
    return worker.ask("\t".join((str(seed.target), str(seed.draft or "-"), *seed.words)))


def run_case(worker: Worker, seeds: Sequence[Seed | FolderSeed], number: int, folder: Path) -> str:
    seed = seeds[number % len(seeds)]
    if isinstance(seed, FolderSeed):
        shutil.rmtree(folder / "case", ignore_errors=True)
        return worker.ask(folder_cases.place(seed, number, folder / "case"))
    path = folder / "case.gguf"
    path.write_bytes(mutated(seed.changed, number, seed.mutations))
    words = [*seed.words]
    words += [word for word, n in (("quantize", 7), ("text", 3), ("sample", 4)) if number // 10 % n == 0]
    if seed.draft is not None:
        return worker.ask("\t".join((str(seed.target), str(path), *words)))
    return worker.ask("\t".join((str(path), "-", *words)))


def fuzz(kind: str, numbers: range, folder: Path, families: tuple[str, ...] = FAMILIES) -> dict[str, list[int]]:
    """Ends of the cases -> their numbers. families: of the targets that are mutated."""
    seeds, worker, ends = make_seeds(kind, folder / "seeds", families), Worker(), collections.defaultdict(list)
    try:
        for seed in seeds:  # what is not mutated runs
            assert (end := run_sound(worker, seed, folder)) == "ran", (seed, end)
        enough_mib = 2 * worker.peak_mib
        for number in numbers:
            end = run_case(worker, seeds, number, folder)
            if worker.peak_mib > enough_mib:
                end = f"memory: {worker.peak_mib} MiB"
                worker.restart()
            if not end.startswith(("refused", "ran")):
                print(f"{number}: {end}", file=sys.stderr, flush=True)
            ends["refused" if end.startswith("refused") else end].append(number)
    finally:
        worker.close()
    return dict(ends)


def wrong(ends: dict[str, list[int]]) -> dict[str, list[int]]:
    return {end: numbers for end, numbers in ends.items() if end not in ("refused", "ran")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("drafts", "targets", "folders", "tokenizers"))
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    if arguments.only is not None:
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        seeds, worker = make_seeds(arguments.kind, folder / "seeds"), Worker()
        print(run_case(worker, seeds, arguments.only, folder), folder)
        worker.close()
        return 0
    first = arguments.seed * 10_000_000
    with tempfile.TemporaryDirectory() as name:
        ends = fuzz(arguments.kind, range(first, first + arguments.cases), Path(name))
    for end, numbers in sorted(ends.items(), key=lambda item: -len(item[1])):
        print(f"{len(numbers):6} {end}" + ("" if end in ("refused", "ran") else f"   --only {numbers[0]}"))
    return 1 if wrong(ends) else 0


if __name__ == "__main__":
    sys.exit(main())
