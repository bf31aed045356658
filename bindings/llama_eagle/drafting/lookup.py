"""Prompt look-up: drafts from the text so far and from earlier ones (native/include/eagle_lookup.h)."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_eagle.drafting.drafter import OwnDrafter
from llama_eagle.errors import IncompatibleModels, InputError, NativeError
from llama_eagle.native.calls import as_tokens, check, library
from llama_eagle.native.closing import free_with


class PromptLookup(OwnDrafter):
    """Proposes the tokens that most likely follow the newest `n_gram` tokens (then fewer, down to `n_min`).

    It remembers the texts of all its generations, in 16 MiB. Good for texts that repeat: edits, summaries, code. Costs
    microseconds. With `open` it also knows the texts of earlier processes.
    """

    name = "look-up"

    def __init__(self, n_gram: int = 6, n_min: int = 2) -> None:
        self._lib = library()
        self.lookup = ctypes.c_void_p()
        check(self._lib.eagle_lookup_new(1, n_gram, n_min, ctypes.byref(self.lookup)), "eagle_lookup_new")
        free_with(self, self.lookup, self._lib.eagle_lookup_free)

    def open(self, path: str | Path, vocab: Any) -> None:
        """Read the texts of earlier processes from `path`, where `save` writes to. vocab: a llama_vocab pointer.

        A damaged file is a warning, and replaced. Raises `InputError` for one of another vocabulary, and for what is no
        such file.
        """
        try:
            check(self._lib.eagle_lookup_open(self.lookup, vocab, os.fsencode(path)), "eagle_lookup_open")
        except IncompatibleModels as error:
            raise InputError(f"lookup_cache {error}.") from None
        if notice := self._lib.eagle_lookup_notice(self.lookup).decode("utf-8", "replace"):
            warnings.warn(f"{notice}.", stacklevel=2)

    def save(self) -> None:
        """Add what was learned to the file of `open`, if there is one. A file that cannot be written is a warning."""
        if not self.lookup:
            return
        try:
            check(self._lib.eagle_lookup_save(self.lookup), "eagle_lookup_save")
        except NativeError as error:
            warnings.warn(f"{error}.", stacklevel=2)

    def begin(self, tokens: Sequence[int]) -> None:
        check(self._lib.eagle_lookup_begin(self.lookup, 0, as_tokens(tokens), len(tokens)), "eagle_lookup_begin")

    def draft(self, id_last: int, n_max: int) -> list[int]:
        ids, n, n_match = (ctypes.c_int32 * n_max)(), ctypes.c_int32(), ctypes.c_int32()
        status = self._lib.eagle_lookup_draft(
            self.lookup, 0, id_last, ids, n_max, ctypes.byref(n), ctypes.byref(n_match)
        )
        check(status, "eagle_lookup_draft")
        return ids[: n.value]

    def accept(self, tokens: Sequence[int]) -> None:
        check(self._lib.eagle_lookup_extend(self.lookup, 0, as_tokens(tokens), len(tokens)), "eagle_lookup_extend")
