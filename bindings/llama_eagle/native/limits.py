"""Maximum values for llama.cpp, which beyond them ends the process or wraps around; numbers in text."""

from __future__ import annotations

import re

MAX_INT = 2**31 - 1  # of the C type int32_t
MAX_FLOAT = 3.4e38  # of the C type float
CHAT_CONTEXT = 8192  # default context of a conversation in tokens, unless the model was trained with less
MAX_CONTEXT = MAX_INT  # tokens
MAX_THREADS = 512  # ggml's GGML_MAX_N_THREADS; many more end the process
LONGEST = 16  # default maximum draft length in tokens
MAX_EXACT_ROWS = 72  # EAGLE_EXACT_MAX_ROWS: maximum batch size whose rows have the same bits as alone
MAX_EXACT_DRAFT = MAX_EXACT_ROWS - 1


def read_number(text: str) -> int | None:
    """Return the number that up to 18 digits form; None for other text.

    `str.isdigit` also accepts characters that `int` refuses, such as a superscript, and `int` refuses thousands of
    digits.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def read_size(text: str) -> int | None:
    """Return the bytes of a size such as "500M" or "2G"; None for other text, and for nothing."""
    units = {"M": 1000**2, "G": 1000**3}
    number, unit = read_number(text[:-1]), text[-1:].upper()
    return number * units[unit] if number and unit in units else None
