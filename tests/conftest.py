"""Set-up of all tests: folders of a user, torch's threads, Ctrl-C, and the files of `make test-all` alone."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from fixtures.user import give_home

# Before anything reads them. The workers of a run inherit its folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    run_home = Path(tempfile.mkdtemp(prefix="llama-eagle-tests-"))
    give_home(run_home)
    atexit.register(shutil.rmtree, run_home, ignore_errors=True)

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch of the commands: its threads would wait for each other

# A shell's background job ignores Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that `make test` leaves out: they take long, and none is needed for the main paths.
EXTENDED = {
    "test_bench_reports", "test_data_loss", "test_demo_padded", "test_demo_real",
    "test_device_costs", "test_device_logits", "test_distribution", "test_draft_devices", "test_evaluate", "test_fuzz",
    "test_gpus", "test_gpus_text", "test_hub", "test_image_chats", "test_imatrix",
    "test_long_conversations", "test_lookup_cache", "test_mtp_devices", "test_mtp_trimmed", "test_patterns",
    "test_requests", "test_rpc", "test_run_hub", "test_sampler_guard", "test_server_arguments", "test_server_constants",
    "test_server_limits", "test_server_requests", "test_server_templates", "test_soak", "test_train_chain",
    "test_train_masks", "test_train_mtp", "test_two_devices",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in EXTENDED:
            item.add_marker("extended")
