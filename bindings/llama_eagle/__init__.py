"""EAGLE-3 speculative decoding for quantized local models, from Python, on llama.cpp.

Importing this package makes llama-cpp-python load our build of llama.cpp. The import itself loads no native code: each
name below is imported on first use, so that the converter works without a native build.
"""

from __future__ import annotations

# ruff: noqa: E402
import os
import signal
import sys

_BEGINNING = "".join(sys.argv[:1])
_IS_MODULE = _BEGINNING == "-m" and "llama_eagle" in sys.orig_argv
_IS_SCRIPT = os.path.basename(_BEGINNING) in ("llama-eagle", "llama-eagle.exe")  # noqa: PTH119 (pathlib is slow)
if (_IS_MODULE or _IS_SCRIPT) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C during imports; `cli.main` restores it

import importlib
from typing import TYPE_CHECKING, Any

from llama_eagle.native.build import redirect_llama_cpp

if TYPE_CHECKING:
    from llama_eagle.drafting.auto import Auto
    from llama_eagle.drafting.draft_length import Fixed
    from llama_eagle.drafting.lookup import PromptLookup
    from llama_eagle.drop_in.llama import EagleLlama
    from llama_eagle.generation.generate import GenerationResult, generate
    from llama_eagle.generation.options import SamplingParams
    from llama_eagle.sessions.models import ModelPair
    from llama_eagle.sessions.options import ContextOptions, LoadOptions
    from llama_eagle.sessions.session import EagleSession

__all__ = [
    "Auto",
    "ContextOptions",
    "EagleLlama",
    "EagleSession",
    "Fixed",
    "GenerationResult",
    "LoadOptions",
    "ModelPair",
    "PromptLookup",
    "SamplingParams",
    "generate",
]

_HOMES = {
    "Auto": "drafting.auto",
    "Fixed": "drafting.draft_length",
    "EagleLlama": "drop_in.llama",
    "GenerationResult": "generation.generate",
    "generate": "generation.generate",
    "ContextOptions": "sessions.options",
    "LoadOptions": "sessions.options",
    "ModelPair": "sessions.models",
    "PromptLookup": "drafting.lookup",
    "SamplingParams": "generation.options",
    "EagleSession": "sessions.session",
}

redirect_llama_cpp()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'llama_eagle' has no attribute {name!r}")
    return getattr(importlib.import_module(f"llama_eagle.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
