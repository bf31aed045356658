"""Parts of the training loop: the learning rate's course, the progress bar, and how often things happen."""

from __future__ import annotations

import itertools
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_eagle import console, progress
from llama_eagle.errors import InputError
from llama_eagle.train.data.samples import Sample
from llama_eagle.train.data.vocabulary import require_embeddings
from llama_eagle.train.loop import _period, default_epochs, default_rate, schedule
from llama_eagle.train.metrics import Journal, plot, read_metrics


def test_a_token_without_an_embedding_is_named() -> None:
    sample = Sample("a.jsonl:3", np.array([1, 512, 2], np.int32), np.ones(3, np.bool_))
    require_embeddings([sample], 513)
    with pytest.raises(InputError, match=r"a\.jsonl:3: contains token 512, but the target has 512 embeddings"):
        require_embeddings([sample], 512)


FREED = """
import ctypes, os, sys
from llama_eagle.native.processor.memory import keep_freed_memory, return_freed_memory
if sys.argv[1] != "default":
    keep_freed_memory()
libc, n_bytes = ctypes.CDLL(None), 1 << 26
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
block = libc.malloc(n_bytes)
ctypes.memset(block, 1, n_bytes)
libc.free(block)
if sys.argv[1] == "return":
    return_freed_memory()
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_freed_memory_is_kept_until_it_is_returned() -> None:
    kept, *others = [
        int(subprocess.run([sys.executable, "-c", FREED, name], check=True, stdout=subprocess.PIPE).stdout)
        for name in ("keep", "default", "return")
    ]
    assert all(kept - used > 0.9 * 2**26 for used in others)


def test_warm_up_then_cosine() -> None:
    rates = [schedule(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10] == 1
    assert rates[55] == pytest.approx(0.5)
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert 0 < rates[99] < 0.001
    assert schedule(0, 1, 0.0) == 1


def test_wide_drafts_learn_more_slowly() -> None:
    assert default_rate(2560) == pytest.approx(1e-4)
    assert default_rate(64) == 3e-3
    assert default_rate(1024) > default_rate(2560) > default_rate(4096)


@pytest.mark.parametrize(("n_steps", "expected"), [(5, 1), (100, 5), (100_000, 5000)])
def test_short_runs_are_evaluated_as_often_as_long_ones(n_steps: int, expected: int) -> None:
    assert _period(n_steps, 20) == expected


def test_small_data_is_seen_more_often() -> None:
    assert [default_epochs(n) for n in (1, 38, 150, 300, 20_000)] == [10, 10, 7, 4, 3]


def record(step: int, held_out: bool) -> dict[str, Any]:
    losses, accuracy = [2.0, 3.0], [0.5, 0.25 + 0.5 * held_out]
    return {"step": step, "held_out": held_out, "losses": losses, "accuracy": accuracy, "mean_emitted": 1.6}


def test_the_bar_shows_accuracy_by_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "on_terminal", lambda: True)
    for name, value in (("COLUMNS", "200"), ("FORCE_COLOR", "1"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    journal = Journal(tmp_path)
    journal.advance(4, 10, 0.4)
    journal.write(record(4, held_out=True))
    journal.write(record(4, held_out=False))
    journal.advance(6, 10, 0.6)
    shown = ""
    while "step 6 of 10" not in shown:
        time.sleep(0.01)
        shown += capsys.readouterr().err
    journal.close()
    for part in ("60%", "loss 5.000, accuracy 0.50 0.25", "held out 0.50 0.75, 1.60 per round"):
        assert part in shown
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_run_that_ends_without_records_is_plotted(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot(tmp_path).stat().st_size > 0


def test_training_to_a_file_writes_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.2)
    journal = Journal(tmp_path)
    journal.advance(4, 10, 0.4)
    shown = ""
    while not shown:
        time.sleep(0.01)
        shown = capsys.readouterr().err
    journal.close()
    assert shown == "training: 40%, 0:00, step 4 of 10\n"  # one report has no speed, so no remaining time
