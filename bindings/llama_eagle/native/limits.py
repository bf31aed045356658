"""Maximum values for llama.cpp, which beyond them ends the process or wraps around."""

from __future__ import annotations

MAX_CONTEXT = 2**31 - 1
MAX_THREADS = 512  # ggml's GGML_MAX_N_THREADS; many more end the process
LONGEST = 16  # default maximum draft length in tokens
MAX_EXACT_ROWS = 72  # EAGLE_EXACT_MAX_ROWS: maximum batch size whose rows have the same bits as alone
MAX_EXACT_DRAFT = MAX_EXACT_ROWS - 1
