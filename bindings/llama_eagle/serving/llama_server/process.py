"""llama.cpp's servers as child processes: they end when this process ends, and llama-server's log is filtered."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from llama_eagle import console
from llama_eagle.errors import EagleError, EnvironmentFailure, UsageError
from llama_eagle.native import rpc
from llama_eagle.native.programs import (
    PATIENCE,
    ended_with_us,
    ending_signals,
    find_program,
    start_program,
    stop_program,
)

INTERRUPTED = 130
MAX_COMPLAINT = 500  # characters of a reason: some quote a whole template
FEW_HEAPS = {"MALLOC_ARENA_MAX": "2"}  # of glibc: with one for each of its threads, memory takes longer to settle

_LINE = re.compile(r"^[\d.]+ (?P<level>[A-Z]) (?P<text>.*)$")
# Prefix of a message in llama-server's log: the part and function that logs, a slot and its task.
_ORIGIN = re.compile(r"^(?:[a-z]{2,6} +)?[\w:~]+(?:\(\))?: +(?:id +-?\d+ \| task -?\d+ \| )?")
# Lines about one request: its response contains the same, or nothing is wrong.
_OF_A_REQUEST = re.compile(
    r"got exception: \{|cancel task|task id = \d+, error: |^unparsed .* output|^failed to parse grammar"
    r"|^need to evaluate at least 1 token|^n_past was set to|^unable to match sampler|^Wrong type supplied"
)
_REASONS = {  # why the program ended without a word, by signal
    "SIGBUS": "a file of the model was truncated, or cannot be read any more",
    "SIGKILL": "killed, perhaps for lack of memory",
}
# Complaints about arguments, which can only be those that `serve` passes through.
_OF_ARGUMENTS = re.compile(
    r"(error: )?invalid argument: |error while handling argument|JSON schema error|the supplied chat template is not"
    r"|failed to apply template|Jinja Exception: "
)
# Its last words, which follow the reason. The second is printed past the log, so it may also come first.
_ENDS = re.compile(r"exiting due to model loading error")
_TEMPLATE_ENDS = "error: the supplied chat template is not"
_LISTENING = re.compile(r"listening on (?P<address>\S+)")
# After each batch of a prompt that takes more than 3 seconds.
_PROMPT = re.compile(
    r"id +(?P<slot>\d+) .*prompt processing, n_tokens = +(?P<n>\d+), progress = (?P<share>[\d.]+),"
    r".* / (?P<speed>[\d.]+) tokens per second"
)
# Counts of a draft model's tokens since the last such line (eagle_verdict.h).
_DRAFTS = re.compile(r"drafts by position: tried(?P<tried>(?: \d+)+); accepted(?P<accepted>(?: \d+)+)$")
OnDrafts = Callable[[list[int], list[int]], object]  # counts of tried and accepted tokens, by position in the draft
PROMPT_LINE_S = 5.0  # seconds between two lines about the prompt of a slot


@contextlib.contextmanager
def background(
    arguments: Sequence[str], environment: Mapping[str, str], verbose: bool, on_drafts: OnDrafts | None = None
) -> Iterator[str]:
    """Run llama-server for the duration of the block; yield its URL when the model is loaded.

    on_drafts: as in `follow_log`. Shows only the complaints of its log unless `verbose`. Raises `EnvironmentFailure` if
    it ends before that.
    """
    process = start_server(arguments, environment)
    complaints: list[str] = []
    addresses: queue.Queue[str] = queue.Queue()

    def follow() -> None:
        def on_address(text: str) -> None:
            addresses.put(text.removeprefix("listening on "))

        complaints.append(follow_log(process, verbose, on_address, on_drafts=on_drafts))
        addresses.put("")

    reader = threading.Thread(target=follow, name="llama-server's log", daemon=True)
    with ended_with_us(process):
        reader.start()
        address = addresses.get()
        if not address or not _is_ready(address, process):
            reader.join()
            raise _ended(process, complaints[0])
        yield address


def _is_ready(address: str, process: subprocess.Popen[str]) -> bool:
    """Wait until the model is loaded; return False if the server ends."""
    from llama_eagle.serving.llama_server.loopback import open_url  # imports an HTTP client

    while process.poll() is None:
        try:
            open_url(f"{address}/health").close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def run_rpc_server(words: Sequence[str], endpoint: str) -> int:
    """Run ggml's RPC server until a signal or its own end. endpoint: its address from here."""
    program = find_program("ggml-rpc-server", "it was built with GGML_RPC=OFF. Build it with ON")
    process = start_program([str(program), *words], {**os.environ}, stdout=sys.stderr)
    return until_end(process, lambda is_ending: _announce(process, endpoint, is_ending), "Its last lines say why.")


def _announce(process: subprocess.Popen[str], endpoint: str, is_ending: Callable[[], bool]) -> str:
    """Print the address and the devices when the server answers; then wait for its end."""
    while process.poll() is None:
        with contextlib.suppress(EnvironmentFailure):
            devices = [f"{device.free >> 20} of {device.total >> 20} MiB free" for device in rpc.query(endpoint)]
            if not is_ending():
                console.data(f"listening on {endpoint}, {'; '.join(devices)}")
                sys.stdout.flush()
            break
        time.sleep(0.1)
    process.wait()
    return ""


