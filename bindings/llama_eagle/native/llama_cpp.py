"""The ctypes functions of llama-cpp-python: importing this module yields `llama_cpp.llama_cpp` itself.

The package's `__init__`, which does not run here, imports NumPy, Jinja and SQLite: half of a command's start. Another
`import llama_cpp` runs it, and uses the same functions.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

PACKAGE, FUNCTIONS = "llama_cpp", "llama_cpp.llama_cpp"


def _functions() -> ModuleType:
    spec = None if FUNCTIONS in sys.modules or PACKAGE in sys.modules else find_spec(PACKAGE)
    if spec is None:
        return import_module(FUNCTIONS)
    sys.modules[PACKAGE] = module_from_spec(spec)
    try:
        return import_module(FUNCTIONS)
    finally:
        del sys.modules[PACKAGE]


def __getattr__(name: str) -> Any:  # for type checkers
    raise AttributeError(name)


sys.modules[__name__] = _functions()
