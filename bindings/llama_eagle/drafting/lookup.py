"""Prompt look-up: drafts from the text so far (native/include/eagle_lookup.h)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from llama_eagle.native.calls import as_tokens, check, library


class PromptLookup:
    """Proposes the tokens that most likely follow the newest `n_gram` tokens (then fewer, down to `n_min`).

    It remembers the texts of all its generations, in 16 MiB. Good for texts that repeat: edits, summaries, code. Costs
    microseconds.
    """

    name = "look-up"

    def __init__(self, n_gram: int = 6, n_min: int = 2) -> None:
        self._lib = library()
        self.handle = ctypes.c_void_p()
        check(self._lib.eagle_lookup_new(1, n_gram, n_min, ctypes.byref(self.handle)), "eagle_lookup_new")
        weakref.finalize(self, self._lib.eagle_lookup_free, self.handle)

    def begin(self, tokens: Sequence[int]) -> None:
        check(self._lib.eagle_lookup_begin(self.handle, 0, as_tokens(tokens), len(tokens)), "eagle_lookup_begin")

    def draft(self, id_last: int, n_max: int) -> list[int]:
        ids, n, n_match = (ctypes.c_int32 * n_max)(), ctypes.c_int32(), ctypes.c_int32()
        status = self._lib.eagle_lookup_draft(
            self.handle, 0, id_last, ids, n_max, ctypes.byref(n), ctypes.byref(n_match)
        )
        check(status, "eagle_lookup_draft")
        return ids[: n.value]

    def accept(self, tokens: Sequence[int]) -> None:
        check(self._lib.eagle_lookup_extend(self.handle, 0, as_tokens(tokens), len(tokens)), "eagle_lookup_extend")
