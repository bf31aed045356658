"""Child processes of Python: their environment, and those that load a model, which llama.cpp may end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from llama_eagle.errors import EnvironmentFailure


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child that imports the modules of this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1", **more}


def try_model(module: str, arguments: Sequence[str], doing: str, max_seconds: float) -> str:
    """Run a module that ends with `report`; return the problem with the model, or "".

    doing: a clause for the message if llama.cpp ends the process. Raises `EnvironmentFailure` if the child is killed or
    takes too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=environment(GGML_NO_BACKTRACE="1"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        limit = f"{max_seconds:.0f} s"
        raise EnvironmentFailure(f"llama.cpp needs more than {limit} {doing}. End other programs.") from None
    if os.name == "posix" and done.returncode == -signal.SIGKILL:
        raise EnvironmentFailure(f"llama.cpp was killed {doing}, presumably for lack of memory. Free some.")
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return str(json.loads(lines[-1])["problem"])
    said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {done.returncode}"]
    reason = next((line for line in said if "GGML_ASSERT" in line), said[-1])
    return f"llama.cpp ends the process {doing} ({reason.rpartition(': ')[2]})"


def forbid_core_files() -> None:
    """Make the end of this process write no core file."""
    with contextlib.suppress(ImportError):  # Windows has none
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def report(problem: str) -> NoReturn:
    """Write the result of a trial, and end this process without freeing the model."""
    print(json.dumps({"problem": problem}), flush=True)
    os._exit(0)
