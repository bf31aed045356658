"""Caches take memory when they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.tiny_gguf import write_target
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions

pytestmark = [pytest.mark.native, pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are filled")]
N_CTX = 1 << 19  # tokens, whose cache has 64 MiB


def resident() -> int:
    """Return the memory of this process in bytes that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.filterwarnings("ignore:the context of")
def test_an_unused_context_takes_little_memory(tmp_path: Path) -> None:
    with Model(write_target(tmp_path / "target.gguf")) as model:
        before = resident()
        with Context(model, ContextOptions(n_ctx=N_CTX, n_batch=32, n_ubatch=32)):
            assert resident() - before < 32 << 20


SECOND = """
import sys
from llama_eagle.errors import EnvironmentFailure
from llama_eagle.gguf import size
from llama_eagle.native.processor.linux import unwritten_memory
from llama_eagle.sessions.models import Context, Model
from llama_eagle.sessions.options import ContextOptions

options = ContextOptions(n_ctx=int(sys.argv[2]), n_batch=32, n_ubatch=32)
with Model(sys.argv[1]) as model:
    free = unwritten_memory() + (96 << 20)
    size.available_bytes = lambda: free
    with Context(model, options):
        try:
            Context(model, options)
        except EnvironmentFailure as error:
            print(error)
    Context(model, options).close()
    print("accepted")
"""


def test_what_another_context_may_write_is_not_free(tmp_path: Path) -> None:
    """Until it is closed. Memory for one and a half of the caches is free, in a process without other allocations."""
    command = [sys.executable, "-W", "ignore", "-c", SECOND, write_target(tmp_path / "target.gguf"), str(N_CTX)]
    refused, accepted = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert "no context of 524288 tokens" in refused and accepted == "accepted"
