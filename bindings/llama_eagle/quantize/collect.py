"""Collection of an importance matrix with llama.cpp's llama-imatrix, and a report of matrices without statistics."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llama_eagle import console
from llama_eagle.errors import EnvironmentFailure, InputError, UsageError, refuse
from llama_eagle.files import refuse_sources, refuse_special, temporary_next_to
from llama_eagle.gguf.header import Header
from llama_eagle.gguf.mtp import has_head, is_head_alone
from llama_eagle.gguf.pairing import require_models
from llama_eagle.gguf.validate import read_sound
from llama_eagle.native.limits import MAX_CONTEXT
from llama_eagle.native.processor.threads import n_threads, read_threads
from llama_eagle.native.programs import ended_with_us, find_program, start_program
from llama_eagle.quantize.imatrix import read_imatrix
from llama_eagle.quantize.reach import about_experts, listed, unreached

SMALLEST = 32  # tokens of a chunk: llama.cpp ignores products of fewer than 16 rows
PROGRAM = "llama-imatrix"
REMEDY = "built with LLAMA_EAGLE_SERVER=OFF, as by `make demo`. `make install` adds it"

_LINE = re.compile(r"^[\d.]+ (?P<level>[A-Z]) (?:[\w:~]+ ?(?:\(\))?: +)?(?P<text>.*)$")
_N_CHUNKS = re.compile(r"computing over (\d+) chunks")
_DONE = re.compile(r"\[(\d+)\]")  # after each chunk, with the perplexity so far
_PERPLEXITY = re.compile(r"Final estimate: PPL = ([\d.]+)")
_TOO_SHORT = re.compile(r"tokenizes to only (\d+) tokens|not enough tokens left")


@dataclass(frozen=True)
class CollectOptions:
    """n_ctx: tokens of a chunk. n_chunks: chunks to evaluate, 0: the whole text. first_chunk: chunks to skip.

    n_batch: tokens evaluated at once, 0: a chunk; a part of a chunk or several chunks. earlier: matrices whose
    statistics are added. parse_special: read special tokens in the text. on_partial: receives the file of an
    interrupted run and the first chunk that it lacks.
    """

    n_ctx: int = 512
    n_chunks: int = 0
    first_chunk: int = 0
    n_batch: int = 0
    threads: int = 0
    n_gpu_layers: int = 0
    earlier: Sequence[Path] = ()
    parse_special: bool = False
    verbose: bool = False
    progress: Callable[[float], None] | None = None
    on_partial: Callable[[Path, int], None] | None = None

    def __post_init__(self) -> None:
        n_batch = self.n_batch or self.n_ctx
        refuse(
            {
                f"context size {self.n_ctx} (n_ctx) is not in {SMALLEST}..{MAX_CONTEXT}": (
                    not SMALLEST <= self.n_ctx <= MAX_CONTEXT
                ),
                "a number of chunks is negative": min(self.n_chunks, self.first_chunk) < 0,
                f"batch size {self.n_batch} (n_batch) is neither {SMALLEST} or more nor 0": n_batch < SMALLEST,
                f"batch size {self.n_batch} (n_batch) is no multiple of the context size {self.n_ctx}": (
                    n_batch > self.n_ctx and n_batch % self.n_ctx != 0
                ),
            }
        )


@dataclass(frozen=True)
class CollectReport:
    """The written matrix. without_statistics: matrices of blocks that the run did not reach. unused_experts: for a
    matrix of experts, how many were never chosen, and of how many."""

    output: Path
    n_matrices: int
    n_chunks: int
    perplexity: float | None
    seconds: float
    without_statistics: tuple[str, ...] = ()
    unused_experts: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """Return what was not reached, in sentences."""
        found = []
        heads = [name for name in self.without_statistics if ".nextn." in name]
        if heads:
            found.append(
                "the MTP head has no statistics: llama.cpp does not evaluate a head of this architecture here."
            )
        elif self.without_statistics:
            found.append(f"no statistics for {listed(self.without_statistics)}.")
        if self.unused_experts:
            found.append(f"{about_experts(self.unused_experts)} A longer text reaches more.")
        return found


@dataclass
class _Progress:
    """Progress that llama-imatrix has reported so far."""

    status: int = 0
    n_chunks: int = 0
    perplexity: float | None = None
    complaints: deque[str] = field(default_factory=lambda: deque(maxlen=4))


def collect(
    model: str | Path, text: str | Path | None, output: str | Path, options: CollectOptions | None = None
) -> CollectReport:
    """Write the importance matrix of `model` on the text of a file, or the sum of earlier ones without a text.

    Raises UsageError, InputError for a model, text or matrix that cannot be used, EnvironmentFailure for the build, the
    memory or the disk; then nothing is left behind and an existing output is untouched.
    """
    start = time.monotonic()
    options = options or CollectOptions()
    model, output = Path(model), Path(output)
    text = None if text is None else Path(text)
    files = read_sound(model)[1]
    _check(files, text, options)
    refuse_sources(output, [*(file.path for file in files), *([text] if text else []), *options.earlier])
    with temporary_next_to(output) as (temporary,):
        try:
            found = _run(_words(model, text, temporary, options), has_head(files), options)
        except KeyboardInterrupt:
            _keep_partial(temporary, output, options)
            raise
        if found.status != 0 or not temporary.is_file():
            raise _failure(model, text, found, options)
        matrix = read_imatrix(temporary)
        temporary.replace(output)
    return CollectReport(
        output,
        len(matrix.entries),
        matrix.n_chunks,
        found.perplexity,
        time.monotonic() - start,
        tuple(unreached(files, matrix.entries)),
        matrix.unused_experts,
    )


def _check(files: list[Header], text: Path | None, options: CollectOptions) -> None:
    require_models(files)
    if is_head_alone(files):
        raise InputError(f"{files[0].path}: holds an MTP head without its model. Give the whole model.")
    if files[0].keys.get("tokenizer.ggml.add_eos_token"):
        raise InputError(f"{files[0].path}: its tokenizer ends each text with a token; llama.cpp collects none then.")
    for path in options.earlier:
        read_imatrix(path)
    if text is None and not options.earlier:
        raise UsageError("give a text with --file, or matrices with --in-file.")
    if text is not None:
        refuse_special(text)  # it is read twice
    try:
        if text is not None and not text.read_bytes().strip():
            raise InputError(f"{text}: holds no text. Give another file.")
    except OSError as error:
        raise InputError(f"{text}: cannot be read ({error.strerror}).") from None


def _words(model: Path, text: Path | None, output: Path, options: CollectOptions) -> Iterator[str]:
    """Yield llama-imatrix's command line."""
    n_batch = options.n_batch or options.n_ctx
    threads = n_threads(read_threads(options.threads, "threads"))
    given = {
        "--model": model, "--output": output, "--output-format": "gguf", "--ctx-size": options.n_ctx,
        "--batch-size": n_batch, "--ubatch-size": min(n_batch, 512), "--chunks": options.n_chunks or -1,
        "--from-chunk": options.first_chunk, "--threads": threads, "--threads-batch": threads,
        "--n-gpu-layers": "all" if options.n_gpu_layers < 0 else options.n_gpu_layers,
        "--fit": "off", "--log-colors": "off", "--log-verbosity": 3,
    }  # fmt: skip
    yield from (str(word) for pair in given.items() for word in pair)
    if text is not None:
        yield from ("--file", str(text))
    for path in options.earlier:
        quoted = str(path).replace('"', '""')
        yield from ("--in-file", f'"{quoted}"')
    yield from ("--parse-special",) if options.parse_special else ()


