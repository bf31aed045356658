"""Recordings of the commands on terminals of 80 and 120 columns, for review.

    python bench/studies/terminal.py [NAME...] [-o build/terminal] [--columns 80 120]

Each command runs with the demo's files in a terminal of that size; the final screen is written to NAME-COLUMNS.txt.
Lines wider than the terminal are listed: acceptable for prose, not for tables. Requires pexpect and pyte.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pyte

LINES = 40
WIDE = 2000  # columns; wider than every line
IDLE_S = 1.0  # seconds without output before checking for a prompt
LONGEST_S = 300
ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFT = "build/demo/q8_0/target-q8_0.gguf", "build/demo/q8_0/draft-q8_0.gguf"
QUESTION = "How does Django handle signals?"


@dataclass(frozen=True)
class Recording:
    """A command and the lines typed at its prompts."""

    arguments: Sequence[str]
    typed: Sequence[str] = ()


RECORDINGS = {
    "help": Recording(["--help"]),
    "demo": Recording(["demo"]),
    "generate": Recording(["generate", "-m", TARGET, "-d", DRAFT, "-n", "64", "-p", QUESTION]),
    "generate-help": Recording(["generate", "--help"]),
    "chat": Recording(["chat", "-m", TARGET, "-d", DRAFT, "-n", "64"], ["/help", QUESTION, "/stats", "/what", "/exit"]),
    "run": Recording(["run", TARGET], [QUESTION, "/exit"]),
    "convert": Recording(
        ["convert", "demo/target", "-o", "build/terminal/target.gguf", "--outtype", "q8_0", "--overwrite"]
    ),
    "inspect": Recording(["inspect", TARGET]),
    "check": Recording(["check", TARGET, DRAFT]),
    "bench": Recording(
        ["bench", "--synthetic", "tiny", "--accept", "0.65", "-n", "64", "--repetitions", "1", "--prompts", "256"]
    ),
    "evaluate": Recording(["evaluate", "-m", TARGET, "-d", DRAFT, "--data", "demo/held-out.jsonl", "--limit", "2"]),
    "doctor": Recording(["doctor"]),
    "error": Recording(["generate", "-m", "build/demo/none.gguf", "-p", "a"]),
}


def record(recording: Recording, columns: int) -> tuple[list[str], list[str]]:
    """Return the final screen of a terminal of this size, and of one that is wide enough for every line."""
    command = [str(Path(sys.executable).parent / "llama-eagle"), *recording.arguments]
    child = pexpect.spawn(command[0], command[1:], dimensions=(LINES, columns), timeout=IDLE_S, cwd=str(ROOT))
    screens = [pyte.HistoryScreen(width, LINES, history=10_000, ratio=1e-9) for width in (columns, WIDE)]
    setattr(screens[0], "write_process_input", child.send)  # noqa: B010  prompt_toolkit queries the cursor position
    streams = [pyte.ByteStream(screen) for screen in screens]
    typed = iter(recording.typed)
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        try:
            sent = child.read_nonblocking(1 << 16)
        except pexpect.TIMEOUT:  # the command waits for input, or computes
            if _shows_prompt(screens[0]):
                child.send(f"{next(typed, '/exit')}\r")
        except pexpect.EOF:
            return shown(screens[0]), shown(screens[1])
        else:
            for stream in streams:
                stream.feed(sent)
    child.close(force=True)
    raise SystemExit(f"{' '.join(recording.arguments)}: not done after {LONGEST_S} s")


def _shows_prompt(screen: pyte.Screen) -> bool:
    return bool(screen.display[screen.cursor.y].rstrip() == ">")


def shown(screen: pyte.HistoryScreen) -> list[str]:
    """Return all lines of a screen, including those scrolled off the top."""
    left = ["".join(line[i].data for i in range(screen.columns)) for line in screen.history.top]
    lines = [line.rstrip() for line in (*left, *screen.display)]
    return lines[: max((i for i, line in enumerate(lines, 1) if line), default=0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*RECORDINGS, []], help="default: all")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "build" / "terminal")
    parser.add_argument("--columns", type=int, nargs="+", default=[80, 120])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or RECORDINGS:
        for columns in args.columns:
            lines, unwrapped = record(RECORDINGS[name], columns)
            (args.out / f"{name}-{columns}.txt").write_text("\n".join(lines) + "\n")
            for line in unwrapped:
                if len(line) > columns:
                    print(f"{name}, {columns} columns: {len(line)}: {line[:60]}...")


if __name__ == "__main__":
    main()
