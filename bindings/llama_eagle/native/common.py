"""The functions of libllama-common (native/include/eagle_chats.h) in ctypes."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_bool, c_char_p, c_int32, c_size_t, c_void_p
from functools import cache
from typing import Any

from llama_eagle.errors import EnvironmentFailure, NativeError, UsageError
from llama_eagle.native.build import REBUILD, library_folder
from llama_eagle.native.calls import ERR_ARGUMENT, OK, library

LIBRARY_NAMES = ("libllama-common.so", "libllama-common.dylib", "libllama-common.dll", "llama-common.dll")
NO_CALLS = "requires a call"
_HAS_REMEDY = re.compile(r": (?:use|write|leave|correct) ")
_UNCLEAR = re.compile(r"\[json\.exception\.[^\]]*\] |JSON schema conversion failed: JSON schema error at ")
FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "eagle_schema_grammar": ([c_char_p, POINTER(c_char_p)], c_int32),
    "eagle_reply_new": ([c_char_p, POINTER(c_void_p), POINTER(c_char_p)], c_int32),
    "eagle_reply_follow": ([c_void_p, c_char_p, POINTER(c_char_p)], c_int32),
    "eagle_reply_add": ([c_void_p, c_char_p, c_size_t, c_bool, POINTER(c_char_p)], c_int32),
    "eagle_reply_free": ([c_void_p], None),
}


def call(name: str, *arguments: Any) -> str:
    """Call a function and return its result. Raises the error of its status."""
    result = c_char_p()
    status = getattr(common_library(), name)(*arguments, ctypes.byref(result))
    text = (result.value or b"").decode("utf-8", "replace")
    if status == OK:
        return text
    reason = one_line(text)
    if status == ERR_ARGUMENT:
        raise UsageError(with_remedy(reason))
    raise NativeError(f"{name}: {reason}", code=status, call=name)


def with_remedy(reason: str) -> str:
    """Return the library's reason in plain words, with a remedy unless it has one."""
    reason = _UNCLEAR.sub("", reason)
    if NO_CALLS in reason:
        return f"{reason}. Leave tool_choice out, or use a model whose template has calls."
    remedy = "the schema" if "schema" in reason else "the messages, the tools or the chat template"
    return reason if _HAS_REMEDY.search(reason) else f"{reason}. Change {remedy}."


def one_line(reason: str) -> str:
    """Return a reason in one line of printable characters, at most 500."""
    return "".join(filter(str.isprintable, " ".join(reason.split())))[:500]


@cache
def common_library() -> ctypes.CDLL:
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