def _run(words: Iterator[str], with_head: bool, options: CollectOptions) -> _Progress:
    """Run llama-imatrix to its end."""
    program = find_program(PROGRAM, REMEDY)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
    variables["LLAMA_EAGLE_IMATRIX_HEAD"] = "1" if with_head else ""
    process = start_program([str(program), *words], variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = _Progress()
    with ended_with_us(process):
        for line in _pieces(process):
            _note(line, found, options)
        found.status = process.wait()
    return found


def _pieces(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield its lines, and of a line that still grows what is new: progress has no line ends."""
    assert process.stdout is not None
    rest = b""
    while data := os.read(process.stdout.fileno(), 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
        if rest.startswith(b"[") and rest.endswith(b","):
            yield rest.decode("utf-8", "replace")
            rest = b""
    yield rest.decode("utf-8", "replace")


def _note(line: str, found: _Progress, options: CollectOptions) -> None:
    """Take the progress, the perplexity and the complaints from a piece of its output."""
    if options.verbose:
        console.log(line)
    if counted := _N_CHUNKS.search(line):
        found.n_chunks = int(counted[1])
    if found.n_chunks and options.progress and (done := _DONE.findall(line)):
        options.progress(int(done[-1]) / found.n_chunks)
    if estimate := _PERPLEXITY.search(line):
        found.perplexity = float(estimate[1])
    parts = _LINE.match(line)
    if (parts["level"] == "E") if parts else ("error" in line.lower()):
        found.complaints.append((parts["text"] if parts else line).strip())


def _failure(model: Path, text: Path | None, found: _Progress, options: CollectOptions) -> Exception:
    """Return the error for a run that wrote nothing, from its complaints."""
    reason = "; ".join(found.complaints) or "no reason given"
    if short := _TOO_SHORT.search(reason):
        count = f"has {short[1]} tokens" if short[1] else "has too few tokens after the chunks that are skipped"
        return InputError(
            f"{text}: {count}, chunks of {options.n_ctx} tokens need {2 * options.n_ctx}. Give a longer text, or a "
            "smaller n_ctx."
        )
    if "non-finite" in reason:
        return InputError(f"{model}: {reason}. Convert or download it again.")
    return EnvironmentFailure(f"{PROGRAM} ended without a result: {reason}. See --verbose.")


def _keep_partial(temporary: Path, output: Path, options: CollectOptions) -> None:
    """Keep what an interrupted run has saved, next to the output, where it is whole."""
    try:
        done = read_imatrix(temporary).n_chunks - sum(read_imatrix(path).n_chunks for path in options.earlier)
    except InputError:
        return
    partial = output.with_name(f"{output.stem}.partial{output.suffix}")
    temporary.replace(partial)
    if options.on_partial is not None:
        options.on_partial(partial, options.first_chunk + done)
