"""Switch of the changes in a copy of the package (mutants.py): which of them has an effect, and which tests reach them.

It is copied next to the package. A process reads the number of the active change when it first reaches a place, and
again after it was forked.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = Path(__file__).parent
ACTIVE, REACHED, CURRENT = FOLDER / "active", FOLDER / "reached", FOLDER / "current"
RECORDS, OFF = -2, -1  # in place of the number of a change
WORKER = "PYTEST_XDIST_WORKER"
test = ""  # the running one, in pytest's own process
_active: int | None = None
_context: str | None = None
_seen: set[tuple[int, str]] = set()


def current() -> Path:
    """Return the file with the name of the test that this worker runs, for the processes that it starts."""
    return Path(f"{CURRENT}-{os.environ.get(WORKER, '')}")


def is_on(place: int) -> bool:
    """Return True if the change at this place is active. While tests are recorded none is."""
    global _active
    if _active is None:
        _active = RECORDS if REACHED.exists() else int(ACTIVE.read_text())
    if _active == RECORDS:
        _record(place)
    return place == _active


def _record(place: int) -> None:
    global _context
    if _context is None:
        with contextlib.suppress(OSError):
            _context = current().read_text()
    name = test or _context or ""
    if (place, name) not in _seen:
        _seen.add((place, name))
        with contextlib.suppress(OSError), REACHED.open("a") as file:
            file.write(f"{place}\t{name}\n")


def _forget() -> None:
    global _active, _context, test
    _active, _context, test = None, None, ""
    _seen.clear()


os.register_at_fork(after_in_child=_forget)