def start_server(words: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    program = find_program(
        "llama-server", "built with LLAMA_EAGLE_SERVER=OFF, as by `make demo`. `make install` adds it"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    return start_program([str(program), *words], {**FEW_HEAPS, **os.environ, **variables}, **pipes)


def until_end(
    process: subprocess.Popen[str],
    follow: Callable[[Callable[[], bool]], str],
    remedy: str,
    before_end: Callable[[], object] | None = None,
) -> int:
    """Follow a server to its end and return our exit status: that of the signal that ended it.

    follow: waits for the end and returns its reason; its argument returns True from a signal on. before_end: as in
    `_signals`. Raises `EagleError` if the server ends by itself.
    """
    status: list[int] = []
    with _signals(process, status, before_end):
        try:
            last = follow(lambda: bool(status))
            process.wait()
        finally:
            stop_program(process)
    if status:
        return status[0]
    raise _ended(process, last, remedy)


def _ended(process: subprocess.Popen[str], reason: str, remedy: str = "See --verbose.") -> EagleError:
    name = Path(str(process.args[0])).stem  # type: ignore[index]
    code = process.wait()
    if _OF_ARGUMENTS.match(reason):
        return UsageError(f"{name} refuses its arguments: {reason}. Correct those after --.")
    by_signal = next((each.name for each in signal.Signals if each == -code), "")
    reason = reason or _REASONS.get(by_signal, "no reason given")
    return EnvironmentFailure(f"{name} ended with status {code}: {reason}. {remedy}")


class PromptLines:
    """Progress of long prompts in llama-server's log: a line for each slot every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}  # time of the last line, by slot

    def line(self, text: str) -> str:
        """Return the line about a prompt to show for a line of the log; "" for none."""
        found = _PROMPT.search(text)
        now = self._clock()
        if found is None or now - self._last.get(found["slot"], -PROMPT_LINE_S) < PROMPT_LINE_S:
            return ""
        self._last[found["slot"]] = now
        speed = f"{int(found['n'])} tokens, {float(found['speed']):.0f} tokens/s"
        return f"slot {found['slot']} reads its prompt: {float(found['share']):.0%}, {speed}"


def follow_log(
    process: subprocess.Popen[str],
    verbose: bool,
    on_address: Callable[[str], object],
    prompts: PromptLines | None = None,
    on_drafts: OnDrafts | None = None,
) -> str:
    """Read the log to its end, show its complaints, report "listening on URL" once; return the reason of the end.

    on_drafts: called with what became of a draft model's tokens, every few hundred of them and at the end.
    """
    complaints: deque[str] = deque(maxlen=1)
    announced = False
    for line in process.stdout or ():
        found = _LINE.match(line.rstrip("\n"))
        level, text = (found["level"], found["text"]) if found else ("", line.rstrip("\n"))
        if not announced and (address := _LISTENING.search(text)):
            announced = True
            on_address(address.group(0))
        message = " ".join(_ORIGIN.sub("", text)[:MAX_COMPLAINT].split())
        # llama-server may end before its log's thread has written all lines: advice may be the last one.
        is_advice = (
            complaints and not announced and _OF_ARGUMENTS.match(complaints[0]) and not _OF_ARGUMENTS.match(message)
        )
        has_cause = complaints and complaints[0].startswith("failed to apply template") and _TEMPLATE_ENDS in text
        follows = complaints and (is_advice or has_cause or _ENDS.search(text) or complaints[0].startswith(rpc.LOST))
        if (level == "E" or (not found and "error" in text.lower())) and not follows:
            complaints.append(message)
        if on_drafts is not None and (counts := _DRAFTS.search(text)):
            on_drafts(*([int(n) for n in counts[name].split()] for name in ("tried", "accepted")))
        if verbose:
            print(console.printable(text), file=sys.stderr, flush=True)
        elif announced and (message := complaint(level, text)):
            console.log(f"llama-server: {message}") if level == "E" else console.warn(f"{message}.")
        elif prompts is not None and (progress := prompts.line(text)):
            console.log(progress)
    return complaints[0] if complaints else ""


def complaint(level: str, text: str) -> str:
    """Return the message of a warning or an error in the log; "" for other lines and for those about one request."""
    message = _ORIGIN.sub("", text).strip()
    return message if level in ("E", "W") and not _OF_A_REQUEST.search(message) else ""


@contextlib.contextmanager
def _signals(
    process: subprocess.Popen[str], status: list[int], before_end: Callable[[], object] | None
) -> Iterator[None]:
    """End the server on signals that end this process; kill it after `PATIENCE` seconds.

    before_end: called first, in a thread; a second signal ends the server meanwhile.
    """
    killer = threading.Timer(PATIENCE, process.kill)

    def terminate() -> None:
        process.terminate()
        with contextlib.suppress(RuntimeError):  # started before
            killer.start()

    def finish(prepare: Callable[[], object]) -> None:
        prepare()
        terminate()

    def end(number: int, _frame: FrameType | None) -> None:
        is_first = not status
        if is_first:
            status.append(INTERRUPTED if number == signal.SIGINT else 0)
        if is_first and before_end is not None:
            threading.Thread(target=finish, args=(before_end,), daemon=True).start()
        else:
            terminate()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, *ending_signals())}
    try:
        yield
    finally:
        killer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
