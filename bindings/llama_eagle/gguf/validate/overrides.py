"""Keys of a model that a user replaces at load time, checked as if the file contained them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from llama_eagle.errors import UsageError
from llama_eagle.gguf.header import STRING, VALUE_TYPE_NAMES, ArrayRef, Header
from llama_eagle.gguf.validate import check_files

Override: TypeAlias = bool | int | float | str

MAX_TEXT = 127  # bytes of a key and of a string: char[128] in llama_model_kv_override
STORAGE = ("split.", "general.alignment")  # the file's storage, which cannot be replaced
BOOL, F32, U32, I32 = 7, 6, 4, 5
KINDS: dict[type, tuple[str, tuple[int, ...]]] = {  # Python type -> name, and GGUF types that llama.cpp accepts it for
    bool: ("bool", (BOOL,)),
    int: ("int", (0, 1, 2, 3, U32, I32, 10, 11)),
    float: ("float", (F32, 12)),
    str: ("str", (STRING,)),
}
RANGES = {
    0: (0, 2**8), 1: (-(2**7), 2**7), 2: (0, 2**16), 3: (-(2**15), 2**15), U32: (0, 2**32), I32: (-(2**31), 2**31),
    10: (0, 2**63), 11: (-(2**63), 2**63),
}  # fmt: skip


def with_overrides(files: list[Header], overrides: Mapping[str, Override] | None, name: str) -> list[Header]:
    """Return the headers of a model's files with some keys replaced.

    name: of the argument, for errors. Raises `UsageError` for a value that llama.cpp would ignore, wrap around or abort
    on.
    """
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UsageError(f"{name} is {overrides!r:.60}: give a dictionary of keys and values.")
    if not overrides:
        return files
    first = files[0]
    keys, types = dict(first.keys), dict(first.key_types)
    for key, value in overrides.items():
        types[key] = _storage_type(first, key, value, name)
        keys[key] = value
    changed = [replace(first, keys=keys, key_types=types, times=None), *files[1:]]  # what is known is about the file
    error = next((finding for finding in check_files(changed) if finding.level == "error"), None)
    if error is not None and not any(finding.level == "error" for finding in check_files(files)):
        raise UsageError(f"{name} makes the model invalid: {error.message}. Correct it.")
    return changed


def _storage_type(header: Header, key: str, value: Override, name: str) -> int:
    """Return the GGUF type of the value: that of the file if it has the key."""
    if not isinstance(key, str) or type(value) not in KINDS or (isinstance(value, float) and not math.isfinite(value)):
        raise UsageError(f"{name}: {key} is {value!r:.60}: give a bool, int, finite float or str.")
    word, kinds = KINDS[type(value)]
    for text in (key, value):
        if isinstance(text, str) and (len(text.encode()) > MAX_TEXT or "\0" in text):
            raise UsageError(f"{name}: {text[:40]!r}... exceeds {MAX_TEXT} bytes or contains a zero. Correct it.")
    if not key or key.startswith(STORAGE):
        raise UsageError(f"{name}: {key!r} cannot be replaced. Leave it out.")
    if isinstance(header.keys.get(key), ArrayRef):
        raise UsageError(f"{name}: {key} is an array in {header.path}, which cannot be replaced. Leave it out.")
    default = I32 if word == "int" and int(value) < 0 else U32 if word == "int" else kinds[0]
    found = header.key_types.get(key, default)
    if found not in kinds:
        raise UsageError(f"{name}: {key} is {VALUE_TYPE_NAMES[found]}, not {word}. Give {value!r:.60} in that type.")
    if word == "int" and not RANGES[found][0] <= int(value) < RANGES[found][1]:
        raise UsageError(f"{name}: {key} is {VALUE_TYPE_NAMES[found]}, which cannot hold {value}. Correct it.")
    return found
