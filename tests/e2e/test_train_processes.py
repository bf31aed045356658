"""`llama-eagle train` in processes of its own: killed and resumed, or several at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.training import make_training_target, write_jsonl
from llama_eagle.train.metrics import read_metrics

pytestmark = pytest.mark.slow

SENTENCES = ["The quick brown fox jumps over the lazy dog. ", "We'll see 12345 times, isn't it? ", "def verify(ids): "]
EVERY_TIME = {"tokens_per_s"}
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # their number follows other programs, and the last bits follow it


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("given")
    make_training_target("qwen3", folder / "target", hidden_size=32, intermediate_size=48)
    texts = ({"text": SENTENCES[i % 3] * (2 + i % 4) + SENTENCES[(i + 1) % 3] * 2} for i in range(80))
    data = write_jsonl(folder / "text.jsonl", *texts)
    found = ["train", "--target", folder / "target", "--data", data, "--device", "cpu", "--dtype", "f32"]
    found += ["--draft-vocab", 96, "--steps", 3, "--max-length", 32, "--lr", 3e-3, "--eval-share", 0.1, "--json"]
    found += ["--eval-every", 10, "--log-every", 1, "--batch-size", 2, "--epochs", 6]
    return list(map(str, found))


def curve(folder: Path) -> list[dict[str, Any]]:
    records = read_metrics(folder / "metrics.jsonl")
    return [{name: value for name, value in record.items() if name not in EVERY_TIME} for record in records]


def llama_eagle(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "llama_eagle", *map(str, arguments)]


def run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def kill_at(step: int, command: list[str], folder: Path) -> int:
    """SIGKILL as soon as the journal has reached the step; the step it has reached then."""
    process = subprocess.Popen(command, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not any(record["step"] >= step for record in read_metrics(folder / "metrics.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return int(read_metrics(folder / "metrics.jsonl")[-1]["step"])


@pytest.mark.parametrize("kind", ["draft", "head"])
def test_killed_twice_and_resumed(kind: str, arguments: list[str], tmp_path: Path) -> None:
    """The same loss curve and the same draft, or MTP head, as a run that was left alone."""
    if kind == "head":
        target = make_training_target("qwen35", tmp_path / "target")
        arguments = [*arguments, "--kind", "mtp", "--target", str(target)]  # the last --target counts
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arguments = [*arguments, "--epochs", "2"]  # 120 steps
    report = run(llama_eagle(*arguments, "-o", whole))
    resumed = llama_eagle(*arguments, "-o", cut, "--save-every", 7)
    first = kill_at(25, resumed, cut)
    assert 25 <= first < report["steps"]
    second = kill_at(first + 20, [*resumed, "--resume"], cut)
    assert first < second < report["steps"]
    assert run([*resumed, "--resume"]) == {**report, "output": str(cut), "plot": str(cut / "training.png")}
    assert curve(cut) == curve(whole)
    for name in ("model.safetensors", "config.json"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def launched(module: str, *options: str) -> list[str]:
    return [sys.executable, "-m", module, *options, "-m", "llama_eagle"]


def assert_same_course(found: Path, expected: Path) -> None:
    """Step by step; launchers set the number of threads, so sums may be rounded otherwise."""
    for a, b in zip(curve(found), curve(expected), strict=True):
        assert a["step"] == b["step"]
        assert a["losses"] == pytest.approx(b["losses"], rel=1e-3)


@pytest.mark.parametrize("offline", [False, True])
def test_two_processes_do_what_one_does_in_two_passes(offline: bool, arguments: list[str], tmp_path: Path) -> None:
    given = [*arguments[:-1], "2"]  # two epochs
    run(llama_eagle(*given, "-o", tmp_path / "one", "--accumulate", "2"))
    more = ["--features", str(tmp_path / "features")] if offline else []
    torchrun = launched("torch.distributed.run", "--nproc_per_node", "2")
    run([*torchrun, *given, "-o", str(tmp_path / "two"), *more])
    assert_same_course(tmp_path / "two", tmp_path / "one")
    done = subprocess.run(
        llama_eagle(*given, "-o", tmp_path / "two", "--resume"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "started with processes 2, not 1" in done.stderr


def test_accelerates_launcher(arguments: list[str], tmp_path: Path) -> None:
    """On a CPU it starts one process, whatever it is told; on several GPUs it is torchrun."""
    given = [*arguments[:-1], "1"]
    run(llama_eagle(*given, "-o", tmp_path / "plain"))
    launcher = launched("accelerate.commands.launch", "--cpu", "--num_processes", "1", "--mixed_precision", "no")
    run([*launcher, *given, "-o", str(tmp_path / "launched")])
    assert_same_course(tmp_path / "launched", tmp_path / "plain")
