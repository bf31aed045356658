"""Type checks of callers' arguments, once at the entry. A message names the argument, its value and the allowed type.

The checks follow the annotations of a function or class, and also allow what its code accepts: numpy numbers for
numbers, paths for texts that name files, None for options that it switches off.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from llama_eagle.errors import UsageError


def allowed(words: str, check: Callable[[Any], bool]) -> Any:
    """Return a type for the values that pass `check`. words: its name in messages, such as "a finite number"."""

    def require(value: Any) -> Any:
        try:
            passes = check(value)
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
            passes = False
        if not passes:
            raise PydanticCustomError("not_allowed", words)
        return value

    return Annotated[Any, BeforeValidator(require)]


def is_text(value: Any) -> bool:
    """Return True for text that UTF-8 can encode: text without lone surrogates."""
    return isinstance(value, str) and not SURROGATE.search(value)


def is_path(value: str | PathLike[str]) -> bool:
    """Return True for text that the system takes as a path: it can be encoded, and has no null characters."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_whole(value: Any) -> bool:
    return operator.index(value) is not None


def require_text(name: str, text: str) -> str:
    """Return `text`. Raises `UsageError` if it contains a lone surrogate."""
    if not is_text(text):
        raise UsageError(f"{name}={text!r:.60} must be {TEXT_WORDS}. Correct it.")
    return text


TEXT_WORDS = "a string without lone surrogates"
WHOLE = allowed("a whole number", _is_whole)
FINITE = allowed(
    "a finite number", lambda value: not isinstance(value, str | bytes | bytearray) and math.isfinite(float(value))
)
FLAG = allowed(
    "true or false", lambda value: value is None or type(value).__name__.startswith("bool") or _is_whole(value)
)
TEXT = allowed(TEXT_WORDS, is_text)
PATH = allowed("a path", lambda value: isinstance(value, str | PathLike) and is_path(value))
CALLABLE = allowed("callable", callable)
NAMED = {int: WHOLE, float: FINITE, bool: FLAG, str: TEXT}
SURROGATE = re.compile("[\ud800-\udfff]")
LISTS = (list, Sequence, Iterable)


class Types:
    """The types of the arguments of a function or class.

    of: the function or class. others: types in place of its annotations. names: names in annotations that the module
    does not define at run time.
    """

    def __init__(self, of: Any, names: Mapping[str, Any] | None = None, **others: Any) -> None:
        self._of, self._names, self._others = of, names, others

    def check(self, given: Mapping[str, Any]) -> None:
        """Check the types of the given arguments. Raises `UsageError` for the first wrong one."""
        for name, value in given.items():
            if name in self._adapters:
                _check(name, value, self._adapters[name])

    @functools.cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        hints = typing.get_type_hints(self._of, localns=dict(self._names) if self._names else None)
        kinds = {name: _loosened(hint) for name, hint in hints.items() if name != "return"} | self._others
        return {name: TypeAdapter(kind) for name, kind in kinds.items() if kind is not Any}


def _loosened(hint: Any) -> Any:
    """Return an annotation with the types that the code accepts for numbers, texts and lists; Any if unchecked."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [_loosened(part) for part in parts]
        return Any if Any in kinds else typing.Union[tuple(kinds)]  # noqa: UP007 (a tuple of them)
    if origin in LISTS:
        return Annotated[list[_loosened(parts[0])], BeforeValidator(_listed)]  # type: ignore[misc]
    if origin is Callable:
        return CALLABLE
    return hint if hint is type(None) else NAMED.get(hint, Any)


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _check(name: str, value: Any, adapter: TypeAdapter[Any]) -> None:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        faults = error.errors()
        inner = [fault for fault in faults if fault["input"] is not value] or faults
        words = dict.fromkeys(str(fault["msg"]).removeprefix("Input should be ") for fault in inner)
        found = inner[0]["input"]
        part = "" if found is value else f" ({found!r:.60})"
        raise UsageError(f"{name}={value!r:.100}{part} must be {' or '.join(words)}. Correct it.") from None
