"""Ids of answers and their parts."""

from __future__ import annotations

import secrets
import string

LETTERS = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """Return a prefix with 32 random letters and digits."""
    return prefix + "".join(secrets.choice(LETTERS) for _ in range(32))
