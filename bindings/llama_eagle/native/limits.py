"""The largest values that llama.cpp takes. Beyond them it ends the process, or wraps around."""

from __future__ import annotations

MAX_CONTEXT = 2**31 - 1
MAX_THREADS = 512  # ggml's GGML_MAX_N_THREADS; far more end the process
LONGEST = 16  # tokens of a draft, unless told otherwise
MAX_EXACT_ROWS = 72  # EAGLE_EXACT_MAX_ROWS: rows of a batch that keep the bits they have alone
MAX_EXACT_DRAFT = MAX_EXACT_ROWS - 1
