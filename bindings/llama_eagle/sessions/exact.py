"""Exact verification: the switch, and what a loaded model's weights and this machine's devices allow."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from llama_eagle.errors import EnvironmentFailure, UsageError
from llama_eagle.native import calls
from llama_eagle.sessions.session import HasHandle

MODES = ("off", "on", "strict")
REPORT_BYTES = 65536


def set_mode(mode: str) -> None:
    """`off`, `on` (the default) or `strict`, for the whole process; `strict` only before the first model is loaded.

    Setting a mode other than `off` is asking: from then on CUDA's kernels are exact too.
    """
    if mode not in MODES:
        raise UsageError(f"exact mode {mode!r} is not one of {', '.join(MODES)}. Correct it.")
    calls.check(calls.library().eagle_exact_set(MODES.index(mode)), "eagle_exact_set")


def get_mode() -> str:
    return MODES[calls.library().eagle_exact_get()]


def report(model: HasHandle) -> dict[str, Any]:
    """What holds for a loaded model: `exact`, `mode` and the weights that stand against it.

    `inexact` are those that only inexact kernels read, `unverified` those whose kernels have never been seen to be
    exact; each entry says where, which type, how many tensors, and why.
    """
    return dict(_json("eagle_exact_report", model.handle))


def devices() -> list[dict[str, Any]]:
    """`device`, `exact` and `why` not, for each device of this build."""
    return list(_json("eagle_exact_devices"))


def _json(call: str, *arguments: Any) -> Any:
    text = ctypes.create_string_buffer(REPORT_BYTES)
    n = getattr(calls.library(), call)(*arguments, text, len(text))
    if n < 0:
        calls.check(-n, call)
    return json.loads(text.value)


def require(model: HasHandle) -> str | None:
    """What of the model is unverified, to be told; raises `EnvironmentFailure` where only inexact kernels read it."""
    found = report(model)
    if found["mode"] == "off" or found["inexact"]:
        raise EnvironmentFailure(
            f"exact verification was asked for, but nothing computes these exactly: {_weights(found['inexact'])}. "
            "Use another type or keep the layers on the CPU, or leave exact out."
        )
    unverified = found["unverified"]
    return f"{_weights(unverified)}: {unverified[0]['why']}" if unverified else None


def _weights(entries: list[dict[str, Any]]) -> str:
    return ", ".join(f"{entry['tensors']} of {entry['type']} in {entry['where']}" for entry in entries)
