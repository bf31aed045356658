"""Exact verification: its mode, and its support by a model's weights and by the devices."""

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
    """Set the mode for the process: `off`, `on` (default) or `strict`. `strict` must precede the first model.

    Setting a mode other than `off` also enables the exact kernels of CUDA.
    """
    if mode not in MODES:
        raise UsageError(f"exact mode {mode!r} is not one of {', '.join(MODES)}. Correct it.")
    calls.check(calls.library().eagle_exact_set(MODES.index(mode)), "eagle_exact_set")


def get_mode() -> str:
    return MODES[calls.library().eagle_exact_get()]


def report(model: HasHandle) -> dict[str, Any]:
    """Return `exact`, `mode` and the exceptions for a loaded model.

    `inexact` lists weights that only inexact kernels support, `unverified` those whose kernels have not been tested for
    exactness. Each entry has the place, the type, the number of tensors and the reason.
    """
    return dict(_json("eagle_exact_report", model.handle))


def devices() -> list[dict[str, Any]]:
    """Return `device`, `exact` and `why` (the reason if not exact) for each device of this build."""
    return list(_json("eagle_exact_devices"))


def _json(call: str, *arguments: Any) -> Any:
    text = ctypes.create_string_buffer(REPORT_BYTES)
    n = getattr(calls.library(), call)(*arguments, text, len(text))
    if n < 0:
        calls.check(-n, call)
    return json.loads(text.value)


def require(model: HasHandle) -> str | None:
    """Return a sentence about unverified weights, or None. Raises `EnvironmentFailure` for inexact weights."""
    found = report(model)
    if found["mode"] == "off" or found["inexact"]:
        raise EnvironmentFailure(
            f"exact verification: no exact kernel for: {_weights(found['inexact'])}. "
            "Use another type, keep the layers on the CPU, or leave exact out."
        )
    unverified = found["unverified"]
    return f"{_weights(unverified)}: {unverified[0]['why']}" if unverified else None


def _weights(entries: list[dict[str, Any]]) -> str:
    return ", ".join(f"{entry['tensors']} of {entry['type']} in {entry['where']}" for entry in entries)
