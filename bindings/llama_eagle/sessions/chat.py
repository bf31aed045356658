"""JSON schemas and required tool calls as grammars, by the code of llama-server (native/include/eagle_chats.h)."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int32
from functools import cache
from typing import Any

from llama_eagle.errors import EnvironmentFailure, NativeError, UsageError
from llama_eagle.native.build import REBUILD, library_folder
from llama_eagle.native.calls import ERR_ARGUMENT, OK, library

LIBRARY_NAMES = ("libllama-common.so", "libllama-common.dylib", "libllama-common.dll", "llama-common.dll")
FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "eagle_schema_grammar": ([c_char_p, POINTER(c_char_p)], c_int32),
    "eagle_calls_grammar": ([c_char_p, POINTER(c_char_p)], c_int32),
}


def schema_grammar(schema: str) -> tuple[str, list[str]]:
    """Return the grammar of a JSON schema, and the keys that it does not enforce.

    Raises `UsageError` for a schema that cannot be converted.
    """
    return _grammar("eagle_schema_grammar", schema)


def calls_grammar(functions: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Return the grammar of {"name": ..., "arguments": ...} for a call of one of `functions`, as `schema_grammar`."""
    return _grammar("eagle_calls_grammar", json.dumps(list(functions)))


def _grammar(name: str, given: str) -> tuple[str, list[str]]:
    found = json.loads(_call(name, given.encode("utf-8", "replace")))
    return str(found["grammar"]), list(found["unenforced"])


def _call(name: str, *arguments: Any) -> str:
    """Call a function and return its result. Raises the error of its status."""
    result = c_char_p()
    status = getattr(_library(), name)(*arguments, ctypes.byref(result))
    text = (result.value or b"").decode("utf-8", "replace")
    if status == OK:
        return text
    reason = " ".join(text.split())[:500]
    if status == ERR_ARGUMENT:
        raise UsageError(f"{reason}. Correct it.")
    raise NativeError(f"{name}: {reason}", code=status, call=name)


@cache
def _library() -> ctypes.CDLL:
    library()  # libllama, on which it depends
    folder = library_folder()
    found = [folder / name for name in LIBRARY_NAMES if (folder / name).is_file()]
    if not found:
        raise EnvironmentFailure(f"{folder} has no {LIBRARY_NAMES[0]}. {REBUILD}")
    lib = ctypes.CDLL(str(found[0]))
    for name, (argtypes, restype) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = argtypes, restype
    return lib
